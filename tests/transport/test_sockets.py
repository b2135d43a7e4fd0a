"""Sockets: only who has the keys of the run gets in, whatever else knocks at the port."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import zmq

from clusterenv.errors import LaunchError
from clusterenv.transport.security import NodeKeys, RunKeys, make_keys
from clusterenv.transport.sockets import Address, Hub, Link
from clusterenv.wire.frames import JOIN_BELOW, CutOff, join, split
from tests.faults.interrupts import interrupted_everywhere
from tests.zoo import quiet_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_S = 20.0
HOST = "127.0.0.1"


@pytest.fixture(scope="module", autouse=True)
def pyzmq_has_its_thread() -> None:
    """The first large frame starts a thread of pyzmq, which stays to the end."""
    zmq.Frame(bytes(2**20), copy=False)


@pytest.fixture(scope="module")
def keys() -> RunKeys:
    return make_keys()


@pytest.fixture
def hub(keys: RunKeys) -> Iterator[Hub]:
    with contextlib.closing(Hub(keys, HOST)) as made:
        yield made


@contextlib.contextmanager
def linked(keys: NodeKeys, port: int) -> Iterator[Link]:
    link = Link(keys, Address(HOST, port))
    try:
        yield link
    finally:
        link.close()


def next_event(link: Link, limit_s: float = LIMIT_S) -> str:
    found: list[str] = []

    def looked() -> bool:
        found.extend(link.events())
        return bool(found)

    wait_until(looked, limit_s)
    return found[0]


def arrive(hub: Hub, limit_s: float = LIMIT_S) -> tuple[bytes, list[bytes]]:
    got = hub.receive(limit_s)
    assert got is not None, "nothing arrived"
    return got[0], [bytes(frame) for frame in split(got[1])]


def received(link: Link) -> list[bytes]:
    found: list[Any] = []

    def looked() -> bool:
        found.extend(link.receive() or [])
        return bool(found)

    wait_until(looked, LIMIT_S)
    return [bytes(frame) for frame in found]


def talk(hub: Hub, link: Link, word: bytes = b"hello") -> bytes:
    """A word there and a word back; returns the peer."""
    assert link.send([word], LIMIT_S)
    peer, frames = arrive(hub)
    assert frames == [word]
    assert hub.send(peer, [b"back", word])
    assert received(link) == [b"back", word]
    return peer


def test_who_has_the_keys_gets_in(hub: Hub, keys: RunKeys) -> None:
    with linked(keys.node, hub.port) as link:
        assert next_event(link) == "up"
        talk(hub, link)
        big = os.urandom(JOIN_BELOW * 3)
        assert link.send([b"h", big, b""])
        assert arrive(hub)[1] == [b"h", big, b""]


def test_the_bytes_of_messages_are_counted(hub: Hub, keys: RunKeys) -> None:
    with linked(keys.node, hub.port) as link:
        assert next_event(link) == "up"
        here = there = 0
        for frames in ([b"small", b"rows"], [b"large", bytes(2 * JOIN_BELOW)]):
            size = sum(map(len, join(frames)))
            assert link.send(frames)
            peer, _ = arrive(hub)
            here += size
            assert (hub.received_bytes, hub.sent_bytes) == (here, there)
            assert hub.send(peer, frames)
            there += size
            assert (hub.received_bytes, hub.sent_bytes) == (here, there)
        assert here > 2 * JOIN_BELOW
        assert not hub.send(b"nobody", [b"lost"])
        assert hub.sent_bytes == there, "what could not be sent is not counted"


def test_nobody_sends_and_nobody_waits_for_long(hub: Hub, keys: RunKeys) -> None:
    began = time.monotonic()
    assert hub.receive(0.0) is None
    assert hub.receive(0.05) is None
    assert 0.05 <= time.monotonic() - began < LIMIT_S


def test_an_unknown_peer_is_told_about(hub: Hub, keys: RunKeys) -> None:
    assert not hub.send(b"nobody", [b"hello"])
    with linked(keys.node, hub.port) as link:
        peer = talk(hub, link)
    wait_until(lambda: not hub.send(peer, [b"are you there"]), LIMIT_S)


def test_two_peers_are_two(hub: Hub, keys: RunKeys) -> None:
    with linked(keys.node, hub.port) as one, linked(keys.node, hub.port) as other:
        assert talk(hub, one, b"one") != talk(hub, other, b"other")
        talk(hub, one, b"one again")


def test_an_interrupt_between_two_pieces_costs_no_other_message(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub._socket.bind("inproc://pieces")  # within a process, what is sent has arrived
    with hub._context.socket(zmq.DEALER) as one, hub._context.socket(zmq.DEALER) as other:
        for sock, words in ((one, b"cut short"), (other, b"another")):
            sock.connect("inproc://pieces")
            sock.send(*join([words]))
        whole = zmq.Socket.recv

        def cut(sock: Any, *args: Any, **kwargs: Any) -> Any:
            whole(sock, *args, **kwargs)
            raise KeyboardInterrupt  # where pyzmq runs signal handlers: libzmq has handed over the piece by then

        with monkeypatch.context() as patched:
            patched.setattr(zmq.Socket, "recv", cut)
            with pytest.raises(KeyboardInterrupt):
                hub.receive(LIMIT_S)
        left, after = hub.receive(LIMIT_S), hub.receive(LIMIT_S)
        assert left is not None
        assert left[1] == [], "what is left of the first has no sender, and takes nothing with it"
        assert after is not None
        assert split(after[1]) == [b"another"]


# Where messages are sent. Signal handlers run inside pyzmq, too: when libzmq has taken a piece and nobody knows it yet.
SENDING = ("transport/sockets.py", "zmq/sugar/socket.py")
MESSAGES = {"in one piece": [b"small", b""], "in many": [b"large", bytes(JOIN_BELOW), b"", b"end"]}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES.keys())
def test_an_interrupt_while_the_head_sends_costs_no_message(hub: Hub, keys: RunKeys, message: list[bytes]) -> None:
    with linked(keys.node, hub.port) as one, linked(keys.node, hub.port) as other:
        peers = talk(hub, one), talk(hub, other)
        for where in interrupted_everywhere(lambda: hub.send(peers[0], message), *SENDING, opcodes=True):
            assert hub.send(peers[1], [b"to another"])
            assert hub.send(peers[0], [b"next"])
            assert received(other) == [b"to another"], where
            while (got := received(one)) != [b"next"]:
                assert got == message, where


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES.keys())
def test_an_interrupt_while_a_node_sends_costs_no_message(hub: Hub, keys: RunKeys, message: list[bytes]) -> None:
    with linked(keys.node, hub.port) as link:
        talk(hub, link)
        for where in interrupted_everywhere(lambda: link.send(message), *SENDING, opcodes=True):
            assert link.send([b"next"])
            got: list[bytes] = []
            while got != [b"next"]:
                with contextlib.suppress(CutOff):
                    got = arrive(hub)[1]
                    assert got in (message, [b"next"]), where


@contextlib.contextmanager
def overheard(port: int) -> Iterator[tuple[int, bytearray]]:
    """A way to this port for one connection, and all that the client says there."""
    said = bytearray()

    def carry(source: socket.socket, target: socket.socket, into: bytearray) -> None:
        with contextlib.suppress(OSError):  # one of the two is closed
            while data := source.recv(65536):
                into += data
                target.sendall(data)

    with socket.create_server((HOST, 0)) as listening:

        def serve() -> None:
            client, _ = listening.accept()
            with client, socket.create_connection((HOST, port)) as server:
                back = threading.Thread(target=carry, args=(server, client, bytearray()))
                back.start()
                carry(client, server, said)
                server.shutdown(socket.SHUT_RDWR)
                back.join(LIMIT_S)

        serving = threading.Thread(target=serve)
        serving.start()
        yield listening.getsockname()[1], said
        serving.join(LIMIT_S)


@pytest.mark.threat("T04", "T11")
def test_a_session_that_was_recorded_is_worth_nothing(hub: Hub, keys: RunKeys) -> None:
    with overheard(hub.port) as (port, said), linked(keys.node, port) as link:
        talk(hub, link, b"a word that nobody else may read")
    assert len(said) > 200, "greeting, handshake and message"
    assert b"a word that nobody" not in said
    with socket.create_connection((HOST, hub.port)) as again:
        again.sendall(said)
        assert hub.receive(1.0) is None, "the keys of a connection are made anew by both sides"
    with linked(keys.node, hub.port) as link:
        talk(hub, link)


@pytest.mark.threat("T02")
def test_a_client_that_is_not_on_the_list_is_refused(hub: Hub, keys: RunKeys) -> None:
    """It knows the public key of the head, as a CURVE client must, and has a pair of its own."""
    stranger = make_keys().node
    with linked(NodeKeys(keys.node.run, keys.node.server, stranger.public, stranger.secret), hub.port) as link:
        assert next_event(link) == "refused"
        assert not link.send([b"hello"], 0.2)
    assert hub.receive(0.2) is None


@pytest.mark.threat("T02")
def test_the_secret_of_somebody_else_is_refused(hub: Hub, keys: RunKeys) -> None:
    """The public key that is on the list, without its secret."""
    stolen = NodeKeys(keys.node.run, keys.node.server, keys.node.public, make_keys().node.secret)
    with linked(stolen, hub.port) as link:
        assert next_event(link) != "up"
        assert not link.send([b"hello"], 0.2)
    assert hub.receive(0.2) is None


@contextlib.contextmanager
def plain(port: int, **options: Any) -> Iterator[zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sock = context.socket(zmq.DEALER)
    sock.linger = 0
    for name, value in options.items():
        setattr(sock, name, value)
    sock.connect(f"tcp://{HOST}:{port}")
    try:
        yield sock
    finally:
        sock.close(0)
        context.term()


@pytest.mark.threat("T02")
@pytest.mark.parametrize(
    "options", [{}, {"plain_username": b"admin", "plain_password": b"admin"}], ids=["NULL", "PLAIN"]
)
def test_another_mechanism_is_refused(hub: Hub, keys: RunKeys, options: dict[str, Any]) -> None:
    with plain(hub.port, **options) as sock:
        sock.send(b"hello")
        assert hub.receive(0.5) is None
        assert not sock.poll(0)
    with linked(keys.node, hub.port) as link:
        talk(hub, link)


@pytest.mark.threat("T03")
def test_a_false_head_never_gets_a_byte_of_the_hello(keys: RunKeys) -> None:
    """Somebody else on the port of the head, with keys of his own, lets everybody in and gets nothing."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    false = context.socket(zmq.ROUTER)
    false.linger = 0
    theirs = make_keys()
    false.curve_server = True
    false.curve_secretkey, false.curve_publickey = theirs.secret.encode(), theirs.node.server.encode()
    port = false.bind_to_random_port(f"tcp://{HOST}")
    try:
        with linked(keys.node, port) as link:
            assert not link.send([b"hello"], 0.5)
            assert "up" not in link.events()
            assert not false.poll(200)
    finally:
        false.close(0)
        context.term()


