"""What peers have sent and nobody has read is bounded in bytes, whatever frames and messages it comes in."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import zmq

from clusterenv import make_vec
from clusterenv.transport import sockets, unread
from clusterenv.transport.arena import layout_size
from clusterenv.transport.security import RunKeys, make_keys
from clusterenv.transport.sockets import MAX_FRAME_BYTES, Address, Hub, Link
from clusterenv.wire.frames import split
from tests.faults.interrupts import interrupted_at
from tests.faults.link_head import Agent
from tests.zoo import wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

LIMIT_S = 60.0
HOST = "127.0.0.1"
MB = 10**6
# What may wait; what a hostile peer has; what the head may grow by, since looks are a tenth of a second apart.
MAY_WAIT, ENDLESS, MAY_GROW = 32 * MB, 6_000 * MB, 1_500 * MB
# How a client that is no libzmq greets without encryption, and what stands before a frame of a megabyte that is not the
# last of its message.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x1c\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
MORE_FOLLOWS = b"\x03" + struct.pack(">Q", MB)


@pytest.fixture(scope="module", autouse=True)
def pyzmq_has_its_thread() -> None:
    """The first large frame starts a thread of pyzmq, which stays to the end."""
    zmq.Frame(bytes(2**20), copy=False)


@pytest.fixture(scope="module")
def keys() -> RunKeys:
    return make_keys()


@pytest.fixture(autouse=True)
def little_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_UNREAD_BYTES", MAY_WAIT)


@contextlib.contextmanager
def linked(keys: RunKeys, hub: Hub, *, secure: bool = True) -> Iterator[Link]:
    link = Link(keys.node, Address(HOST, hub.port, secure))
    try:
        yield link
    finally:
        link.close()


def talk(hub: Hub, link: Link, word: bytes = b"hello") -> None:
    assert link.send([word], LIMIT_S)
    got = hub.receive(LIMIT_S)
    assert got is not None
    assert split(got[1]) == [word]


def memory() -> int:
    return int(psutil.Process().memory_info().rss)


def sent_until_cut_off(port: int, begin: bytes, again: bytes) -> tuple[int, int]:
    """What a peer that speaks for itself says once, and then without an end: (bytes sent, memory at the most)."""
    frame, sent, peak = memoryview(again), 0, memory()
    left = frame[:0]
    with socket.create_connection((HOST, port), LIMIT_S) as peer, contextlib.suppress(ConnectionError):
        peer.sendall(begin)
        peer.setblocking(False)
        while sent < ENDLESS:
            readable, writable, _ = select.select([peer], [peer], [], LIMIT_S)
            if not (readable or writable) or (readable and not peer.recv(4096)):
                break
            if writable:
                left = left or frame
                count = peer.send(left)
                left, sent = left[count:], sent + count
            peak = max(peak, memory())
    return sent, peak


@pytest.mark.threat("T08")
def test_a_message_without_an_end_is_cut_off(keys: RunKeys) -> None:
    """libzmq sends no message before it has all of it, and would take this one to the end of all memory."""
    before = memory()
    with contextlib.closing(Hub(keys, HOST, secure=False)) as hub, linked(keys, hub, secure=False) as honest:
        talk(hub, honest)
        sent, peak = sent_until_cut_off(hub.port, GREETING + READY, MORE_FOLLOWS + bytes(MB))
        assert MAY_WAIT <= sent < MAY_GROW
        assert peak - before < MAY_GROW
        assert hub.receive(0.0) is None, "nothing of it arrives"
        talk(hub, honest, b"still here")


@pytest.mark.threat("T06")
def test_a_stranger_is_cut_off(keys: RunKeys) -> None:
    """In its handshake: a command that is as large as a frame may be."""
    before = memory()
    greeting = GREETING.replace(b"NULL\0", b"CURVE")
    with contextlib.closing(Hub(keys, HOST)) as hub, linked(keys, hub) as honest:
        talk(hub, honest)
        begin = greeting + b"\x06" + struct.pack(">Q", MAX_FRAME_BYTES)
        sent, peak = sent_until_cut_off(hub.port, begin, bytes(MB))
        assert sent < MAY_GROW
        assert peak - before < MAY_GROW
        talk(hub, honest, b"still here")


FLOOD = """
import sys, zmq
server, public, secret, port, messages, frames = sys.argv[1:]
sock = zmq.Context().socket(zmq.DEALER)
sock.curve_serverkey, sock.curve_publickey, sock.curve_secretkey = server.encode(), public.encode(), secret.encode()
sock.connect(f"tcp://127.0.0.1:{port}")
for _ in range(int(messages)):
    sock.send_multipart([bytes(10**6)] * int(frames))
