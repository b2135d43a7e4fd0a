"""The bare loops that are the limit: they play on all cores when they are asked to, and say so if they cannot."""

from __future__ import annotations

import multiprocessing
from multiprocessing import resource_tracker

import pytest

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
    assert all(0 < rate <= 1000 for rate in rates)  # two cores, 2 ms a step


def test_nobody_is_left_behind() -> None:
    with BareLoops(BUSY, ("step_us=10",), 2, 1):
        assert len(multiprocessing.active_children()) == 2
    assert not multiprocessing.active_children()


def test_a_loop_that_ends_is_told() -> None:
    with BareLoops("NoSuchEnv-v0", (), 1, 1) as loops, pytest.raises(RuntimeError, match="a bare loop has ended"):
        loops.steps_per_s(0.1)


def test_a_share_is_of_the_limit_of_its_own_turn() -> None:
    def turn(limit: int, acting: int) -> dict[str, dict[str, int]]:
        played = {"steps_per_s": acting, "lag": acting // 10}
        return {"limit": {"steps_per_s": limit}, "acting": played, "learning": played}

    told = medians([turn(100, 50), turn(1000, 800), turn(10, 9)])
    assert told["acting_of_limit"] == 0.8
    assert told["acting_steps_per_s"] == 50
    assert told["acting_lag"] == 5