@pytest.mark.threat("T03")
def test_a_head_without_encryption_gets_nothing_but_a_greeting(keys: RunKeys) -> None:
    """Whatever listens there sees the greeting of ZeroMQ, and nothing that we wanted to send."""
    with socket.create_server((HOST, 0)) as listener, linked(keys.node, listener.getsockname()[1]) as link:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(LIMIT_S)
            assert not link.send([b"canary of the hello"], 0.2)
            greeting = b"\xff" + b"\x00" * 8 + b"\x7f\x03\x00NULL".ljust(55, b"\x00")
            connection.sendall(greeting)
            seen = connection.recv(4096)
            with contextlib.suppress(OSError):
                while more := connection.recv(4096):
                    seen += more
            assert b"canary" not in seen
            assert keys.node.secret.encode() not in seen
            assert keys.node.public.encode() not in seen
    assert len(seen) <= 64


def test_a_node_comes_back_to_a_head_that_was_gone(keys: RunKeys) -> None:
    hub = Hub(keys, HOST, quiet_port())  # nobody else gets it while it is closed
    try:
        with linked(keys.node, hub.port) as link:
            assert next_event(link) == "up"
            first = talk(hub, link)
            hub.close()
            assert next_event(link) == "down"
            # The news may overtake the end of the connection within libzmq, so the first messages may go nowhere.
            wait_until(lambda: not link.send([b"nobody hears this"]), LIMIT_S)
            hub = Hub(keys, HOST, hub.port)
            assert next_event(link) == "up"
            assert talk(hub, link, b"again")
            assert first
    finally:
        hub.close()


