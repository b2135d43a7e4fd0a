"""Losses with `send` and `recv`: every slot sent comes back once, in its own row, whatever dies on the way."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import random
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from clusterenv import Timeouts, WorkerLost
from tests.faults.envs import TextEnv
from tests.faults.kit import (
    LIMIT_S,
    MODES,
    Gate,
    OnceEnv,
    actions,
    batch,
    each,
    hurried,
    kill,
    lost,
    mask,
    patient,
    wait_for_answers,
)
from tests.zoo import counting, wait_until

if TYPE_CHECKING:
    import pathlib

    from clusterenv import ClusterEnv

NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
DEATHS = ["kill", "exit", "segfault", "hang"]


def rows(result: Any) -> dict[int, tuple[list[float], bool, bool]]:
    """slot -> (observation, truncated, told that its worker was lost) of what `recv` returned."""
    observations, _, _, truncated, infos = result
    told = lost(infos, len(truncated))
    return {
        int(slot): (observation.tolist(), bool(cut), mark)
        for slot, observation, cut, mark in zip(infos["env_id"], observations, truncated, told, strict=True)
    }


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("how", DEATHS)
def test_slots_under_way_come_back_truncated(how: str, mode: AutoresetMode, tmp_path: pathlib.Path) -> None:
    note = str(tmp_path / "note")
    fns = counting(4)
    fns[0] = lambda: OnceEnv(0, how, note, life=2)
    with batch(fns, autoreset_mode=mode, timeouts=patient()) as envs:
        envs.reset(seed=5)
        envs.send(actions(envs))
        assert rows(envs.recv(min_slots=4)) == {slot: ([slot, 1], False, False) for slot in range(4)}
        envs.send([1, 1], slots=[0, 2])
        wait_until((tmp_path / "note").exists, LIMIT_S)
        wait_for_answers(envs, 1)
        with hurried(envs) if how == "hang" else contextlib.nullcontext():
            got = rows(envs.recv(min_slots=2))
        shown = [0, 0] if mode is SAME else [0, 1]
        assert got == {0: (shown, True, True), 2: ([2, 2], False, False)}

        # Slot 1 was idle: it tells its break when it is asked next, without a step.
        envs.send([1, 1], slots=[1, 3])
        got = rows(envs.recv(min_slots=2))
        shown = [1, 0] if mode is SAME else [1, 1]
        assert got == {1: (shown, True, True), 3: ([3, 2], False, False)}

        if mode is DISABLED:
            assert envs.reset(options=mask(envs, 0, 1))[0][:2].tolist() == [[0, 0], [1, 0]]
        elif mode is NEXT:
            envs.send([1, 1], slots=[0, 1])
            assert rows(envs.recv(min_slots=2)) == {0: ([0, 0], False, False), 1: ([1, 0], False, False)}
        envs.send([1, 1], slots=[0, 1])
        assert rows(envs.recv(min_slots=2)) == {0: ([0, 1], False, False), 1: ([1, 1], False, False)}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_killed_while_idle(mode: AutoresetMode) -> None:
    with batch(counting(4), autoreset_mode=mode) as envs:
        envs.reset(seed=5)
        kill(envs, 0)
        envs.send([1], slots=[1])
        assert rows(envs.recv()) == {1: ([1, 0], True, True)}
        envs.send([1], slots=[0])
        assert rows(envs.recv()) == {0: ([0, 0], True, True)}
        envs.send([1], slots=[2])
        assert rows(envs.recv()) == {2: ([2, 1], False, False)}


def test_an_answer_that_was_ready_when_its_worker_died_is_kept(tmp_path: pathlib.Path) -> None:
    gate = Gate(tmp_path)
    fns = counting(4)
    fns[2] = gate.env(2)
    with batch(fns) as envs:
        envs.reset(seed=5)
        envs.send([1, 1], slots=[0, 2])
        gate.wait()
        wait_for_answers(envs, 0)
        with pytest.raises(multiprocessing.TimeoutError):
            envs.recv(min_slots=2, timeout=0.2)
        kill(envs, 0)
        with pytest.raises(multiprocessing.TimeoutError):
            envs.recv(min_slots=2, timeout=0.5)  # the head learns of the loss here
        gate.open()
        assert rows(envs.recv(min_slots=2)) == {0: ([0, 1], False, False), 2: ([2, 1], False, False)}
        envs.send([1, 1], slots=[0, 1])
        assert rows(envs.recv(min_slots=2)) == {0: ([0, 1], True, True), 1: ([1, 0], True, True)}


@pytest.mark.parametrize(("fate", "limits"), [("kill", Timeouts()), ("hang", Timeouts(step_s=0.5))])
def test_a_lost_worker_is_noticed_though_another_keeps_the_head_busy(
    fate: str, limits: Timeouts, tmp_path: pathlib.Path
) -> None:
    note = str(tmp_path / "note")
    fns = counting(2, length=10**9)
    fns[0] = lambda: OnceEnv(0, fate, note)
    with batch(fns, timeouts=limits) as envs:
        envs.reset(seed=1)
        envs.send([1, 1])
        seen: dict[int, Any] = {}
        ended = threading.Event()
        timer = threading.Timer(LIMIT_S, ended.set)
        timer.start()
        try:
            while 0 not in seen and not ended.is_set():
                seen = rows(envs.recv())
                if 1 in seen:
                    envs.send([1], slots=[1])
        finally:
            timer.cancel()
            timer.join()
        assert seen.get(0) == ([0, 0], True, True)


def test_on_loss_raise(tmp_path: pathlib.Path) -> None:
    note = str(tmp_path / "note")
    fns = counting(4)
    fns[0] = lambda: OnceEnv(0, "kill", note)
    with batch(fns, on_loss="raise") as envs:
        envs.reset(seed=5)
        envs.send(actions(envs))
        with pytest.raises(WorkerLost, match="SIGKILL") as caught:
            envs.recv(min_slots=4)
        assert (caught.value.slot, caught.value.seed, caught.value.step) == (0, 5, 1)
        assert envs.reset(seed=5)[0].tolist() == [[slot, 0] for slot in range(4)]
        envs.send(actions(envs))
        assert set(rows(envs.recv(min_slots=4))) == {0, 1, 2, 3}


def test_a_reset_gives_up_what_is_under_way(tmp_path: pathlib.Path) -> None:
    gate = Gate(tmp_path)
    fns = counting(4, infos=True)
    fns[2] = gate.env(2, infos=True)
    with batch(fns) as envs:
        envs.reset(seed=5)
        envs.send([1, 1, 2, 2])
        gate.wait()
        timer = threading.Timer(0.1, gate.open)
        timer.start()
        observations, _ = envs.reset(seed=5)
        timer.join()
        assert observations.tolist() == [[slot, 0] for slot in range(4)]
        envs.send([0], slots=[2])
        result = envs.recv()
        assert rows(result) == {2: ([2, 1], False, False)}
        assert result[4]["action"].tolist() == [0], "the info of this step, not of the one given up"


def test_a_broken_slot_does_not_swallow_the_request_of_its_neighbour(tmp_path: pathlib.Path) -> None:
    # Slots 0-2 on one worker, autoreset in the same step: slot 2 is broken and must be reset by the head, while
    # slot 0 is at work and slot 1 waits for its turn.
    gate = Gate(tmp_path)
    fns = counting(3)
    fns[0] = gate.env(0, waits=2)
    with batch(fns, cluster="local:1", autoreset_mode="SameStep") as envs:
        envs.reset(seed=5)
        kill(envs, 0)
        envs.send([1, 1], slots=[0, 1])
        assert rows(envs.recv(min_slots=2)) == {0: ([0, 0], True, True), 1: ([1, 0], True, True)}
        envs.send([1], slots=[0])
        assert rows(envs.recv()) == {0: ([0, 1], False, False)}
        envs.send([1], slots=[0])
        gate.wait()
        envs.send([1], slots=[1])
        timer = threading.Timer(0.2, gate.open)
        timer.start()
        envs.send([1], slots=[2])
        timer.join()
        got: dict[int, Any] = {}
        while len(got) < 3:
            got |= rows(envs.recv(timeout=LIMIT_S))
        assert got == {0: ([0, 2], False, False), 1: ([1, 1], False, False), 2: ([2, 0], True, True)}


def test_actions_that_fit_no_array_are_not_mixed_up(tmp_path: pathlib.Path) -> None:
    # Three sends before the worker looks again: each slot gets its own action, and nobody is lost.
    gate = Gate(tmp_path)
    fns = each(3, TextEnv)
    fns[0] = functools.partial(TextEnv, 0, gate=(gate.gate, gate.inside))
    with batch(fns, cluster="local:1") as envs:
        envs.reset(seed=5)
        envs.send(("a",), slots=[0])
        gate.wait()
        envs.send(("b",), slots=[1])
        envs.send(("c",), slots=[2])
        gate.open()
        observations, _, _, truncated, infos = envs.recv(min_slots=3, timeout=LIMIT_S)
        assert not truncated.any()
        said = dict(zip(infos["env_id"].tolist(), observations, strict=True))
        assert said == {0: "slot 0 step 1 a", 1: "slot 1 step 1 b", 2: "slot 2 step 1 c"}


class Ledger:
    """Checks that what comes back is what was sent: CountingEnv tells its slot and its step in every observation."""

    def __init__(self, envs: ClusterEnv) -> None:
        self.envs = envs
        self.expected = dict.fromkeys(range(envs.num_envs), 0)  # the step that each slot showed last
        self.in_flight: set[int] = set()
        self.fresh: set[int] = set()  # slots whose next answer is a reset
        self.losses = 0

    def send(self, slots: list[int]) -> None:
        self.envs.send(np.ones(len(slots), dtype=np.int64), slots=slots)
        self.in_flight |= set(slots)

    def recv(self, count: int) -> None:
        for slot, (observation, truncated, told) in rows(self.envs.recv(min_slots=count, timeout=LIMIT_S)).items():
            assert slot in self.in_flight, "a slot arrived that was not sent, or twice"
            self.in_flight.remove(slot)
            assert observation[0] == slot, "a row of another slot"
            assert truncated == told
            if truncated:
                self.losses += 1
                self.fresh.add(slot)
            elif slot in self.fresh:
                assert observation[1] == 0, "the observation after a break is a reset's"
                self.fresh.remove(slot)
                self.expected[slot] = 0
            else:
                assert observation[1] == self.expected[slot] + 1, "a step was skipped or taken twice"
                self.expected[slot] += 1


@pytest.mark.parametrize("seed", range(3))
def test_nothing_arrives_twice_or_elsewhere_while_workers_are_killed(seed: int) -> None:
    rng = random.Random(seed)
    with batch(counting(6, length=10**9), cluster="local:3") as envs:
        envs.reset(seed=seed)
        ledger = Ledger(envs)
        for turn in range(120):
            idle = sorted(set(range(6)) - ledger.in_flight)
            if idle:
                ledger.send(rng.sample(idle, rng.randint(1, len(idle))))
            if turn % 40 == 20:
                kill(envs, rng.randrange(3))
            ledger.recv(rng.randint(1, len(ledger.in_flight)))
        while ledger.in_flight:
            ledger.recv(1)
        assert ledger.losses >= 3
