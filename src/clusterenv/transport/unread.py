"""What peers have sent to a socket and nobody has read: bounded in bytes, over all connections that are open.

libzmq bounds the size of a frame and the number of whole messages that wait. It does not bound a message of endless
frames, which it keeps until the last one comes, and shows to nobody before. The kernel counts the bytes of each
connection: what has come in, less what was read, is what libzmq holds. Whole messages that a connection leaves behind
when it is closed are still there to be read, and are not counted: nobody tells their size any more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

import zmq
from zmq.utils.monitor import recv_monitor_message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_logger = logging.getLogger(__name__)

_LOOK_S = 0.1
# Where Linux has the number of bytes that have come in (tcpi_bytes_received).
_INFO_BYTES, _RECEIVED = 136, struct.Struct("@Q")
_RECEIVED_AT = 128
# What a message costs on the wire beside its bytes: at most so much for each frame, and some for the heartbeats between
# two messages. Rather too much than too little: what was counted too often is forgotten at the next look.
_OF_A_FRAME, _OF_A_MESSAGE = 42, 256
# As a plain number, for the sake of speed.
_CONNECTION = int(zmq.SRCFD)


class Unread:
    """Watches the connections of a socket in a thread of its own, and closes the one with the most if it is too much.

    Nobody else could: the head may be in the user's code for minutes.

    Args:
        sock: the socket, before it listens.
        limit: how many bytes may wait, over all connections.
    """

    def __init__(self, sock: zmq.Socket[bytes], limit: int) -> None:
        self.limit = limit
        self._socket, self._port = sock, 0
        # By descriptor, whose numbers are used again. Only one thread writes to each, so that no lock is needed.
        self._read: dict[int, int] = {}
        self._gone: dict[int, int] = {}  # what had been read when the last connection with this number went
        self._start: dict[int, int] = {}  # the same for those that are there, and what was counted too often
        self._events = sock.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="clusterenv unread", daemon=True)

    def start(self, port: int) -> None:
        """Begin, once the socket listens on this port."""
        self._port = port
        self._thread.start()

    def took(self, frames: Sequence[Any]) -> None:
        """A message was read: these are its frames, with the one that libzmq puts in front."""
        try:
            connection = frames[0].get(_CONNECTION)
        except zmq.ZMQError:  # it came from within this process
            return
        size = sum(map(len, frames)) + _OF_A_FRAME * len(frames) + _OF_A_MESSAGE
        self._read[connection] = self._read.get(connection, 0) + size

    def close(self) -> None:
        """End the thread, while the socket is still open. May be repeated, also after Ctrl-C in the midst of it."""
        if self._events.closed:
            return
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._socket.disable_monitor()
        self._events.close(0)

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self._see_who_came_and_went()
            self._look()

    def _see_who_came_and_went(self) -> None:
        while self._events.poll(0):
            event: dict[str, Any] = dict(recv_monitor_message(self._events))
            connection = int(event["value"])
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._start[connection] = self._gone.get(connection, 0)
            else:
                self._start.pop(connection, None)
                self._gone[connection] = self._read.get(connection, 0)

    def _look(self) -> None:
        waiting: dict[int, int] = {}
        for connection in self._start:
            read_before = self._read.get(connection, 0)
            received = _received(connection, self._port)
            if received is None:  # it is closed, and we hear of it soon
                continue
            # Messages are read meanwhile. What was read before cannot be more than has come in; what waits is what had
            # come in and is not read after.
            self._start[connection] = max(self._start[connection], read_before - received)
            read = self._read.get(connection, 0) - self._start[connection]
            waiting[connection] = max(0, received - read)
        total = sum(waiting.values())
        if total <= self.limit:
            return
        largest = max(waiting, key=lambda connection: waiting[connection])
        _logger.warning(
            "%d MB that nodes have sent wait to be read, more than the %d MB that may: the connection with the most, "
            "%d MB, is closed.",
            *(amount // 10**6 for amount in (total, self.limit, waiting[largest])),
        )
        self._start.pop(largest)
        _shut(largest, self._port)


def _received(descriptor: int, port: int) -> int | None:
    """How many bytes have come in over a connection to this port; None if there is none."""
    with contextlib.suppress(OSError), _borrowed(descriptor, port) as sock:
        information = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        return int(_RECEIVED.unpack_from(information, _RECEIVED_AT)[0])
    return None


def _shut(descriptor: int, port: int) -> None:
    """Break a connection: libzmq, which has it, finds it at its end."""
    with contextlib.suppress(OSError), _borrowed(descriptor, port) as sock:
        sock.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _borrowed(descriptor: int, port: int) -> Iterator[socket.socket]:
    """The connection with this number: OSError if it is closed, and the number that of something else by now."""
    mine = os.dup(descriptor)  # libzmq may close its own at any time
    try:
        sock = socket.socket(fileno=mine)
    except OSError:  # a file
        os.close(mine)
        raise
    with sock:
        if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.getsockname()[1] != port:
            raise OSError("this is another connection.")
        yield sock