@pytest.mark.fault("F45")
def test_a_port_that_is_taken(hub: Hub, keys: RunKeys) -> None:
    with pytest.raises(LaunchError, match=rf"the head cannot listen on {HOST}:{hub.port}: Address already in use"):
        Hub(keys, HOST, hub.port)
    with linked(keys.node, hub.port) as link:
        talk(hub, link)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_that_is_not_ours(keys: RunKeys, host: str) -> None:
    with pytest.raises(LaunchError, match=rf"the head cannot listen on {host}:\*: "):
        Hub(keys, host)


@pytest.mark.fault("F47")
def test_ipv6(keys: RunKeys) -> None:
    if not socket.has_ipv6 or "00000000000000000000000000000001" not in _text("/proc/net/if_inet6"):
        pytest.skip("this host has no IPv6 loopback")
    with contextlib.closing(Hub(keys, "::1")) as hub:
        link = Link(keys.node, Address("::1", hub.port))
        try:
            talk(hub, link)
        finally:
            link.close()


def _text(path: str) -> str:
    return pathlib.Path(path).read_text() if pathlib.Path(path).exists() else ""


GARBAGE = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "nothing": b"",
    "random": random.Random(7).randbytes(10_000),
    "a greeting, then a frame of 8 exabytes": b"\xff" + b"\x00" * 8 + b"\x7f\x03\x00CURVE".ljust(55, b"\x00")
    + b"\x06" + b"\x7f" + b"\xff" * 7,
    "a greeting, then a false hello": b"\xff" + b"\x00" * 8 + b"\x7f\x03\x00CURVE".ljust(55, b"\x00")
    + b"\x04\xc8" + b"\x05HELLO" + b"\x01\x00" + b"\xaa" * 192,
}  # fmt: skip