print("sent", flush=True)
sys.stdin.read()
"""


@pytest.mark.threat("T08")
@pytest.mark.parametrize(("messages", "frames"), [(1, 400), (400, 1)], ids=["one message", "many"])
def test_a_peer_with_the_keys_is_cut_off_as_well(
    keys: RunKeys, messages: int, frames: int, caplog: pytest.LogCaptureFixture
) -> None:
    """400 MB, in one message or in as many as libzmq takes, that nobody reads. Others are not harmed."""
    mine = keys.node
    words = [mine.server, mine.public, mine.secret]
    with contextlib.closing(Hub(keys, HOST)) as hub, linked(keys, hub) as honest:
        talk(hub, honest)
        command = [sys.executable, "-c", FLOOD, *words, str(hub.port), str(messages), str(frames)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as hostile:
            try:
                wait_until(lambda: bool(caplog.records), LIMIT_S)
            finally:
                hostile.kill()
        assert "wait to be read, more than the 32 MB that may: the connection with the most" in caplog.text
        assert honest.send([b"still here"])
        wait_until(lambda: (got := hub.receive(LIMIT_S)) is not None and bytes(got[1][0]).endswith(b"here"), LIMIT_S)


def test_what_is_read_does_not_count(keys: RunKeys, caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.closing(Hub(keys, HOST)) as hub, linked(keys, hub) as link:
        for _ in range(200):
            talk(hub, link, bytes(MB))
        for number in range(5_000):
            talk(hub, link, str(number).encode())
        assert not caplog.records
        assert "down" not in link.events()


def test_more_may_wait_where_nodes_have_more_to_send(keys: RunKeys) -> None:
    with contextlib.closing(Hub(keys, HOST)) as hub:
        hub.expect(10 * MB)
        assert hub._unread.limit == MAY_WAIT + 40 * MB
        hub.expect(MB)
        assert hub._unread.limit == MAY_WAIT + 40 * MB, "what was expected once may come"


def test_what_environments_and_fragments_need_is_expected() -> None:
    with contextlib.closing(make_vec("CartPole-v1", 2, cluster="tcp:nodes=1,workers=1")) as envs:
        node: Any = envs._engine.node
        limit = node._joining._hub._unread.limit
        assert limit >= MAY_WAIT + 4 * layout_size(node._arena.spec)
        envs.reset(seed=0)
        envs.attach(Agent(4), seed=0)
        envs.rollout(500)
        assert node._joining._hub._unread.limit >= limit + 4 * 500 * 2 * 16, (
            "of two slots, sixteen bytes a step and more"
        )


def test_a_frame_of_the_largest_size_may_wait(monkeypatch: pytest.MonkeyPatch, keys: RunKeys) -> None:
    monkeypatch.undo()
    with contextlib.closing(Hub(keys, HOST)) as hub:
        assert hub._unread.limit > MAX_FRAME_BYTES


def test_a_descriptor_that_is_something_else_by_now_is_left_alone(tmp_path: pathlib.Path) -> None:
    """libzmq has closed its connection, and the number is that of a file, or of a connection of the user's."""
    with socket.create_server((HOST, 0)) as server, socket.create_connection(server.getsockname()) as mine:
        there, _ = server.accept()
        with there, (tmp_path / "file").open("wb") as file:
            port = server.getsockname()[1]
            mine.sendall(b"four")
            wait_until(lambda: unread._received(there.fileno(), port) == 4, LIMIT_S)
            before = os.listdir("/proc/self/fd")
            for number in (mine.fileno(), file.fileno(), 10**6):
                assert unread._received(number, port) is None
                unread._shut(number, port)
            assert len(os.listdir("/proc/self/fd")) == len(before)
            there.sendall(b"back")
            assert mine.recv(4) == b"back"


def test_after_an_interrupt_in_the_midst_it_can_be_closed_again(keys: RunKeys) -> None:
    """A socket that was left open would let libzmq wait for ever."""
    hub = Hub(keys, HOST)
    with interrupted_at(threading.Thread, "join", 1):
        hub.close()
    hub.close()
    assert hub._unread._events.closed
