"""A channel: messages between the head and one worker of the same host, over an inherited socket pair.

Everything rare goes here: set-up, resets with options, calls, infos, errors. Messages are pickled. That is safe only
because the socket was made by the head and inherited by its own child: no name, no port, nobody else can reach it.
Nothing that crosses hosts may use this module.
"""

from __future__ import annotations

import array
import pickle
import socket
import struct
import time
from typing import Any

import cloudpickle

from clusterenv.errors import ResultError

_HEADER = struct.Struct("<Q")
# Infos of a block usually fit; a worker with more waits until the head reads.
_BUFFER_BYTES = 4 * 2**20


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
        raise ResultError(f"cannot be sent to another process: {type(error).__name__}: {error}") from error
    return packed


class Channel:
    """One end of a socket pair that carries whole messages."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._expected: int | None = None  # the size of the message that is being received
        self._begin()
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

    def send(self, message: object, limit_s: float | None) -> None:
        """Send a message; raise ChannelTimeout if the other side does not take it in time."""
        self.send_packed(pack(message), limit_s)

    def send_packed(self, packed: bytes, limit_s: float | None) -> None:
        """Send a message that `pack` has made."""
        try:
            self._socket.settimeout(limit_s)
            self._socket.sendall(_HEADER.pack(len(packed)) + packed)
        except TimeoutError:
            raise ChannelTimeout(f"a message of {len(packed)} bytes was not taken within {limit_s} s") from None
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, limit_s: float | None) -> Any:
        """The next message; raise ChannelTimeout if it is not there in time."""
        return pickle.loads(self.receive_packed(limit_s))

    def receive_packed(self, limit_s: float | None) -> bytearray:
        """The next message, still pickled. If it is interrupted, the next call goes on where this one stopped."""
        end = None if limit_s is None else time.monotonic() + limit_s
        if self._expected is None:
            self._expected = _HEADER.unpack(self._read(_HEADER.size, end))[0]
            self._begin()
        message = self._read(self._expected, end)
        self._expected = None
        self._begin()
        return message

    def send_fd(self, fd: int, limit_s: float | None) -> None:
        """Hand a descriptor to the other side."""
        try:
            self._socket.settimeout(limit_s)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
            self._socket.sendmsg([b"f"], [rights])
        except TimeoutError:
            raise ChannelTimeout(f"a descriptor was not taken within {limit_s} s") from None
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive_fd(self, limit_s: float | None) -> int:
        """Take a descriptor from the other side."""
        try:
            self._socket.settimeout(limit_s)
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

    def _begin(self) -> None:
        self._data, self._got = bytearray(), 0

    def _read(self, size: int, end: float | None) -> bytearray:
        if len(self._data) != size:
            self._data = bytearray(size)
        view = memoryview(self._data)
        while self._got < size:
            limit = None if end is None else max(end - time.monotonic(), 0.001)
            try:
                self._socket.settimeout(limit)
                count = self._socket.recv_into(view[self._got :])
            except TimeoutError:
                raise ChannelTimeout(f"{self._got} of {size} bytes arrived in time") from None
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            if count == 0:
                raise ChannelClosed("the other side is gone")
            self._got += count
        return self._data
