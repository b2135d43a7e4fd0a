"""The proxy does to connections what it is told; head and node notice, and lose and repeat nothing."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import clusterenv
from clusterenv.errors import ConfigError, LaunchError
from clusterenv.node import remote
from clusterenv.testing import FaultProxy, History, check_history, echo_slots
from tests.zoo import quiet_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOST, LIMIT_S = "127.0.0.1", 30.0
ROOT = pathlib.Path(__file__).resolve().parents[2]
NUM_ENVS = 4


class Ends:
    """Both ends of a connection through a proxy."""

    def __init__(self, proxy: FaultProxy, server: socket.socket) -> None:
        self.proxy, self.server = proxy, server
        self.client, self.there = self.connect()

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """Another connection."""
        before = self.proxy.accepted
        client = socket.create_connection((HOST, self.proxy.port), LIMIT_S)
        there, _ = self.server.accept()
        there.settimeout(LIMIT_S)
        wait_until(lambda: self.proxy.accepted == before + 1, LIMIT_S)
        return client, there


@pytest.fixture
def ends() -> Iterator[Ends]:
    with socket.create_server((HOST, 0)) as server:
        server.settimeout(LIMIT_S)
        with FaultProxy(HOST, server.getsockname()[1], seed=1) as proxy:
            made = Ends(proxy, server)
            with made.client, made.there:
                yield made


def read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        assert more, f"the end after {data!r}"
        data += more
    return data


def read_all(sock: socket.socket) -> bytes:
    data = b""
    while more := sock.recv(2**16):
        data += more
    return data


def test_bytes_pass_both_ways_in_order(ends: Ends) -> None:
    data = os.urandom(2**20)
    sender = threading.Thread(target=ends.client.sendall, args=(data,))
    sender.start()
    assert read(ends.there, len(data)) == data
    sender.join(LIMIT_S)
    ends.there.sendall(b"back")
    assert read(ends.client, 4) == b"back"
    assert (ends.proxy.passed("up"), ends.proxy.passed("down")) == (2**20, 4)
    assert ends.proxy.connections == ends.proxy.accepted == 1


def test_the_end_of_one_direction_leaves_the_other(ends: Ends) -> None:
    ends.client.shutdown(socket.SHUT_WR)
    assert read_all(ends.there) == b""
    ends.there.sendall(b"still here")
    assert read(ends.client, 10) == b"still here"
    ends.there.close()
    assert read_all(ends.client) == b""
    wait_until(lambda: ends.proxy.connections == 0, LIMIT_S)


def took(ends: Ends, data: bytes) -> float:
    """How long it takes from before it is sent until it has arrived."""
    began = time.monotonic()
    ends.client.sendall(data)
    assert read(ends.there, len(data)) == data
    return time.monotonic() - began


def test_delay_jitter_and_rate_take_at_least_their_time(ends: Ends) -> None:
    """Only the least is asserted: a busy machine may make everything later."""
    ends.proxy.set("up", delay_s=0.2)
    assert took(ends, b"x") > 0.1
    ends.proxy.set("up", delay_s=0.0, jitter_s=0.05)
    for number in range(20):
        ends.client.sendall(bytes([number]))
    assert read(ends.there, 20) == bytes(range(20)), "the order stays"
    ends.proxy.set("up", jitter_s=0.0, bytes_per_s=50_000)
    assert took(ends, bytes(20_000)) > 0.2
    ends.proxy.set("up", bytes_per_s=float("inf"))
    ends.client.sendall(bytes(20_000))
    read(ends.there, 20_000)


def test_a_stalled_direction_holds_everything_back(ends: Ends) -> None:
    with ends.proxy.stalled("up"):
        ends.client.sendall(b"later")
        ends.there.sendall(b"now")
        assert read(ends.client, 3) == b"now"
        ends.there.setblocking(False)
        with pytest.raises(BlockingIOError):
            ends.there.recv(1)
        ends.there.settimeout(LIMIT_S)
        assert ends.proxy.passed("up") == 0
    assert read(ends.there, 5) == b"later"


def test_the_end_of_an_inner_stall_does_not_lift_the_outer_one(ends: Ends) -> None:
    with ends.proxy.stalled("up"):
        with ends.proxy.stalled("both"):
            ends.client.sendall(b"later")
            ends.there.sendall(b"soon")
        assert read(ends.client, 4) == b"soon", "this way was stalled by the inner one alone"
        ends.there.setblocking(False)
        with pytest.raises(BlockingIOError):
            ends.there.recv(1)
        ends.there.settimeout(LIMIT_S)
        assert ends.proxy.passed("up") == 0
    assert read(ends.there, 5) == b"later"


def test_a_direction_that_drops(ends: Ends) -> None:
    ends.proxy.set("up", drop=True)
    ends.client.sendall(b"gone")
    ends.there.sendall(b"here")
    assert read(ends.client, 4) == b"here"
    ends.client.shutdown(socket.SHUT_WR)
    assert read_all(ends.there) == b""


def test_one_bit_is_flipped_once(ends: Ends) -> None:
    ends.proxy.corrupt("up")
    ends.client.sendall(bytes(100))
    assert sum(byte.bit_count() for byte in read(ends.there, 100)) == 1
    ends.client.sendall(bytes(100))
    assert read(ends.there, 100) == bytes(100)


def test_a_chunk_that_comes_twice(ends: Ends) -> None:
    ends.proxy.duplicate("down")
    ends.there.sendall(b"twice")
    assert read(ends.client, 10) == b"twicetwice"
    ends.there.sendall(b"once")
    ends.there.close()
    assert read_all(ends.client) == b"once"


def test_connections_that_are_cut(ends: Ends) -> None:
    ends.proxy.cut()
    assert read_all(ends.client) == read_all(ends.there) == b""
    assert ends.proxy.connections == 0
    client, there = ends.connect()
    with client, there:
        client.sendall(b"again")
        assert read(there, 5) == b"again"
    assert ends.proxy.accepted == 2


def test_connections_that_are_reset(ends: Ends) -> None:
    ends.proxy.reset()
    for sock in (ends.client, ends.there):
        with pytest.raises(ConnectionResetError):
            sock.recv(1)


def test_a_reset_in_the_middle_of_a_message(ends: Ends) -> None:
    ends.proxy.reset_after(10, "up")
    ends.client.sendall(bytes(6))
    assert read(ends.there, 6) == bytes(6)
    ends.client.sendall(bytes(6))
    with pytest.raises(ConnectionResetError):
        read(ends.there, 6)
    assert ends.proxy.passed("up") == 10
    client, there = ends.connect()
    with client, there:
        client.sendall(bytes(100))
        assert read(there, 100) == bytes(100), "once"


def test_a_reset_of_one_side_reaches_the_other(ends: Ends) -> None:
    ends.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    ends.client.close()
    with pytest.raises(ConnectionResetError):
        ends.there.recv(1)


def is_reset(proxy: FaultProxy) -> None:
    """A new connection is reset: while it is made, or when it is read from."""
    with pytest.raises(ConnectionResetError), socket.create_connection((HOST, proxy.port), LIMIT_S) as client:
        client.recv(1)


def test_new_connections_are_refused(ends: Ends) -> None:
    with ends.proxy.refusing():
        is_reset(ends.proxy)
        ends.client.sendall(b"old")
        assert read(ends.there, 3) == b"old"
    client, there = ends.connect()
    client.close()
    there.close()


def test_nobody_is_there() -> None:
    with FaultProxy(HOST, quiet_port()) as proxy:
        is_reset(proxy)
        assert proxy.accepted == 0


def test_what_is_refused(ends: Ends) -> None:
    with pytest.raises(ConfigError, match="way='left' must be 'up', 'down' or 'both'"):
        ends.proxy.corrupt("left")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"delay_s=-1 must be at least 0"):
        ends.proxy.set(delay_s=-1)
    with pytest.raises(ConfigError, match=r"bytes_per_s=0 must be at least 1"):
        ends.proxy.set(bytes_per_s=0)
    with pytest.raises(ConfigError, match=r"count=-1 must be at least 0"):
        ends.proxy.reset_after(-1)
    with pytest.raises(LaunchError, match="cannot listen"):
        FaultProxy(HOST, 1, listen=ends.proxy.port)


def test_closing_twice() -> None:
    proxy = FaultProxy(HOST, 1)
    proxy.close()
    proxy.close()


# A head, and a node that reaches it through a proxy.


@contextlib.contextmanager
def joined(
    folder: pathlib.Path, silence_s: float = 10.0, **kwargs: Any
) -> Iterator[tuple[clusterenv.ClusterEnv, FaultProxy]]:
    """A batch on one node behind a proxy."""
    port, token = quiet_port(), folder / "token"
    nodes: list[subprocess.Popen[bytes]] = []
    with FaultProxy(HOST, port, seed=3) as proxy:
        words = [sys.executable, "-m", "clusterenv", "join", f"cluster://{HOST}:{proxy.port}"]
        words += ["--token-file", str(token), "--import", "clusterenv.testing", "--workers", "2"]

        def start() -> None:
            wait_until(lambda: token.exists() and token.stat().st_size > 0, LIMIT_S)
            environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
            nodes.append(subprocess.Popen(words, env=environ, stderr=subprocess.DEVNULL))

        starting = threading.Thread(target=start)
        starting.start()
        cluster = clusterenv.Join(nodes=1, workers=2, bind=f"{HOST}:{port}", token_file=str(token), silence_s=silence_s)
        slots = echo_slots(NUM_ENVS)
        try:
            with clusterenv.make_vec(
                "clusterenv.testing:Echo-v0", NUM_ENVS, cluster=cluster, slot_kwargs=slots, **kwargs
            ) as envs:
                yield envs, proxy
        finally:
            starting.join(LIMIT_S)
            for node in nodes:
                node.terminate()
                node.wait(LIMIT_S)


HURTS: dict[str, Callable[[FaultProxy], None]] = {
    "a bit of a request is flipped": lambda proxy: proxy.corrupt("down"),
    "a bit of a reply is flipped": lambda proxy: proxy.corrupt("up"),
    "a request comes twice": lambda proxy: proxy.duplicate("down"),
    "a reply comes twice": lambda proxy: proxy.duplicate("up"),
    "a reset inside a request": lambda proxy: proxy.reset_after(60, "down"),
    "a reset inside a reply": lambda proxy: proxy.reset_after(60, "up"),
    "a reset": lambda proxy: proxy.reset(),
    "an end": lambda proxy: proxy.cut(),
}


@pytest.mark.fault("F26", "F32")
def test_a_connection_that_breaks_costs_no_step_and_doubles_none(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_AGAIN_S", 0.3)
    with joined(tmp_path) as (envs, proxy):
        for hurt, act in HURTS.items():
            history = History(NUM_ENVS)
            history.reset(envs.reset(seed=1)[0])
            before = proxy.accepted
            for turn in range(40):
                if turn == 10:
                    act(proxy)
                actions = np.full(NUM_ENVS, turn)
                history.step(actions, envs.step(actions))
            assert check_history(history) == [], hurt
            assert history.counts()["lost"] == 0, hurt
            # What is not right is never taken: the connection is given up, and renewed.
            assert proxy.accepted == before + 1, hurt


@pytest.mark.fault("F24")
@pytest.mark.parametrize(("delay_s", "jitter_s"), [(0.05, 0.05), (0.2, 0.0)])
def test_a_link_that_is_slow_to_answer_costs_no_step(tmp_path: pathlib.Path, delay_s: float, jitter_s: float) -> None:
    with joined(tmp_path) as (envs, proxy):
        history = History(NUM_ENVS)
        history.reset(envs.reset(seed=1)[0])
        before = proxy.accepted
        proxy.set("both", delay_s=delay_s, jitter_s=jitter_s)
        for turn in range(10):
            actions = np.full(NUM_ENVS, turn)
            history.step(actions, envs.step(actions))
        assert check_history(history) == []
        assert history.counts()["lost"] == 0
        assert proxy.accepted == before, "nobody has taken slowness for a loss"


@pytest.mark.fault("F27")
def test_a_connection_that_is_half_open_is_noticed(tmp_path: pathlib.Path) -> None:
    """Nothing passes, and nobody is told: neither end would ever hear of it from its kernel."""
    with joined(tmp_path, silence_s=5.0, on_loss="raise") as (envs, proxy):
        envs.reset(seed=1)
        envs.step(np.zeros(NUM_ENVS, int))
        with proxy.stalled(), pytest.raises(clusterenv.WorkerLost, match="silent for"):
            envs.step(np.zeros(NUM_ENVS, int))
        assert proxy.accepted >= 1
