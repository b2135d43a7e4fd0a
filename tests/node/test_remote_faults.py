"""Requests and replies that are lost, doubled or late: every step is taken once, and its result arrives."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from clusterenv import ClusterEnv, make_vec
from clusterenv.node import remote
from clusterenv.wire import messages as m
from tests.node.tampering import DOUBLE, LOSE, Frames, Rule, Wire
from tests.node.worlds import COUNTING

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM_ENVS = 4
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def shared() -> Iterator[ClusterEnv]:
    slots = [{"slot": slot, "length": 100} for slot in range(NUM_ENVS)]
    with contextlib.closing(make_vec(COUNTING, NUM_ENVS, cluster="tcp:nodes=2,workers=1", slot_kwargs=slots)) as envs:
        yield envs


@pytest.fixture
def envs(shared: ClusterEnv, monkeypatch: pytest.MonkeyPatch) -> ClusterEnv:
    shared.reset(seed=3)
    monkeypatch.setattr(remote, "_AGAIN_S", 0.3)
    return shared


@pytest.fixture
def wire(envs: ClusterEnv, monkeypatch: pytest.MonkeyPatch) -> Wire:
    return Wire(monkeypatch)


def lives(envs: ClusterEnv) -> list[int]:
    return [int(value) for value in envs.get_attr("life")]


def played(envs: ClusterEnv, steps: int, before: list[int]) -> None:
    """Every environment has taken so many steps, and nobody was lost."""
    assert lives(envs) == [life + steps for life in before]


def step(envs: ClusterEnv, number: int) -> None:
    actions = np.array([0, 1, 2, 1])
    observation, reward, terminated, truncated, infos = envs.step(actions)
    assert observation.tolist() == [[slot, number] for slot in range(NUM_ENVS)]
    assert reward.tolist() == actions.tolist()
    assert not terminated.any()
    assert not truncated.any()
    assert "worker_lost" not in infos


def test_without_a_fault_nothing_is_sent_twice(envs: ClusterEnv, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_AGAIN_S", LIMIT_S)  # who is slow to answer is not asked again
    before = lives(envs)
    for number in range(1, 6):
        step(envs, number)
    played(envs, 5, before)
    assert wire.count_sent(m.Step) == 10
    assert wire.tampered == 0


def asks_again(envs: ClusterEnv, wire: Wire, kind: Any, times: int) -> None:
    """So many messages of a kind are lost in the second of three steps; each step is made once."""
    before = lives(envs)
    step(envs, 1)
    wire.rule(kind, LOSE, times)
    step(envs, 2)
    assert wire.tampered == times
    assert wire.count_sent(m.Step) > 4
    step(envs, 3)
    played(envs, 3, before)


def double_requests(wire: Wire, times: int) -> None:
    wire.rule(m.Step, DOUBLE, times)


def double_replies(wire: Wire, times: int) -> None:
    wire.rule(m.Rows, DOUBLE, times)


@pytest.mark.fault("F28")
@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_lost_request_is_sent_again_and_carried_out_once(envs: ClusterEnv, wire: Wire, times: int) -> None:
    asks_again(envs, wire, m.Step, times)


@pytest.mark.fault("F29")
@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_lost_reply_is_repeated_and_not_made_again(envs: ClusterEnv, wire: Wire, times: int) -> None:
    asks_again(envs, wire, m.Rows, times)


@pytest.mark.fault("F30")
@pytest.mark.parametrize("fault", [double_requests, double_replies])
def test_a_message_that_comes_twice_counts_once(envs: ClusterEnv, wire: Wire, fault: Any) -> None:
    before = lives(envs)
    fault(wire, 20)
    for number in range(1, 6):
        step(envs, number)
    assert wire.tampered >= 10
    played(envs, 5, before)


@pytest.mark.fault("F31")
def test_a_reply_that_comes_late_changes_nothing(envs: ClusterEnv, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old reply, with rows of other numbers, comes again after the next step was asked for."""
    monkeypatch.setattr(remote, "_AGAIN_S", LIMIT_S)  # who is slow to answer does not answer twice
    before = lives(envs)
    kept: dict[float, Frames] = {}

    def node_of(frames: Frames) -> float:
        return float(np.frombuffer(frames[2], np.float32)[0])  # its first slot, as it observes it

    def keep(message: m.Message, frames: Frames) -> list[Frames]:
        kept[node_of(frames)] = frames
        return [frames]

    def old_first(message: m.Message, frames: Frames) -> list[Frames]:
        return [kept[node_of(frames)], frames]

    wire.rule(m.Rows, keep, 2)
    step(envs, 1)
    wire.rule(m.Rows, old_first, 2)
    step(envs, 2)
    assert len(kept) == 2
    assert wire.tampered == 4
    step(envs, 3)
    played(envs, 3, before)


