"""The sockets between head and nodes: ZeroMQ with CURVE, every option set on purpose.

libzmq's defaults notice no dead peer, take messages of any size, reconnect without a pause and drop what they cannot
route in silence. No socket has a fixed identity: with one, a second peer of that name is ignored without a word.

What is sent is copied once: pyzmq would need a thread to know when memory that it only borrowed is free again, and the
encryption of the same bytes takes ten times as long. What is received is not copied.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

import zmq
import zmq.auth.thread
from zmq.utils.monitor import recv_monitor_message

from clusterenv.clusters import split_address
from clusterenv.errors import ConfigError, LaunchError
from clusterenv.transport.unread import Unread
from clusterenv.wire.frames import CUT_OFF, CutOff, join, split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterenv.transport.security import NodeKeys, RunKeys

    Frames = Sequence[Any]

SCHEME, INSECURE_SCHEME = "tcp+curve", "tcp"
# The largest frame that is taken. Observations of a node in one step, or of a fragment, have to fit.
MAX_FRAME_BYTES = 2**30
_ENCRYPTION_BYTES = 64  # that a frame may grow by, and a little more
_HEARTBEAT_MS, _HEARTBEAT_TIMEOUT_MS, _HEARTBEAT_TTL_MS = 2_000, 6_000, 10_000
_HANDSHAKE_MS = 5_000
_RECONNECT_MS, _RECONNECT_MAX_MS, _CONNECT_MS = 200, 2_000, 3_000
# Whole messages that wait in a socket. An honest node sends no more than it was asked for, which is less. A full socket
# is no means to slow a node down: libzmq hears no heartbeat through it, and closes the connection.
_FROM_NODE, _FROM_HEAD = 512, 4_096
# And bytes: room for the answers to calls, whose sizes nobody knows beforehand, and several times what environments and
# fragments need, since answers are repeated after a broken connection.
_UNREAD_BYTES, _UNREAD_TIMES = 2 * MAX_FRAME_BYTES, 4
_CONNECT_S = 3.0
# As plain numbers: `zmq.SNDMORE | zmq.DONTWAIT` takes a microsecond each time.
_AT_ONCE, _MORE_FOLLOWS, _READABLE = int(zmq.DONTWAIT), int(zmq.DONTWAIT | zmq.SNDMORE), int(zmq.POLLIN)


class Address(NamedTuple):
    """Where the head listens, and whether connections to it are encrypted and authenticated."""

    host: str
    port: int
    secure: bool = True

    @property
    def url(self) -> str:
        """As it is written on a command line."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{SCHEME if self.secure else INSECURE_SCHEME}://{host}:{self.port}"

    @property
    def endpoint(self) -> str:
        """As ZeroMQ writes it."""
        return self._replace(secure=False).url


def parse_address(text: str) -> Address:
    """Read the address of a head.

    Example:
        >>> parse_address("tcp+curve://10.0.0.1:5555").port
        5555
    """
    scheme, _, where = text.partition("://")
    try:
        found = split_address(where.removesuffix("/"))
    except ConfigError:
        found = None
    if scheme not in (SCHEME, INSECURE_SCHEME, "cluster") or found is None or not found.port:
        raise ConfigError(f"{text[:100]!r} is no address of a head: expected {SCHEME}://HOST:PORT.")
    return Address(found.host, found.port, scheme != INSECURE_SCHEME)


def _common(sock: zmq.Socket[bytes]) -> None:
    sock.linger = 0
    sock.maxmsgsize = MAX_FRAME_BYTES + _ENCRYPTION_BYTES
    sock.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
    sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
    sock.setsockopt(zmq.HEARTBEAT_TTL, _HEARTBEAT_TTL_MS)
    sock.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    sock.setsockopt(zmq.IPV6, 1)


def _send(sock: zmq.Socket[bytes], pieces: Frames) -> bool:
    """Send a message in these pieces; False if it is not taken."""
    # By hand: what pyzmq's `send_multipart` does besides takes longer than sending a small message.
    try:
        for piece in pieces[:-1]:
            sock.send(piece, _MORE_FOLLOWS)
        sock.send(pieces[-1], _AT_ONCE)
    except zmq.ZMQError:
        return False
    except BaseException:
        _send_again(sock, pieces)
        raise
    return True


