"""Streams whose workers and nodes come and go: the others play on, and who comes back takes part again."""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import clusterenv
from clusterenv import ConfigError, EnvError, LaunchError, Timeouts, WorkerLost, WorkersMissing
from tests.env.policies import Linear
from tests.faults.envs import SwitchedEnv
from tests.faults.kit import LIMIT_S, Gate, batch, each, kill
from tests.faults.link_head import Agent
from tests.zoo import CountingEnv, wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator

    from clusterenv import ClusterEnv

SLOW = Timeouts(step_s=20.0, reset_s=20.0, call_s=20.0, start_s=LIMIT_S, close_s=5.0)


def on_two_workers(first: Callable[[int], Callable[[], Any]], on_loss: str) -> Any:
    """Slots 0 and 1 of this kind on one worker, plain ones on the other."""
    return batch([first(0), first(1), *each(4, CountingEnv, 10**6)[2:]], on_loss=on_loss, timeouts=SLOW)


@contextlib.contextmanager
def gated(folder: pathlib.Path, on_loss: str) -> Iterator[tuple[ClusterEnv, Gate]]:
    """The first worker can be built again only once the gate is open."""
    gate, again = Gate(folder), folder / "again"
    with on_two_workers(lambda slot: gate.env(slot, waits=0, in_build=str(again), length=10**6), on_loss) as envs:
        again.touch()
        envs.reset(seed=1)
        envs.attach(Linear(2, 3), seed=5)
        yield envs, gate


@contextlib.contextmanager
def doomed(switch: pathlib.Path, on_loss: str) -> Iterator[ClusterEnv]:
    """The first worker ends in every step while the switch is there."""

    def first(slot: int) -> Callable[[], Any]:
        return functools.partial(SwitchedEnv, slot, "exit", "step", str(switch), length=10**6)

    with on_two_workers(first, on_loss) as envs:
        envs.reset(seed=1)
        envs.attach(Linear(2, 3), seed=5)
        yield envs


@pytest.mark.parametrize("on_loss", ["restart", "shrink"])
def test_the_others_play_on_while_a_worker_comes_back(tmp_path: pathlib.Path, on_loss: str) -> None:
    with gated(tmp_path, on_loss) as (envs, gate):
        with envs.stream(4, slots=2) as stream:
            next(stream)
            kill(envs, 0)
            alone = [next(stream).slot.tolist() for _ in range(30)]
            assert alone[-20:] == [[2, 3]] * 20, "the gate is closed, and nobody waits for it"
            gate.open()
            back = next(result for result in stream if 0 in result.slot)
        assert back.worker_lost.tolist() == [True, True]
        assert back.obs[:, 0, 1].tolist() == list(range(5)), "it begins afresh"
        assert not envs.rollout(4).worker_lost.any()


class Fragile(Linear):
    """Ends the first worker that takes it while the trap is set."""

    def __init__(self, trap: pathlib.Path) -> None:
        super().__init__(2, 3)
        self.trap, self.head = trap, os.getpid()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if os.getpid() != self.head and self.trap.exists():
            self.trap.unlink()
            os._exit(3)


def test_a_replacement_that_dies_while_it_takes_the_policy_is_replaced_itself(tmp_path: pathlib.Path) -> None:
    trap = tmp_path / "trap"
    with batch(each(4, CountingEnv, 10**6), on_loss="restart", timeouts=SLOW) as envs:
        envs.reset(seed=1)
        envs.attach(Fragile(trap), seed=5)
        with envs.stream(4, slots=2) as stream:
            next(stream)
            trap.touch()
            kill(envs, 0)
            back = next(result for result in stream if result.worker_lost.any())
            assert not trap.exists()
            assert back.slot.tolist() == [0, 1]
            assert back.obs[:, 0, 1].tolist() == list(range(5)), "it begins afresh"
            assert next(result for result in stream if 0 in result.slot).obs[0, 0, 1] == 4