FAULTS: dict[str, tuple[type[m.Message], Rule]] = {
    "lost requests": (m.Step, LOSE),
    "lost rows": (m.Rows, LOSE),
    "lost answers": (m.Answer, LOSE),
    "doubled requests": (m.Step, DOUBLE),
    "doubled rows": (m.Rows, DOUBLE),
    "doubled answers": (m.Answer, DOUBLE),
}


@pytest.mark.parametrize(("kind", "rule"), FAULTS.values(), ids=FAULTS.keys())
def test_steps_of_single_slots(envs: ClusterEnv, wire: Wire, kind: type[m.Message], rule: Rule) -> None:
    before = lives(envs)
    counts = [0] * NUM_ENVS
    envs.send(np.ones(NUM_ENVS, int))
    for turn in range(6):
        if turn == 2:
            wire.rule(kind, rule, 2)
        observation, reward, _, _, infos = envs.recv()
        slots = infos["env_id"].tolist()
        for row, slot in zip(observation, slots, strict=True):
            counts[slot] += 1
            assert row.tolist() == [slot, counts[slot]], "a step was taken twice, or a row came twice"
        assert (reward == 1).all()
        envs.send(np.ones(len(slots), int), np.array(slots))
    observation, *_ = envs.recv(min_slots=NUM_ENVS)
    for row in observation:
        slot = int(row[0])
        counts[slot] += 1
        assert row[1] == counts[slot]
    assert wire.tampered == 2
    assert min(counts) >= 1
    played(envs, 0, [life + count for life, count in zip(before, counts, strict=True)])


@pytest.mark.parametrize(("kind", "rule"), [(m.Post, LOSE), (m.Post, DOUBLE), (m.Answer, LOSE), (m.Answer, DOUBLE)])
def test_calls_and_resets(envs: ClusterEnv, wire: Wire, kind: type[m.Message], rule: Rule) -> None:
    wire.rule(kind, rule, 1)
    assert list(envs.call("double", 2.0)) == [4.0] * NUM_ENVS
    assert wire.tampered == 1
    wire.rule(kind, rule, 2)
    observation, _ = envs.reset(seed=9)
    assert observation.tolist() == [[slot, 0] for slot in range(NUM_ENVS)]
    assert wire.tampered == 3
    assert list(envs.get_attr("last_seed")) == [9, 10, 11, 12]


@pytest.mark.parametrize("kind", [m.Halt, m.Again, m.Ping, m.Heard, m.Beat])
def test_what_is_not_answered_may_be_lost(envs: ClusterEnv, wire: Wire, kind: type[m.Message]) -> None:
    before = lives(envs)
    wire.rule(kind, LOSE, 1000)
    for number in range(1, 4):
        step(envs, number)
    played(envs, 3, before)


@pytest.mark.parametrize("kind", [m.Build, m.Bind])
@pytest.mark.parametrize("rule", [LOSE, DOUBLE])
def test_the_start(monkeypatch: pytest.MonkeyPatch, kind: type[m.Message], rule: Rule) -> None:
    monkeypatch.setattr(remote, "_AGAIN_S", 0.3)
    wire = Wire(monkeypatch)
    wire.rule(kind, rule, 1)
    wire.rule(m.Answer, rule, 1)
    with contextlib.closing(make_vec(COUNTING, 2, cluster="tcp:nodes=1,workers=2")) as envs:
        envs.reset(seed=1)
        assert wire.tampered == 2
        envs.step(np.zeros(2, int))
        assert lives(envs) == [1, 1]
