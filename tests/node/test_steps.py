"""Steps on other hosts of which one hangs: the others are shown, once, whatever becomes of the messages."""

from __future__ import annotations

import contextlib
import multiprocessing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces

from clusterenv import ClusterEnv, make_vec
from clusterenv.node.steps import Steps
from clusterenv.spaces import leaves_of
from clusterenv.transport.arena import Arena, ArenaSpec, Command
from clusterenv.wire import messages as m
from clusterenv.wire.frames import frame_of
from clusterenv.worker.report import Report
from tests.faults.kit import LIMIT_S, Gate, hurried, lost, patient
from tests.node.tampering import DOUBLE, LOSE, Rule, Wire
from tests.node.worlds import GATED

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

NUM_ENVS = 4
ACTIONS = np.array([2, 1, 0, 1])
# For three steps that take no time, on a busy machine.
ENOUGH_S = 1.0


@contextlib.contextmanager
def last_one_waits(gate: Gate, cluster: str) -> Iterator[ClusterEnv]:
    """A batch whose last slot waits at the gate in its second step."""
    common = {"gate": gate.gate, "inside": gate.inside, "waits": 2, "infos": True, "length": 100}
    slots = [{"slot": slot, "patient": slot == NUM_ENVS - 1, **common} for slot in range(NUM_ENVS)]
    limits = {"timeouts": patient()}
    with contextlib.closing(
        make_vec(GATED, NUM_ENVS, cluster=cluster, slot_kwargs=slots, vector_kwargs=limits)
    ) as envs:
        envs.reset(seed=1)
        envs.step(ACTIONS)
        yield envs


def reported(envs: ClusterEnv, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The slots whose infos reach the engine from here on."""
    node: Any = envs._engine.node
    reports = node.reports
    slots: list[int] = []

    def noted() -> Any:
        report = reports()
        slots.extend(slot for slot, _ in report.infos)
        return report

    monkeypatch.setattr(node, "reports", noted)
    return slots


@pytest.mark.parametrize("cluster", ["local:4", "tcp:nodes=1,workers=4", "tcp:nodes=2,workers=2"])
def test_who_hangs_is_lost_alone(cluster: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(tmp_path)
    with last_one_waits(gate, cluster) as envs:
        slots = reported(envs, monkeypatch)
        envs.step_async(ACTIONS)
        gate.wait()
        with hurried(envs, seconds=ENOUGH_S):
            observation, reward, _, truncated, infos = envs.step_wait()
        assert truncated.tolist() == [False, False, False, True] == lost(infos, NUM_ENVS)
        assert observation[:3].tolist() == [[slot, 2] for slot in range(3)]
        assert reward.tolist() == [2, 1, 0, 0]
        assert infos["_action"].tolist() == [True, True, True, False]
        assert sorted(slots) == [0, 1, 2]
        gate.open()
        for steps in range(3):
            slots.clear()
            observation, _, _, truncated, infos = envs.step(ACTIONS)
            assert observation.tolist() == [*([slot, 3 + steps] for slot in range(3)), [3, steps]]
            assert not truncated.any()
            assert sorted(slots) == list(range(NUM_ENVS)), "an info came twice, or not at all"
        assert [int(life) for life in envs.get_attr("life")] == [5, 5, 5, 2]


@pytest.mark.parametrize("rule", [None, LOSE, DOUBLE], ids=["as sent", "lost", "doubled"])
def test_rows_that_were_shown_early_count_once(
    rule: Rule | None, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock step comes to its end after all, and brings them again."""
    gate, wire = Gate(tmp_path), Wire(monkeypatch)
    with last_one_waits(gate, "tcp:nodes=1,workers=4") as envs:
        slots = reported(envs, monkeypatch)
        if rule is not None:
            wire.rule(m.Rows, rule, 1000, lambda message: message.number is None)
        envs.step_async(ACTIONS)
        gate.wait()
        for _ in range(2):
            with pytest.raises(multiprocessing.TimeoutError):
                envs.step_wait(timeout=ENOUGH_S)
        assert any(isinstance(message, m.Rows) and message.number is None for message in wire.received)
        gate.open()
        for steps in (2, 3):
            observation, reward, _, truncated, infos = envs.step_wait(timeout=LIMIT_S)
            assert observation.tolist() == [[slot, steps] for slot in range(NUM_ENVS)]
            assert reward.tolist() == infos["action"].tolist() == ACTIONS.tolist()
            assert not truncated.any()
            assert sorted(slots) == list(range(NUM_ENVS)), "an info came twice, or not at all"
            slots.clear()
            envs.step_async(ACTIONS)
        envs.step_wait()


def test_a_wait_that_ends_early_ends_soon(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with nothing to show says so: it is not waited for."""
    gate, wire = Gate(tmp_path), Wire(monkeypatch)
    with last_one_waits(gate, "tcp:nodes=1,workers=1") as envs:
        envs.step_async(ACTIONS)
        gate.wait()
        with pytest.raises(multiprocessing.TimeoutError):
            envs.step_wait(timeout=0)
        shown = [message for message in wire.received if isinstance(message, m.Rows) and message.number is None]
        assert {message.report for message in shown} == {b""}
        gate.open()
        assert envs.step_wait()[0].tolist() == [[slot, 2] for slot in range(NUM_ENVS)]


class Willing:
    """A node of two workers that have done whatever they were asked, and report nothing."""

    blocks = (range(2), range(2, 4))

    def __init__(self, arena: Arena) -> None:
        self._arena = arena

    def request(self, command: Command, workers: Any, actions: Any) -> None:
        self._arena.have[:] = self._arena.want

    def listen(self) -> None:
        """It has heard all."""

    def reports(self) -> Report:
        return Report()


def test_what_is_kept_to_be_shown_again_does_not_grow() -> None:
    """Who asks for a row again has had what was shown with it: under `send` nothing else says so."""
    leaves = [tuple(leaves_of(space) or ()) for space in (spaces.Box(0, 1, (2,)), spaces.Discrete(3))]
    arena = Arena.create(ArenaSpec(NUM_ENVS, 2, leaves[0], leaves[1]))
    sent: list[list[Any]] = []
    node: Any = Willing(arena)
    steps = Steps(node, arena, lambda number, frames: None, sent.append)
    for number in range(1, 6):
        for slots in ([0, 3], [1, 2]):
            rows = np.array(slots, np.int32)
            frames = [frame_of(each) for each in (rows, np.full(2, number, np.uint32), np.zeros(2, np.int64))]
            steps.begin(m.Step(number=number, settled=0, lock_step=False, whole=False), frames, None)
            steps.progress()
    assert len(sent) == 10
    sent.clear()
    steps.show_again()
    assert len(sent) == 3  # the last of each pair of slots, and that there is nothing new
    arena.close()
