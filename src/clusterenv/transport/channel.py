"""A channel: messages between the head and one worker of the same host, over an inherited socket pair.

Everything rare goes here: set-up, resets with options, calls, infos, errors. Messages are pickled. That is safe only
because the socket was made by the head and inherited by its own child: no name, no port, nobody else can reach it.
Nothing that crosses hosts may use this module.
"""

from __future__ import annotations

import array
import pickle
import select
import socket
import struct
import time
from typing import TYPE_CHECKING, Any

import cloudpickle

from clusterenv.errors import ResultError, named

if TYPE_CHECKING:
    from collections.abc import Callable

_HEADER = struct.Struct("<Q")
# Infos of a block usually fit; a worker with more waits until the head reads.
_BUFFER_BYTES = 4 * 2**20
# A large message is received in parts of this size: each takes memory before it is known how much has arrived.
_CHUNK_BYTES = 2**20
# Python keeps the milliseconds of a wait in 32 bits: one of 4,294,968 s would end within a second.
_MAX_WAIT_S = 2_000_000.0


class ChannelClosed(ConnectionError):
    """The other side is gone, or closed the channel."""


class ChannelTimeout(TimeoutError):
    """The other side did not send, or read, in time."""


def pack(message: object) -> bytes:
    """Pickle a message; lambdas and classes of `__main__` travel by value."""
    try:
        # Plain pickle is three times faster and enough for infos and arrays.
        return pickle.dumps(message, protocol=5)
    except Exception:
        return pack_by_value(message)


def pack_by_value(message: object) -> bytes:
    """Pickle a message for a process that has not loaded the user's main module: what is defined there goes along."""
    try:
        packed: bytes = cloudpickle.dumps(message, protocol=5)
    except Exception as error:
        raise ResultError(f"cannot be sent to another process: {named(error)}") from error
    return packed


class Channel:
    """One end of a socket pair that carries whole messages."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._parts: list[bytes] = []  # of the message that is being received, with its header
        self._unsent = memoryview(b"")  # the rest of a message that is on its way
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)

    @staticmethod
    def pair() -> tuple[Channel, socket.socket]:
        """A channel and the socket for the other end."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return Channel(ours), theirs

    def fileno(self) -> int:
        """The descriptor, for polling."""
        return self._socket.fileno()

    def readable(self) -> bool:
        """Whether a message, or the beginning of one, has arrived."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def send(self, message: object, limit_s: float | None) -> None:
        """Send a message; raise ChannelTimeout if the other side does not take it in time."""
        self.send_packed(pack(message), limit_s)

    def send_packed(self, packed: bytes, limit_s: float | None) -> None:
        """Send a message that `pack` has made."""
        try:
            self._wait_at_most(limit_s)
            self._socket.sendall(_HEADER.pack(len(packed)) + packed)
        except TimeoutError:
            raise ChannelTimeout(f"a message of {len(packed)} bytes was not taken within {limit_s} s") from None
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def send_later(self, packed: bytes) -> None:
        """Begin to send a message. What the socket does not take at once goes out by `push`, before anything else."""
        self._unsent = memoryview(_HEADER.pack(len(packed)) + packed)
        self.push()

    def push(self) -> None:
        """Send more of what `send_later` was given, if there is more and the socket takes it."""
        if self._unsent:
            self._unsent = self._send_some(self._unsent)

    def send_waking(
        self, packed: bytes, limit_s: float, wake: Callable[[], object], take: Callable[[], object]
    ) -> None:
        """As `send_packed`, to somebody who may sleep, or may be sending as well.

        Args:
            packed: what `pack` has made.
            limit_s: how long nothing may move.
            wake: called once if the socket does not hold the whole message: from then on the other side must read.
            take: called when something has arrived meanwhile. The other side may not read before that is taken.
        """
        left = self._send_some(memoryview(_HEADER.pack(len(packed)) + packed))
        if not left:
            return
        wake()
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | select.POLLOUT)
        while left:
            moved = poll.poll(1000 * limit_s)
            if not moved:
                count = f"{len(left)} of a message of {len(packed)} bytes"
                raise ChannelTimeout(f"{count} were not taken within {limit_s} s")
            if moved[0][1] & select.POLLIN:
                take()
            left = self._send_some(left)  # in any case: it finds out that the other side is gone

    def receive(self, limit_s: float | None) -> Any:
        """The next message; raise ChannelTimeout if it is not there in time."""
        return pickle.loads(self.receive_packed(limit_s))

    def receive_packed(self, limit_s: float | None) -> bytes:
        """The next message, still pickled."""
        packed = self.peek_packed(limit_s)
        self.drop()
        return packed

    def peek_packed(self, limit_s: float | None) -> bytes:
        """The next message, still pickled. It stays the next one until `drop`, so that an interrupt cannot lose it.

        If this is interrupted, the next call goes on where it stopped.
        """
        end = None if limit_s is None else time.monotonic() + limit_s
        while True:
            got, size = self._progress()
            if got == size:
                break
            self._read(min(size - got, _CHUNK_BYTES), end)
        return b"".join(self._parts)[_HEADER.size :]

    def drop(self) -> None:
        """The message that `peek_packed` has returned was taken."""
        self._parts = []

    @property
    def kept(self) -> bool:
        """Whether a whole message was read and not taken, because of an interrupt: the socket does not show it."""
        got, size = self._progress()
        return got == size

    def send_fd(self, fd: int, limit_s: float | None) -> None:
        """Hand a descriptor to the other side."""
        try:
            self._wait_at_most(limit_s)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
            self._socket.sendmsg([b"f"], [rights])
        except TimeoutError:
            raise ChannelTimeout(f"a descriptor was not taken within {limit_s} s") from None
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive_fd(self, limit_s: float | None) -> int:
        """Take a descriptor from the other side."""
        try:
            self._wait_at_most(limit_s)
            mark, fds, _, _ = socket.recv_fds(self._socket, 1, 1)
        except TimeoutError:
            raise ChannelTimeout(f"no descriptor arrived within {limit_s} s") from None
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        if not mark or not fds:
            raise ChannelClosed("the other side is gone")
        return fds[0]

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def _wait_at_most(self, limit_s: float | None) -> None:
        """How long the next call may wait."""
        self._socket.settimeout(None if limit_s is None else min(limit_s, _MAX_WAIT_S))

    def _send_some(self, data: memoryview) -> memoryview:
        """Send what the socket takes at once; return the rest."""
        try:
            self._socket.settimeout(0.0)
            return data[self._socket.send(data) :]
        except BlockingIOError:
            return data
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def _progress(self) -> tuple[int, int]:
        """How many bytes are there, and must be: of the header and, once that is whole, of the message."""
        got = sum(map(len, self._parts))
        if got < _HEADER.size:
            return got, _HEADER.size
        # The header was asked for by itself, so it is in the first few parts, and there is nothing else in those.
        header = b"".join(part[: _HEADER.size] for part in self._parts[: _HEADER.size])
        return got - _HEADER.size, int(_HEADER.unpack_from(header)[0])

    def _read(self, size: int, end: float | None) -> None:
        """Take at most `size` bytes."""
        try:
            self._wait_at_most(None if end is None else max(end - time.monotonic(), 0.001))
            # One call into C receives the bytes and keeps them. Between two calls Ctrl-C could come, and bytes that
            # were received and not yet kept would be missing from everything that follows.
            self._parts.extend(map(self._socket.recv, (size,)))
        except TimeoutError:
            got, whole = self._progress()
            raise ChannelTimeout(f"{got} of {whole} bytes arrived in time") from None
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        if not self._parts[-1]:
            raise ChannelClosed("the other side is gone")