def _send_again(sock: zmq.Socket[bytes], pieces: Frames) -> None:
    """An interrupt has come, nobody knows before which piece: end what may have been begun, and send it as a whole.

    Otherwise the next message would be taken for the rest of this one, and cost the node. One that arrives twice is
    known by its number, or does no harm. If all pieces were gone, or none, what ends them goes out alone: the head's
    socket drops it, since it is for nobody, and the head drops it if it comes from a node.
    """
    with contextlib.suppress(zmq.ZMQError):
        sock.send(CUT_OFF, _AT_ONCE)
        for piece in pieces[:-1]:
            sock.send(piece, _MORE_FOLLOWS)
        sock.send(pieces[-1], _AT_ONCE)


def _receive(sock: zmq.Socket[bytes]) -> list[Any] | None:
    """The frames of the next message, not copied; None if there is none."""
    try:
        frames = [sock.recv(_AT_ONCE, copy=False)]
        while frames[-1].more:
            frames.append(sock.recv(_AT_ONCE, copy=False))
    except zmq.Again:
        return None
    return frames


def _size(pieces: Frames) -> int:
    return sum(memoryview(piece).nbytes for piece in pieces)


class Hub:
    """The head's socket: nodes connect here.

    Args:
        keys: of the run; only nodes that have them get in.
        host: the address to listen on.
        port: 0 for any that is free.
        secure: whether nodes have to prove themselves with the keys, and all is encrypted.

    Attributes:
        received_bytes: of all messages that were taken so far, without what ZeroMQ and the encryption add.
        sent_bytes: the same, of those that were sent.
    """

    def __init__(self, keys: RunKeys, host: str, port: int = 0, *, secure: bool = True) -> None:
        self.received_bytes = self.sent_bytes = 0
        self._context = zmq.Context()
        self._guard = zmq.auth.thread.ThreadAuthenticator(self._context) if secure else None
        self._socket = sock = self._context.socket(zmq.ROUTER)
        _common(sock)
        self._unread = Unread(sock, _UNREAD_BYTES)
        sock.router_mandatory = 1
        sock.sndhwm, sock.rcvhwm = _FROM_HEAD, _FROM_NODE
        if self._guard is not None:
            self._guard.start()
            self._guard.configure_curve_callback("*", credentials_provider=_OnlyThese({keys.node.public.encode()}))
            sock.curve_server = True
            sock.curve_secretkey, sock.curve_publickey = keys.secret.encode(), keys.node.server.encode()
        listening = Address(host, port).endpoint if port else Address(host, 1).endpoint[:-1] + "*"
        try:
            sock.bind(listening)
        except zmq.ZMQError as error:
            self.close()
            raise LaunchError(f"the head cannot listen on {host}:{port or '*'}: {error.strerror or error}.") from error
        bound = sock.getsockopt_string(zmq.LAST_ENDPOINT)
        self.port = int(bound.rsplit(":", 1)[1])
        self._unread.start(self.port)
        self._poller = zmq.Poller()
        self._poller.register(sock, zmq.POLLIN)

    def expect(self, size: int) -> None:
        """Environments and fragments of all nodes have this many bytes: so much may have come, and wait to be read."""
        self._unread.limit = max(self._unread.limit, _UNREAD_BYTES + _UNREAD_TIMES * size)

    def send(self, peer: bytes, frames: Frames) -> bool:
        """Send to a node; False if its connection is gone or it takes nothing any more."""
        pieces = join(frames)
        if not _send(self._socket, (peer, *pieces)):
            return False
        self.sent_bytes += _size(pieces)
        return True

    def receive(self, limit_s: float) -> tuple[bytes, list[Any]] | None:
        """(peer, pieces) of the next message, or None if none comes in time; `wire.frames.split` makes them frames."""
        if not self._poller.poll(0 if limit_s <= 0 else max(1, int(limit_s * 1000))):
            return None
        # As one message: after Ctrl-C between two pieces, what is left of it comes next, and takes no other with it.
        frames = _receive(self._socket)
        if frames is None:
            return None
        self._unread.took(frames)
        peer, *pieces = [frame.buffer for frame in frames]
        self.received_bytes += _size(pieces)
        return bytes(peer), pieces

    def close(self) -> None:
        """Close everything at once."""
        self._unread.close()
        self._socket.close(0)
        if self._guard is not None:
            self._guard.stop()
        self._context.term()


