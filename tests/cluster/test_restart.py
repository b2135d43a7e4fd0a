"""When to try again, and which seed a fresh environment gets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusterenv.cluster.restart import LIMITS, Budgets, CrashLoops, Fault, Tries, fresh_seed


def test_gives_up_after_the_limit_without_progress() -> None:
    loops = CrashLoops(limit=3, progress=10)
    assert [loops.tolerates("slot 0", steps) for steps in (5, 6, 7, 8)] == [True, True, True, False]


def test_goes_on_refusing_without_progress() -> None:
    loops = CrashLoops(limit=1, progress=10)
    assert [loops.tolerates("slot 0", steps) for steps in (0, 1, 2, 3)] == [True, False, False, False]


def test_progress_starts_a_new_story() -> None:
    loops = CrashLoops(limit=2, progress=10)
    assert [loops.tolerates("slot 0", steps) for steps in (0, 9, 19, 20, 21)] == [True, True, True, True, False]


def test_things_are_counted_apart() -> None:
    loops = CrashLoops(limit=1, progress=10)
    assert loops.tolerates("slot 0", 0)
    assert loops.tolerates("slot 1", 0)
    assert not loops.tolerates("slot 0", 1)


def test_forgiving_starts_anew() -> None:
    loops = CrashLoops(limit=1, progress=10)
    assert loops.tolerates("slot 0", 0)
    loops.forgive()
    assert loops.tolerates("slot 0", 1)
    assert not loops.tolerates("slot 0", 2)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=50), st.integers(1, 5))
def test_never_more_than_the_limit_in_a_row(gaps: list[int], limit: int) -> None:
    loops, steps, tolerated = CrashLoops(limit=limit, progress=10), 0, []
    for gap in gaps:
        steps += gap
        tolerated.append(loops.tolerates("slot 0", steps))
    assert tolerated == [index < limit for index in range(len(gaps))]


@given(st.lists(st.integers(10, 100), min_size=1, max_size=50))
def test_with_progress_between_failures_it_goes_on_for_ever(gaps: list[int]) -> None:
    loops, steps = CrashLoops(limit=1, progress=10), 0
    for gap in gaps:
        steps += gap
        assert loops.tolerates("slot 0", steps)


faults = st.sampled_from(Fault)


@given(st.lists(st.tuples(faults, st.sampled_from(["worker 0", "worker 1"]), st.integers(0, 20))))
def test_budgets_are_apart(history: list[tuple[Fault, str, int]]) -> None:
    """Each kind and thing fares as if there were no other."""
    budgets, alone = Budgets(), {(fault, thing): CrashLoops(LIMITS[fault]) for fault, thing, _ in history}
    steps = 0
    for fault, thing, gap in history:
        steps += gap
        assert budgets.tolerates(fault, thing, steps) == alone[fault, thing].tolerates(thing, steps)


@given(faults, st.lists(st.integers(0, 9), max_size=60))
def test_no_kind_goes_on_for_ever_without_progress(fault: Fault, gaps: list[int]) -> None:
    budgets, steps = Budgets(), 0
    for count, gap in enumerate(gaps):
        steps += gap
        assert budgets.tolerates(fault, "worker 0", steps) == (count < LIMITS[fault])


def test_preemptions_are_tolerated_far_longer_than_crashes() -> None:
    assert LIMITS[Fault.PREEMPTION] >= 10 * LIMITS[Fault.CRASH]


@given(faults, faults)
def test_forgiving_starts_every_budget_anew(spent: Fault, other: Fault) -> None:
    budgets = Budgets(dict.fromkeys(Fault, 1))
    assert [budgets.tolerates(spent, "slot 0", 0) for _ in range(2)] == [True, False]
    budgets.forgive()
    assert budgets.tolerates(spent, "slot 0", 0)
    assert budgets.tolerates(other, "slot 0", 0) == (other is not spent)


@given(st.lists(faults, max_size=80))
def test_tries_end_with_the_first_budget_that_is_spent(history: list[Fault]) -> None:
    tries = Tries()
    for fault in history:
        tries = tries.after(fault)
    preempted = history.count(Fault.PREEMPTION)
    assert (tries.crashes, tries.preemptions) == (len(history) - preempted, preempted)
    assert tries.left == (tries.crashes < LIMITS[Fault.CRASH] and preempted < LIMITS[Fault.PREEMPTION])


def test_without_a_seed_a_fresh_environment_has_none() -> None:
    assert fresh_seed(None, 3, 1) is None


@given(st.integers(0, 2**63 - 1), st.integers(0, 10_000), st.integers(0, 1_000_100))
def test_fresh_seeds_are_reproducible_and_fit_gymnasium(seed: int, slot: int, restarts: int) -> None:
    fresh = fresh_seed(seed, slot, restarts)
    assert fresh == fresh_seed(seed, slot, restarts)
    assert fresh is not None
    assert 0 <= fresh < 2**32


def test_fresh_seeds_differ_by_seed_slot_and_restart() -> None:
    seeds = {fresh_seed(seed, slot, restarts) for seed in range(5) for slot in range(20) for restarts in range(5)}
    assert len(seeds) == 5 * 20 * 5
