"""The node program as its own process: how it gets in, and how it ends."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from clusterenv._version import __version__
from clusterenv.cli.exits import INTERRUPTED, LOST, NOT_STARTED, OK
from clusterenv.errors import GivenUp, LaunchError
from clusterenv.node import member
from clusterenv.node.member import Membership, run_node
from clusterenv.private import write_private
from clusterenv.transport.security import NodeKeys, RunKeys, make_keys
from clusterenv.transport.sockets import Address, Hub, Link
from clusterenv.wire import messages as m
from clusterenv.wire.frames import split
from tests.zoo import quiet_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LIMIT_S = 30.0
HOST = "127.0.0.1"
ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def keys() -> RunKeys:
    return make_keys()


@pytest.fixture
def hub(keys: RunKeys) -> Iterator[Hub]:
    # On a port that nobody else gets when it is closed.
    with contextlib.closing(Hub(keys, HOST, quiet_port())) as made:
        yield made


@contextlib.contextmanager
def node(
    folder: pathlib.Path, keys: NodeKeys, port: int, *more: str, stdin: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """`clusterenv node` as a process, with a key file or with its keys through standard input."""
    key_file = "-"
    if not stdin:
        key_file = str(folder / "node.key")
        write_private(pathlib.Path(key_file), keys.text())
    words = [
        "--head",
        Address(HOST, port).url,
        "--key-file",
        key_file,
        "--import",
        "tests.node.worlds",
        "--workers",
        "1",
        *more,
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "clusterenv", "node", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
    )
    assert process.stdin
    try:
        if stdin:
            process.stdin.write(keys.text() + "\n")
            process.stdin.flush()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        assert process.stdout
        process.stdout.close()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    code = process.wait(LIMIT_S)
    assert process.stdout
    return code, process.stdout.read()


def hello_of(hub: Hub) -> tuple[bytes, m.Hello]:
    got = hub.receive(LIMIT_S)
    assert got is not None
    hello = m.decode_from_node(split(got[1]))
    assert isinstance(hello, m.Hello)
    return got[0], hello


def tell(hub: Hub, peer: bytes, message: m.Message) -> None:
    assert hub.send(peer, [m.encode(message)])


def welcome(hub: Hub, peer: bytes) -> None:
    """Let a node in, and wait until it knows: then it beats."""
    tell(hub, peer, m.Welcome(silence_s=1.0, beat_s=60.0))
    got = hub.receive(LIMIT_S)
    assert got is not None
    assert isinstance(m.decode_from_node(split(got[1])), m.Beat)


def wait_for_beat(hub: Hub) -> None:
    """The first beat tells that the node is in."""
    got = hub.receive(LIMIT_S)
    assert got is not None
    assert isinstance(m.decode_from_node(split(got[1])), m.Beat)


def goodbye(hub: Hub) -> m.Leave:
    """The next goodbye of a node."""
    while True:
        got = hub.receive(LIMIT_S)
        assert got is not None
        message = m.decode_from_node(split(got[1]))
        if isinstance(message, m.Leave):
            return message


def test_how_it_introduces_itself(hub: Hub, keys: RunKeys, tmp_path: pathlib.Path) -> None:
    with node(tmp_path, keys.node, hub.port) as process:
        peer, hello = hello_of(hub)
        assert (hello.protocol, hello.clusterenv, hello.run) == (m.PROTOCOL, __version__, keys.node.run)
        assert (hello.workers, hello.imports, hello.name) == (1, ["tests.node.worlds"], socket.gethostname()[:256])
        tell(hub, peer, m.Welcome(silence_s=10.0, beat_s=0.1))
        got = hub.receive(LIMIT_S)
        assert got is not None
        assert m.decode_from_node(split(got[1])) == m.Beat(progress=[], seen=0)
        tell(hub, peer, m.Close(limit_s=1.0))
        code, said = ended(process)
        assert code == OK
        assert keys.node.secret not in said


@pytest.mark.fault("F54")
def test_a_refusal_is_shown_and_is_no_crash(hub: Hub, keys: RunKeys, tmp_path: pathlib.Path) -> None:
    with node(tmp_path, keys.node, hub.port) as process:
        peer, _ = hello_of(hub)
        tell(hub, peer, m.Refuse(reason="all 2 nodes\x1b[2J are there\x07 already"))
        code, said = ended(process)
    assert code == NOT_STARTED
    # Nothing of a head's words steers the terminal of whoever started the node.
    assert "LaunchError: the head refused this node: all 2 nodes are there already" in said
    assert "Traceback" not in said


def test_a_node_that_is_given_up_tells_that_a_fresh_one_is_wanted(
    hub: Hub, keys: RunKeys, tmp_path: pathlib.Path
) -> None:
    with node(tmp_path, keys.node, hub.port) as process:
        peer, _ = hello_of(hub)
        tell(hub, peer, m.Welcome(silence_s=60.0, beat_s=60.0))
        tell(hub, peer, m.Refuse(reason="given up: it was silent"))
        code, said = ended(process)
    assert code == GivenUp.exit_code
    assert "GivenUp: the head refused this node: given up: it was silent" in said
    assert "Traceback" not in said


def test_it_ends_with_its_standard_input(hub: Hub, keys: RunKeys, tmp_path: pathlib.Path) -> None:
    with node(tmp_path, keys.node, hub.port, stdin=True) as process:
        peer, _ = hello_of(hub)
        tell(hub, peer, m.Welcome(silence_s=60.0, beat_s=60.0))
        assert process.stdin
        process.stdin.close()
        code, said = ended(process)
    assert code == OK
    assert "standard input was closed" in said
    assert goodbye(hub) == m.Leave(reason="standard input was closed")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_a_signal_ends_it_with_a_goodbye(
    hub: Hub, keys: RunKeys, tmp_path: pathlib.Path, number: signal.Signals
) -> None:
    with node(tmp_path, keys.node, hub.port) as process:
        peer, _ = hello_of(hub)
        tell(hub, peer, m.Welcome(silence_s=60.0, beat_s=60.0))
        wait_for_beat(hub)
        process.send_signal(number)
        code, said = ended(process)
    assert code == OK
    assert goodbye(hub) == m.Leave(reason=f"signal {number.name}", preempted=True)
    assert "Traceback" not in said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, OK)])
def test_who_was_never_let_in_is_interrupted_as_any_program(
    hub: Hub, keys: RunKeys, tmp_path: pathlib.Path, number: signal.Signals, code: int
) -> None:
    with node(tmp_path, keys.node, hub.port) as process:
        hello_of(hub)
        process.send_signal(number)
        found, said = ended(process)
    assert found == code
    assert goodbye(hub) == m.Leave(reason=f"signal {number.name}", preempted=True)
    assert "Traceback" not in said


def test_a_head_that_is_gone(hub: Hub, keys: RunKeys, tmp_path: pathlib.Path) -> None:
    with node(tmp_path, keys.node, hub.port) as process:
        peer, _ = hello_of(hub)
        welcome(hub, peer)
        began = time.monotonic()
        hub.close()
        code, said = ended(process)
        assert time.monotonic() - began >= 1.0
    assert code == OK
    assert re.search(r"the head fell silent for \d+ s", said)


def test_a_watched_node_shows_that_it_is_in_touch_and_tells_how_it_ended(
    hub: Hub, keys: RunKeys, tmp_path: pathlib.Path
) -> None:
    alive = tmp_path / "alive"
    with node(tmp_path, keys.node, hub.port, "--alive-file", str(alive)) as process:
        peer, _ = hello_of(hub)
        assert not alive.exists(), "it has not joined"
        tell(hub, peer, m.Welcome(silence_s=60.0, beat_s=0.1))
        wait_until(alive.exists, LIMIT_S)
        os.utime(alive, (0, 0))
        tell(hub, peer, m.Heard())
        wait_until(lambda: alive.stat().st_mtime > 0, LIMIT_S)
        process.send_signal(signal.SIGTERM)
        code, _ = ended(process)
    assert code == LOST, "nobody has told it that the run is over"
    with node(tmp_path / "..", keys.node, hub.port, "--alive-file", str(alive), stdin=True) as process:
        while isinstance(m.decode_from_node(split((got := hub.receive(LIMIT_S) or (b"", []))[1])), (m.Beat, m.Leave)):
            pass  # of the first one
        tell(hub, got[0], m.Welcome(silence_s=60.0, beat_s=60.0))
        tell(hub, got[0], m.Close(limit_s=1.0))
        assert ended(process)[0] == OK


@contextlib.contextmanager
def slamming_door(port: int = 0) -> Iterator[int]:
    """Something else than a head, which takes every connection and closes it at once."""
    with socket.create_server((HOST, port)) as listener:

        def slam() -> None:
            with contextlib.suppress(OSError):
                while True:
                    listener.accept()[0].close()

        thread = threading.Thread(target=slam)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_somebody_else_on_the_port_of_a_head_that_is_gone(hub: Hub, keys: RunKeys, tmp_path: pathlib.Path) -> None:
    """Attempts that fail are no sign of life."""
    with node(tmp_path, keys.node, hub.port) as process:
        peer, _ = hello_of(hub)
        welcome(hub, peer)
        port = hub.port
        hub.close()
        with slamming_door(port):
            code, said = ended(process)
    assert code == OK
    assert "the head fell silent" in said


def in_process(heads: list[Address], keys: NodeKeys) -> None:
    run_node(Membership(heads=heads, keys=keys))


def test_something_else_than_a_head(monkeypatch: pytest.MonkeyPatch, keys: RunKeys) -> None:
    monkeypatch.setattr(member, "_JOIN_S", 1.0)
    with slamming_door() as port:
        began = time.monotonic()
        with pytest.raises(LaunchError, match=rf"the head at tcp\+curve://{HOST}:{port} (did not let|refused)"):
            in_process([Address(HOST, port)], keys.node)
        assert time.monotonic() - began < LIMIT_S


def test_the_keys_of_another_run(monkeypatch: pytest.MonkeyPatch, hub: Hub) -> None:
    monkeypatch.setattr(member, "_JOIN_S", 1.0)
    began = time.monotonic()
    with pytest.raises(LaunchError, match=r"key file"):
        in_process([Address(HOST, hub.port)], make_keys().node)
    assert time.monotonic() - began < LIMIT_S
    assert hub.receive(0.1) is None


def test_a_head_that_says_nothing(monkeypatch: pytest.MonkeyPatch, hub: Hub, keys: RunKeys) -> None:
    monkeypatch.setattr(member, "_WELCOME_S", 1.0)
    with pytest.raises(LaunchError, match=r"did not let this node in within 1 s"):
        in_process([Address(HOST, hub.port)], keys.node)


@pytest.mark.fault("F47")
def test_no_head_can_be_reached(keys: RunKeys) -> None:
    one, other = quiet_port(), quiet_port()
    with pytest.raises(LaunchError) as caught:
        in_process([Address(HOST, one), Address("no-such-host.invalid", other)], keys.node)
    said = str(caught.value)
    assert said.startswith(f"head address not reachable from the node {socket.gethostname()}: tried {HOST}:{one} (")
    assert f"{HOST}:{one} (Connection refused), no-such-host.invalid:{other} (" in said


@pytest.mark.fault("F47")
def test_the_first_address_that_answers_is_taken(monkeypatch: pytest.MonkeyPatch, hub: Hub, keys: RunKeys) -> None:
    taken: list[Address] = []

    def link(node_keys: NodeKeys, address: Address) -> Link:
        taken.append(address)
        return Link(node_keys, address)

    monkeypatch.setattr(member, "Link", link)
    monkeypatch.setattr(member, "_JOIN_S", 0.1)
    monkeypatch.setattr(member, "_WELCOME_S", 0.1)
    with pytest.raises(LaunchError, match="did not let"):
        in_process([Address(HOST, quiet_port()), Address(HOST, hub.port)], keys.node)
    assert taken == [Address(HOST, hub.port)]


@pytest.mark.fault("F47")
def test_of_a_name_the_address_that_answered_is_taken(monkeypatch: pytest.MonkeyPatch, hub: Hub, keys: RunKeys) -> None:
    """libzmq would look the name up for itself, and take the IPv6 address. Messages show what the user wrote."""
    entries = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", hub.port, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (HOST, hub.port)),
    ]
    monkeypatch.setattr("socket.getaddrinfo", lambda *args: entries)
    monkeypatch.setattr(member, "_JOIN_S", 5.0)
    monkeypatch.setattr(member, "_WELCOME_S", 1.0)
    with pytest.raises(LaunchError, match=r"some-name\.invalid:\d+ did not let this node in within 1 s"):
        in_process([Address("some-name.invalid", hub.port)], keys.node)
    hello_of(hub)


HEAD = """
import sys
import numpy as np
from clusterenv import make_vec
from tests.node.by_hand import start_nodes_by_hand
from tests.node.worlds import COUNTING