def test_a_stream_that_ends_while_a_worker_comes_back(tmp_path: pathlib.Path) -> None:
    with gated(tmp_path, "restart") as (envs, gate):
        with envs.stream(4, slots=2) as stream:
            next(stream)
            kill(envs, 0)
            for _ in range(10):
                next(stream)
        gate.open()
        assert np.flatnonzero(envs.rollout(4).worker_lost).tolist() == [0, 1]
        with envs.stream(4, slots=4) as stream:
            assert not next(stream).worker_lost.any()


def test_a_stream_goes_on_without_a_worker_that_is_lost_again_and_again(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    switch = tmp_path / "switch"
    with doomed(switch, "shrink") as envs:
        with envs.stream(4, slots=2) as stream:
            next(stream)
            switch.touch()
            next(result for result in stream if "again and again" in caplog.text)
            assert [next(stream).slot.tolist() for _ in range(20)][-10:] == [[2, 3]] * 10
            assert envs.stats()["workers_ready"] == 1
        switch.unlink()
        assert np.flatnonzero(envs.rollout(4).worker_lost).tolist() == [0, 1], "outside of streams all take part"
        assert envs.stats()["workers_ready"] == 2


def test_a_stream_that_shrank_fills_batches_that_are_larger_than_all_its_buffers(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    switch = tmp_path / "switch"
    with doomed(switch, "shrink") as envs:
        with envs.stream(4, slots=4, buffers=1) as stream:
            next(stream)
            switch.touch()
            next(result for result in stream if "again and again" in caplog.text)
            for _ in range(5):
                result = next(stream)
            assert result.slot.tolist() == [2, 3, 2, 3], "who is left plays two fragments for each batch"
            assert (result.obs[0, 2:, 1] == result.obs[-1, :2, 1]).all()
        switch.unlink()


def test_a_stream_whose_last_worker_cannot_be_built_again_says_why_at_once(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    switch = tmp_path / "switch"
    fns = each(2, SwitchedEnv, "raise", "build", str(switch), length=10**6)
    with batch(fns, cluster="local:1", on_loss="shrink", timeouts=SLOW) as envs:
        envs.reset(seed=1)
        envs.attach(Linear(2, 3), seed=5)
        with envs.stream(4, slots=2) as stream:
            next(stream)
            switch.touch()
            kill(envs, 0)
            with pytest.raises(EnvError, match=r"slot 0 .* raised in build: ValueError: planned error"):
                collections.deque(stream, maxlen=0)
        assert "the others go on: the environment in slot 0" in caplog.text
        switch.unlink()
        envs.reset(seed=1)
        assert not envs.rollout(4).worker_lost.any()


def test_a_worker_that_is_lost_again_and_again_ends_a_stream_that_may_not_shrink(tmp_path: pathlib.Path) -> None:
    with doomed(tmp_path / "switch", "restart") as envs, envs.stream(4, slots=2) as stream:
        next(stream)
        (tmp_path / "switch").touch()
        with pytest.raises(WorkerLost, match=r"worker 0 .* again and again without getting anywhere"):
            collections.deque(stream, maxlen=0)


# Nodes that somebody starts by hand: nobody can start them again, but others may come.


class Hands:
    """Starts nodes by hand."""

    def __init__(self, token: pathlib.Path) -> None:
        self.token = token
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.address = ""

    def join(self) -> subprocess.Popen[bytes]:
        """Another node."""
        words = [sys.executable, "-m", "clusterenv", "join", self.address, "--token-file", str(self.token)]
        self.nodes.append(subprocess.Popen([*words, "--workers", "1"], stderr=subprocess.DEVNULL))
        return self.nodes[-1]


@pytest.fixture
def hands(tmp_path: pathlib.Path) -> Iterator[Hands]:
    made = Hands(tmp_path / "token")
    yield made
    for node in made.nodes:
        node.kill()
        node.wait()


@contextlib.contextmanager
def joined(
    hands: Hands, caplog: pytest.LogCaptureFixture, on_loss: str, wait_s: float = LIMIT_S
) -> Iterator[ClusterEnv]:
    """Four CartPoles on two nodes; with a node missing, `wait_s` is how long another is waited for."""

    def start_both() -> None:
        wait_until(lambda: hands.token.exists() and "cluster://" in caplog.text, LIMIT_S)
        hands.address = "cluster://" + caplog.text.partition("cluster://")[2].split()[0]
        hands.join()
        hands.join()

    starting = threading.Thread(target=start_both)
    starting.start()
    token = str(hands.token)
    cluster = clusterenv.Join(nodes=2, workers=1, bind="127.0.0.1", token_file=token, wait_s=60.0, silence_s=5.0)
    envs = clusterenv.make_vec("CartPole-v1", 4, cluster=cluster, on_loss=on_loss)
    object.__setattr__(cluster, "wait_s", wait_s)  # the start may take its time on a busy machine
    try:
        starting.join(LIMIT_S)
        envs.reset(seed=1)
        envs.attach(Agent(8), seed=5, sync="on-change")
        yield envs
    finally:
        envs.close()


def of_both(result: Any) -> bool:
    return {0, 2} <= set(result.slot.tolist())


@pytest.mark.fault("F14")
def test_nodes_leave_and_others_join_while_a_stream_runs(hands: Hands, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with joined(hands, caplog, "shrink") as envs, envs.stream(4, slots=4) as stream:
        next(result for result in stream if of_both(result))
        hands.nodes[0].kill()
        next(result for result in stream if len(set(result.slot.tolist())) == 2 and "is lost" in caplog.text)
        hands.join()
        back = next(result for result in stream if result.worker_lost.any())
        gone = set(back.slot[back.worker_lost].tolist())
        assert gone in ({0, 1}, {2, 3})
        newest = envs.publish(Agent(8)).number
        assert newest == 1
        newer = (set(result.slot[result.version[0] >= newest].tolist()) for result in stream)
        assert next(slots for slots in newer if gone & slots), "the newcomer gets weights like everybody else"


def test_without_shrink_a_node_that_nobody_can_start_again_is_an_error(
    hands: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with joined(hands, caplog, "restart") as envs, envs.stream(4, slots=4) as stream:
        next(stream)
        hands.nodes[0].kill()
        with pytest.raises(LaunchError, match="its launcher cannot start it again"):
            collections.deque(stream, maxlen=0)


def test_with_too_few_nodes_a_stream_waits(hands: Hands, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with joined(hands, caplog, "shrink") as envs, envs.stream(4, slots=4, min_nodes=2) as stream:
        next(stream)
        hands.nodes[0].kill()

        def join_once_it_waits() -> None:
            wait_until(lambda: "1 of 2 nodes are here; the stream waits for 2" in caplog.text, LIMIT_S)
            hands.join()

        joining = threading.Thread(target=join_once_it_waits)
        joining.start()
        try:
            back = next(result for result in stream if result.worker_lost.any())
        finally:
            joining.join(LIMIT_S)
        assert "the stream waits for 2" in caplog.text
        assert len(back.slot[back.worker_lost]) == 2


@pytest.mark.fault("F12")
def test_a_stream_does_not_wait_for_ever_for_its_least_number_of_nodes(
    hands: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with joined(hands, caplog, "shrink", wait_s=1.0) as envs, envs.stream(4, slots=4, min_nodes=2) as stream:
        next(stream)
        hands.nodes[0].kill()
        with pytest.raises(WorkersMissing, match=r"1 of 2 nodes.*min_nodes=2"):
            collections.deque(stream, maxlen=0)


@pytest.mark.parametrize("min_nodes", [0, -1, 2, 1.0, True, "1", None])
def test_a_number_of_nodes_that_can_never_be_there(min_nodes: Any) -> None:
    with batch(each(2, CountingEnv, 10)) as envs:
        envs.reset(seed=1)
        envs.attach(Linear(2, 3), seed=5)
        with pytest.raises(ConfigError, match=r"min_nodes=.* must be a whole number from 1 to the 1 nodes"):
            envs.stream(4, min_nodes=min_nodes)
