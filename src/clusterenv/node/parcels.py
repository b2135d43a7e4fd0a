"""Weights on their way to a node, in pieces.

A policy of a few megabytes takes minutes on a slow link. In one message it would hold up the heartbeats of the
connection, which would then be taken for dead, again and again. So it travels as small messages, which the node puts
together. All are sent at once: an order to play that follows them must not arrive before them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterenv.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator

# A piece takes about a second on a link of one megabit per second.
PIECE_BYTES = 128 * 1024
# More messages than a few thousand would not be taken by a socket.
_MOST_PIECES = 1024


def pieces_of(payload: bytes) -> Iterator[tuple[int, memoryview]]:
    """The pieces of a payload, each with its place; one without bytes is one piece, too.

    Example:
        >>> [(offset, bytes(piece)) for offset, piece in pieces_of(b"weights")]
        [(0, b'weights')]
    """
    whole = memoryview(payload)
    length = max(PIECE_BYTES, -(-len(whole) // _MOST_PIECES))
    for offset in range(0, max(1, len(whole)), length):
        yield offset, whole[offset : offset + length]


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