start_nodes_by_hand(sys.argv[1])
envs = make_vec(COUNTING, 2, cluster="join:nodes=1,workers=2,bind=127.0.0.1,silence_s=3")
envs.reset(seed=0)
envs.step(np.zeros(2, int))
print(*envs.worker_pids(), flush=True)
sys.stdin.read()
"""


@pytest.mark.fault("F16")
def test_a_head_that_is_killed_leaves_nobody(tmp_path: pathlib.Path) -> None:
    """The node was not started by the head's hand and has no standard input: its lease runs out."""
    head = subprocess.Popen(
        [sys.executable, "-c", HEAD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert head.stdin
    assert head.stdout
    try:
        workers = [int(pid) for pid in head.stdout.readline().split()]
        assert len(workers) == 2
        family = {each.pid: each for pid in workers for each in (psutil.Process(pid), *psutil.Process(pid).parents())}
        nodes = [each for each in family.values() if "node" in each.cmdline() and "clusterenv" in each.cmdline()]
        (the_node,) = nodes
        ours = [the_node, *the_node.children(recursive=True)]
        assert {*workers} <= {each.pid for each in ours}
        os.kill(head.pid, signal.SIGKILL)
        head.wait()
        wait_until(lambda: not any(map(alive, ours)), LIMIT_S, lambda: f"still there: {[*filter(alive, ours)]}")
    finally:
        head.kill()
        head.wait()
        head.stdin.close()
        head.stdout.close()
    assert "the head fell silent" in (tmp_path / "node.log").read_text()


def alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


# Nodes that outlive their head.


def next_hello(hub: Hub) -> tuple[bytes, m.Hello, list[str]]:
    """The next hello, and the reasons of goodbyes before it."""
    reasons: list[str] = []
    while True:
        got = hub.receive(LIMIT_S)
        assert got is not None
        message = m.decode_from_node(split(got[1]))
        if isinstance(message, m.Hello):
            return got[0], message, reasons
        if isinstance(message, m.Leave):
            reasons.append(message.reason)


def test_a_node_that_keeps_trying_comes_back_as_a_fresh_one_and_to_no_earlier_head(hub: Hub, keys: RunKeys) -> None:
    told: list[bool] = []
    membership = Membership(heads=[Address(HOST, hub.port)], keys=keys.node, workers=1, keep_trying_s=LIMIT_S)
    thread = threading.Thread(target=lambda: told.append(run_node(membership)))
    thread.start()
    peer, first, _ = next_hello(hub)
    assert (first.epoch, first.fresh) == (0, True)
    tell(hub, peer, m.Welcome(silence_s=60.0, beat_s=60.0, epoch=2))
    tell(hub, peer, m.Refuse(reason="given up"))
    peer, second, _ = next_hello(hub)
    assert (second.epoch, second.fresh) == (2, True)
    assert second.incarnation != first.incarnation
    tell(hub, peer, m.Welcome(silence_s=60.0, beat_s=60.0, epoch=1))
    peer, third, reasons = next_hello(hub)
    assert (third.epoch, third.fresh) == (2, True)
    assert "is an earlier one (epoch 1); this node has served epoch 2" in reasons[-1]
    tell(hub, peer, m.Welcome(silence_s=60.0, beat_s=60.0, epoch=3))
    tell(hub, peer, m.Close(limit_s=1.0))
    thread.join(LIMIT_S)
    assert told == [True]


def test_a_broken_connection_is_not_a_new_life(hub: Hub, keys: RunKeys) -> None:
    """The same process says who it is, and that it is not fresh."""
    link = Link(keys.node, Address(HOST, hub.port))
    mine = member.Member(Membership(heads=[], keys=keys.node), link, Address(HOST, hub.port))
    try:
        fresh = mine._hello()
        mine._take([m.encode(m.Welcome(silence_s=60.0, beat_s=60.0, epoch=4))])
        again = mine._hello()
        assert (fresh.fresh, fresh.epoch, again.fresh, again.epoch) == (True, 0, False, 4)
        assert fresh.incarnation == again.incarnation
    finally:
        link.close()


@pytest.mark.parametrize(("name", "told"), [("n\udcff", "n?"), ("x" * 300, "x" * 256), ("", "h?st")])
def test_a_name_that_cannot_travel_is_made_one_that_can(
    hub: Hub, keys: RunKeys, monkeypatch: pytest.MonkeyPatch, name: str, told: str
) -> None:
    """The shell hands over any byte, and so may the system as the name of the host."""
    monkeypatch.setattr("socket.gethostname", lambda: "h\udcf6st")
    link = Link(keys.node, Address(HOST, hub.port))
    mine = member.Member(Membership(heads=[], keys=keys.node, name=name), link, Address(HOST, hub.port))
    try:
        assert m.decode_from_node([m.encode(mine._hello())]) == mine._hello()
        assert mine._hello().name == told
    finally:
        link.close()


def test_a_header_is_decoded_once(hub: Hub, keys: RunKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[m.FromHead] = []
    decode = m.decode_from_head

    def counted(frames: Sequence[Any]) -> m.FromHead:
        decoded.append(decode(frames))
        return decoded[-1]

    monkeypatch.setattr(m, "decode_from_head", counted)
    link = Link(keys.node, Address(HOST, hub.port))
    mine = member.Member(Membership(heads=[], keys=keys.node), link, Address(HOST, hub.port))
    try:
        mine._take([m.encode(m.Halt())])
        assert decoded == [m.Halt()]
    finally:
        link.close()


@pytest.mark.parametrize("keep_trying_s", [0.0, 60.0])
def test_keys_that_are_refused_are_refused_for_good(hub: Hub, keys: RunKeys, keep_trying_s: float) -> None:
    stranger = dataclasses.replace(make_keys().node, server=keys.node.server)
    heads = [Address(HOST, hub.port)]
    with pytest.raises(LaunchError, match="refused the keys of this node") as caught:
        run_node(Membership(heads=heads, keys=stranger, keep_trying_s=keep_trying_s))
    assert not isinstance(caught.value, member.NoHead)
