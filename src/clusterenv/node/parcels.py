"""Weights on their way to a node, in pieces.

A policy of a few megabytes takes minutes on a slow link. In one message it would hold up all that is sent behind it:
orders to workers, and the heartbeats of the connection, which would then be taken for dead. So it travels as small
pieces, a few at a time; the node answers each, and puts them together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterenv.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

# A piece takes about a second on a link of one megabit per second.
PIECE_BYTES = 128 * 1024
# So much may be under way at once. Most policies are smaller, so they arrive even if the learner does not look here for
# a while; those that are larger go on whenever it does.
WINDOW_BYTES = 8 * 1024 * 1024


class Parcel:
    """The sender's side.

    Args:
        payload: what is sent.
        send: takes the place of a piece and its bytes.

    Example:
        >>> parcel = Parcel(b"weights", lambda offset, piece: print(offset, bytes(piece)))
        >>> parcel.send_more()
        0 b'weights'
        >>> parcel.arrived()
        >>> parcel.complete
        True
    """

    def __init__(self, payload: bytes, send: Callable[[int, memoryview], None]) -> None:
        self._payload, self._send = memoryview(payload), send
        self._sent, self._under_way, self._begun = 0, 0, False

    @property
    def complete(self) -> bool:
        """Whether all of it has arrived."""
        return self._begun and not self._under_way and self._sent == len(self._payload)

    def send_more(self) -> None:
        """Send pieces until the window is full. A payload without bytes is one piece, too."""
        most = WINDOW_BYTES // PIECE_BYTES
        while self._under_way < most and (self._sent < len(self._payload) or not self._begun):
            self._begun = True
            piece = self._payload[self._sent : self._sent + PIECE_BYTES]
            offset = self._sent
            self._sent += len(piece)
            self._under_way += 1
            self._send(offset, piece)

    def arrived(self) -> None:
        """A piece has arrived."""
        self._under_way -= 1


class Arriving:
    """The receiver's side: pieces come in their order, each once.

    Args:
        limit: how many bytes may come at most.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._of: Any = None
        self._bytes = bytearray()

    def take(self, of: Any, offset: int, size: int, piece: Any) -> bytes | None:
        """Take a piece; returns the whole once it is complete.

        Args:
            of: what it is a piece of: the first piece of another makes an end of one that was not complete.
            offset: its place.
            size: of the whole.
            piece: its bytes.
        """
        if size > self._limit:
            raise ProtocolError(f"{size} bytes of weights were announced, and at most {self._limit} can be.")
        if offset == 0:
            self._of, self._bytes = (of, size), bytearray()
        room = size - len(self._bytes)
        if (of, size) != self._of or offset != len(self._bytes) or memoryview(piece).nbytes > room:
            raise ProtocolError(f"a piece of weights at {offset} arrived that does not fit what came before.")
        self._bytes += piece
        if len(self._bytes) < size:
            return None
        whole, self._of, self._bytes = bytes(self._bytes), None, bytearray()
        return whole