@pytest.mark.threat("T05", "T06")
@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_at_the_port(hub: Hub, keys: RunKeys, data: bytes) -> None:
    with linked(keys.node, hub.port) as link:
        talk(hub, link)
        for _ in range(5):
            with socket.create_connection((HOST, hub.port), LIMIT_S) as raw, contextlib.suppress(OSError):
                raw.sendall(data)
                raw.shutdown(socket.SHUT_WR)
                while raw.recv(4096):
                    pass
        talk(hub, link, b"still here")
    with linked(keys.node, hub.port) as late:
        talk(hub, late, b"and open")
    assert hub.receive(0.05) is None


@pytest.mark.threat("T22")
def test_a_stranger_hears_a_greeting_and_nothing_else(hub: Hub) -> None:
    heard = b""
    with socket.create_connection((HOST, hub.port), LIMIT_S) as raw, contextlib.suppress(ConnectionError):
        raw.sendall(b"\xff" + b"\x00" * 8 + b"\x7f\x03\x00CURVE".ljust(55, b"\x00"))
        while more := raw.recv(4096):
            heard += more
            if len(heard) == 64:
                raw.shutdown(socket.SHUT_WR)
    assert heard.startswith(b"\xff")
    assert heard.rstrip(b"\x00").endswith(b"CURVE")
    assert len(heard) == 64