class _OnlyThese:
    """The allow-list: without one, a CURVE server lets in everybody who knows its public key."""

    def __init__(self, keys: set[bytes]) -> None:
        self._keys = keys

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a client with this key may come in."""
        return key in self._keys


class Link:
    """A node's socket: one connection to the head, which libzmq renews by itself.

    Args:
        keys: of the run.
        address: of the head, with or without encryption.
    """

    def __init__(self, keys: NodeKeys, address: Address) -> None:
        self._context = zmq.Context()
        self._socket = sock = self._context.socket(zmq.DEALER)
        _common(sock)
        sock.immediate = 1
        sock.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        sock.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        sock.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_MS)
        sock.sndhwm, sock.rcvhwm = _FROM_NODE, _FROM_HEAD
        if address.secure:
            sock.curve_serverkey = keys.server.encode()
            sock.curve_publickey, sock.curve_secretkey = keys.public.encode(), keys.secret.encode()
        watched = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        self._events = sock.get_monitor_socket(watched | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
        self._poller = zmq.Poller()
        self._poller.register(sock, zmq.POLLIN)
        self._poller.register(self._events, zmq.POLLIN)
        self._extra: set[int] = set()
        sock.connect(address.endpoint)

    def events(self) -> list[str]:
        """What has happened to the connection: "up", "down" or "refused"."""
        found = []
        names = {int(zmq.EVENT_HANDSHAKE_SUCCEEDED): "up", int(zmq.EVENT_DISCONNECTED): "down"}
        while self._events.poll(0):
            found.append(names.get(int(recv_monitor_message(self._events)["event"]), "refused"))
        return found

    def wait(self, limit_s: float, descriptors: Sequence[int] = (), others: Sequence[int] = ()) -> bool:
        """Wait until something arrives here or on a descriptor; whether something happened beside messages.

        That is: something has happened to the connection (see `events`), or one of `others` is readable.
        """
        wanted = {*descriptors, *others}
        for gone in self._extra - wanted:
            self._poller.unregister(gone)
        for new in wanted - self._extra:
            self._poller.register(new, zmq.POLLIN)
        self._extra = wanted
        ready = dict(self._poller.poll(max(0, int(limit_s * 1000))))
        return self._events in ready or any(each in ready for each in others)

    def receive(self) -> list[Any] | None:
        """The frames of the next message, or None if there is none."""
        while True:
            events: Any = self._socket.getsockopt(zmq.EVENTS)
            if not events & _READABLE:  # to find that out by an error takes five times as long
                return None
            frames = _receive(self._socket)
            try:
                return None if frames is None else split([frame.buffer for frame in frames])
            except CutOff:
                continue

    def send(self, frames: Frames, limit_s: float = 0.0) -> bool:
        """Send to the head; False if it does not take the message in time, or there is no connection."""
        if limit_s > 0 and not self._socket.poll(int(limit_s * 1000), zmq.POLLOUT):
            return False
        return _send(self._socket, join(frames))

    def close(self, linger_s: float = 0.0) -> None:
        """Close the connection, after what was sent has gone or the time is up."""
        self._socket.disable_monitor()
        self._events.close(0)
        self._socket.close(int(linger_s * 1000))
        self._context.term()


def reachable(address: Address, limit_s: float = _CONNECT_S) -> Address:
    """The same address in numbers, those that answered: libzmq tries only one of those that a name stands for.

    Raises:
        OSError: nothing answers.
    """
    try:
        with contextlib.closing(socket.create_connection((address.host, address.port), limit_s)) as answered:
            return address._replace(host=str(answered.getpeername()[0]))
    except UnicodeError as error:  # a name that no name server could know
        raise OSError("Name or service not known") from error
