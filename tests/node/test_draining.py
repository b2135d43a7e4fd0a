"""A node that a signal tells to leave finishes what it is at; then its slots are lost, as those of any lost node."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest

from clusterenv import WorkerLost, make_vec
from clusterenv.cluster.restart import LIMITS, Budgets, Fault
from clusterenv.env import recovery
from tests.conformance.kit import (
    LIMIT_S,
    NUM_ENVS,
    QUIET,
    SECOND,
    TRIAL,
    actions,
    ended,
    inside,
    lost,
    slots,
    wait_at,
)
from tests.conformance.test_detached import agent
from tests.zoo import wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator

    from clusterenv import ClusterEnv

    Make = Callable[[], ClusterEnv]


@pytest.fixture(name="make")
def _make() -> Iterator[Callable[[], ClusterEnv]]:
    opened: list[ClusterEnv] = []

    def make() -> ClusterEnv:
        opened.append(make_vec(TRIAL, NUM_ENVS, cluster="tcp:nodes=2,workers=1", slot_kwargs=slots()))
        opened[-1].reset(seed=QUIET)
        return opened[-1]

    yield make
    while opened:  # the memory of a batch lives as long as somebody holds the batch
        opened.pop().close()


def second_node(envs: ClusterEnv) -> tuple[psutil.Process, list[psutil.Process]]:
    """The node of slots 3 and 4, and all processes that belong to it."""
    worker = psutil.Process(envs.worker_pids()[1])
    (node,) = [each for each in worker.parents() if " -m clusterenv node " in f"{' '.join(each.cmdline())} "]
    return node, [node, *node.children(recursive=True)]


def send_to_all(processes: list[psutil.Process], number: signal.Signals) -> None:
    """As Slurm does: to everything that runs there."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):  # a worker may have ended with its node
            os.kill(process.pid, number)


def is_still_there(node: psutil.Process) -> None:
    """See that the node has gone on after the signal: it has slept and woken up several times."""
    before = node.num_ctx_switches().voluntary
    wait_until(lambda: ended(node) or node.num_ctx_switches().voluntary > before + 5, LIMIT_S)
    assert not ended(node), "it left in the middle of something"


@pytest.mark.fault("F48")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_the_step_that_is_under_way_is_finished(
    make: Make, tmp_path: pathlib.Path, number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    envs = make()
    node, everything = second_node(envs)
    gate = tmp_path / "gate"
    envs.set_attr("misbehave", wait_at(gate), indices=[4])
    envs.step_async(actions(envs))
    inside(gate)
    send_to_all(everything, number)
    is_still_there(node)
    gate.touch()
    observations, _, _, truncated, infos = envs.step_wait()
    assert lost(infos) == []
    assert not truncated.any()
    np.testing.assert_array_equal(observations[:, 1], 1)
    wait_until(lambda: ended(node), LIMIT_S)
    assert lost(envs.step(actions(envs))[4]) == SECOND
    assert f"left: signal {number.name}" in caplog.text
    after = envs.step(actions(envs))
    assert lost(after[4]) == []
    np.testing.assert_array_equal(after[0][:, 1], [3, 3, 3, 0, 0])


def test_the_fragment_that_is_under_way_is_finished(make: Make, tmp_path: pathlib.Path) -> None:
    envs = make()
    node, everything = second_node(envs)
    gate = tmp_path / "gate"
    envs.attach(agent(), seed=5, sync="on-change")
    envs.set_attr("misbehave", wait_at(gate), indices=[3])

    def leave() -> None:
        inside(gate)
        send_to_all(everything, signal.SIGUSR2)
        is_still_there(node)
        gate.touch()

    with beside(leave):
        batch = envs.rollout(6)
    assert not batch.worker_lost.any()
    wait_until(lambda: ended(node), LIMIT_S)
    assert np.flatnonzero(envs.rollout(6).worker_lost).tolist() == SECOND
    assert not envs.rollout(6).worker_lost.any()


def test_streams_go_on_without_it_and_with_the_next(make: Make) -> None:
    envs = make()
    _, everything = second_node(envs)
    envs.attach(agent(), seed=5, sync="on-change")
    told: list[int] = []
    with envs.stream(4, slots=NUM_ENVS) as stream:
        for count, batch in enumerate(stream):
            if count == 3:
                send_to_all(everything, signal.SIGTERM)
            told += batch.slot[batch.worker_lost].tolist()
            if len(told) >= len(SECOND) and count > 10:
                break
    assert sorted(told) == SECOND


def test_a_second_signal_does_not_wait(make: Make, tmp_path: pathlib.Path) -> None:
    envs = make()
    node, _ = second_node(envs)
    gate = tmp_path / "gate"
    envs.set_attr("misbehave", wait_at(gate), indices=[4])
    envs.step_async(actions(envs))
    inside(gate)
    node.send_signal(signal.SIGTERM)
    node.send_signal(signal.SIGUSR2)
    assert lost(envs.step_wait()[4]) == SECOND
    assert not gate.exists()


def leave_between_steps(envs: ClusterEnv, number: signal.Signals = signal.SIGTERM) -> None:
    """End the second node, and see its slots lost in the next step and back in the one after."""
    node, everything = second_node(envs)
    send_to_all(everything, number)
    wait_until(lambda: ended(node), LIMIT_S)
    assert lost(envs.step(actions(envs))[4]) == SECOND
    assert lost(envs.step(actions(envs))[4]) == []


def test_leaving_uses_up_nothing_of_what_crashes_may(make: Make) -> None:
    envs = make()
    for _ in range(LIMITS[Fault.CRASH] + 1):
        leave_between_steps(envs)
    for _ in range(LIMITS[Fault.CRASH]):
        leave_between_steps(envs, signal.SIGKILL)
    leave_between_steps(envs)
    with pytest.raises(WorkerLost, match="again and again") as caught:
        leave_between_steps(envs, signal.SIGKILL)
    assert caught.value.worker == 1


def test_leaving_again_and_again_comes_to_an_end(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {**dict.fromkeys(Fault, 0), Fault.PREEMPTION: 1}
    monkeypatch.setattr(recovery, "Budgets", functools.partial(Budgets, few))
    envs = make()
    leave_between_steps(envs)
    with pytest.raises(WorkerLost, match=r"left: signal SIGTERM\. It was lost again and again"):
        leave_between_steps(envs)
    envs.reset(seed=QUIET)
    leave_between_steps(envs)


class beside:
    """Have something done by another thread meanwhile."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._thread.join(LIMIT_S)