@pytest.mark.threat("T05")
def test_500_connections_that_say_nothing(hub: Hub, keys: RunKeys) -> None:
    with linked(keys.node, hub.port) as link, contextlib.ExitStack() as stack:
        talk(hub, link)
        for _ in range(500):
            stack.enter_context(socket.create_connection((HOST, hub.port), LIMIT_S))
        talk(hub, link, b"still here")
        with linked(keys.node, hub.port) as late:
            talk(hub, late, b"and open")


@pytest.mark.threat("T05")
def test_connections_that_come_and_go(hub: Hub, keys: RunKeys) -> None:
    with linked(keys.node, hub.port) as link:
        talk(hub, link)
        for _ in range(500):
            socket.create_connection((HOST, hub.port), LIMIT_S).close()
        talk(hub, link, b"still here")


@pytest.mark.threat("T08")
def test_a_peer_that_never_reads_holds_nobody_up(hub: Hub, keys: RunKeys) -> None:
    """What it is sent waits in a bounded number; then it is told that nothing more is taken, and no call blocks."""
    with linked(keys.node, hub.port) as deaf, linked(keys.node, hub.port) as other:
        assert deaf.send([b"hello"], LIMIT_S)
        peer, _ = arrive(hub)
        sent = next(count for count in range(10**6) if not hub.send(peer, [bytes(10_000)]))
        assert 1_000 < sent < 50_000, "its socket, ours, and the buffers of the system between them"
        talk(hub, other)


@pytest.mark.threat("T05")
def test_a_slow_handshake_is_cut_off(hub: Hub) -> None:
    """Well before libzmq's own 30 seconds."""
    with socket.create_connection((HOST, hub.port), LIMIT_S) as raw:
        raw.sendall(b"\xff")
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while raw.recv(4096):
                pass
        assert time.monotonic() - began < LIMIT_S


def test_what_is_in_no_message_of_ours_arrives_as_pieces_and_is_refused(hub: Hub, keys: RunKeys) -> None:
    """A peer with the keys that speaks ZeroMQ, but not our protocol."""
    from clusterenv.errors import ProtocolError

    curve = {
        "curve_serverkey": keys.node.server.encode(),
        "curve_publickey": keys.node.public.encode(),
        "curve_secretkey": keys.node.secret.encode(),
    }
    with plain(hub.port, **curve) as sock:
        for pieces in ([b""], [b"\x07"], [b"\x01\xff\xff\xff\xff"], [b"x"] * 1000):
            sock.send_multipart(pieces)
            got = hub.receive(LIMIT_S)
            assert got is not None
            with pytest.raises(ProtocolError):
                split(got[1])


def test_a_frame_of_the_largest_size_arrives_and_a_larger_one_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, keys: RunKeys
) -> None:
    monkeypatch.setattr("clusterenv.transport.sockets.MAX_FRAME_BYTES", largest := 10**6)
    with contextlib.closing(Hub(keys, HOST)) as hub, linked(keys.node, hub.port) as link:
        assert next_event(link) == "up"
        for size in (largest - 1, largest):
            assert link.send([bytes(size)])
            assert arrive(hub)[1] == [bytes(size)]
        assert link.send([bytes(largest + 64)])
        assert next_event(link) == "down"
        assert hub.receive(0.0) is None
        talk(hub, link, b"back again")


def test_the_options_that_libzmq_would_get_wrong(hub: Hub, keys: RunKeys) -> None:
    with linked(keys.node, hub.port) as link:
        for sock in (hub._socket, link._socket):
            assert sock.linger == 0
            assert sock.maxmsgsize == 2**30 + 64, "what encryption adds is 33"
            assert sock.getsockopt(zmq.HEARTBEAT_IVL) == 2_000
            assert sock.getsockopt(zmq.HEARTBEAT_TIMEOUT) == 6_000
            assert sock.getsockopt(zmq.HANDSHAKE_IVL) == 5_000
            assert sock.getsockopt(zmq.ROUTING_ID) == b""
        assert link._socket.getsockopt(zmq.RECONNECT_IVL_MAX) == 2_000
        assert link._socket.immediate
