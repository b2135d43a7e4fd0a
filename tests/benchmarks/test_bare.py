"""The bare loops that are the limit: they play on all cores when they are asked to, and say so if they cannot."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from multiprocessing import resource_tracker
from typing import Any

import pytest

from experiments import bare
from experiments.bare import BareLoops
from experiments.placement import medians

BUSY = "experiments.busy:Busy-v0"


@pytest.fixture(autouse=True, scope="module")
def tracker() -> None:
    """Python's own helper beside spawned processes, which stays for as long as Python does."""
    resource_tracker.ensure_running()


def test_a_loop_is_as_fast_as_its_environments() -> None:
    with BareLoops(BUSY, ("step_us=2000",), 2, 3) as loops:
        rates = [loops.steps_per_s(0.2) for _ in range(2)]
    assert all(0 < rate <= 1000 for rate in rates)  # two loops, 2 ms a step


def test_nobody_is_left_behind() -> None:
    with BareLoops(BUSY, ("step_us=10",), 2, 1):
        assert len(multiprocessing.active_children()) == 2
    assert not multiprocessing.active_children()


def test_a_loop_that_cannot_begin_says_why() -> None:
    why = r"bare loop 0 has ended: NameNotFound: .*NoSuchEnv"
    with pytest.raises(RuntimeError, match=why), BareLoops("NoSuchEnv-v0", (), 1, 1):
        pass
    assert not multiprocessing.active_children()


def test_a_loop_that_is_killed_is_told_and_takes_no_other_with_it() -> None:
    with BareLoops(BUSY, ("step_us=10",), 2, 1) as loops:
        multiprocessing.active_children()[0].kill()
        with pytest.raises(RuntimeError, match="was killed before it could say why"):
            loops.steps_per_s(0.1)
    assert not multiprocessing.active_children()


def test_a_loop_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bare, "END_LIMIT_S", 0.1)
    with BareLoops(BUSY, ("step_us=5e6",), 1, 1) as loops:
        loops._loops[0][1].send(0.1)
    assert not multiprocessing.active_children()


class Counted:
    """An environment whose episodes end with every second step, and are cut with every fifth."""

    def __init__(self) -> None:
        self.steps = self.resets = 0

    def step(self, action: int) -> tuple[None, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return None, 0.0, self.steps % 2 == 0, self.steps % 5 == 0, {}

    def reset(self) -> None:
        self.resets += 1


def test_a_rate_is_of_all_steps_and_ended_episodes_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    envs = [Counted() for _ in range(3)]
    rate = bare._rate(envs, [[0] * 3, [1] * 3], 10.0)
    monkeypatch.undo()
    assert rate == sum(env.steps for env in envs) / 10
    assert [env.steps for env in envs] == [9, 9, 9]
    assert [env.resets for env in envs] == [5, 5, 5]  # after steps 2, 4, 5, 6 and 8


def test_a_share_is_of_the_limit_of_its_own_turn() -> None:
    def turn(limit: int, acting: int) -> dict[str, dict[str, int]]:
        played = {"steps_per_s": acting, "lag": acting // 10}
        return {"limit": {"steps_per_s": limit}, "acting": played, "learning": played}

    told = medians([turn(100, 50), turn(1000, 800), turn(10, 9)])
    assert told["acting_of_limit"] == 0.8
    assert told["acting_steps_per_s"] == 50
    assert told["acting_lag"] == 5
