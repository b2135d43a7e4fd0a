"""Steering to a sample size and to a byte budget, played through in small worlds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from clusterenv.sync.aps import APS
from clusterenv.sync.rules import Reason
from clusterenv.sync.triggers import ForBytes, ForESS
from tests.sync.kit import Array, Node, situation


def saturating(behind: int, level: float = 0.02) -> float:
    """The divergence of a learner that a trust region ties to the policy which its workers hold."""
    return level * (1.0 - 0.5**behind)


def ess_of(divergence: float) -> float:
    return 1.0 / (1.0 + 2.0 * divergence)


# The effective sample size.


def play_ess(node: Node, batches: int, growth: float, *, measured: bool = True) -> list[float]:
    """A world whose divergence grows as the square of the lag; gives the sample size of each batch."""
    seen = []
    for _ in range(batches):
        node.now_s += 1.0
        divergence = growth * (node.lag + 1) ** 2
        ess = np.array([ess_of(divergence), math.nan]) if measured else None
        node.learn([divergence, 0.0] if measured else divergence, ess=ess)
        seen.append(ess_of(growth * node.lag**2))
    return seen


def test_the_threshold_starts_where_theory_puts_it() -> None:
    assert APS(target_ess=0.8).start(1).threshold == pytest.approx(0.125)


@pytest.mark.parametrize("growth", [1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("measured", [True, False])
def test_the_sample_size_settles_near_its_target_whatever_the_speed_of_learning(growth: float, measured: bool) -> None:
    node = Node(APS(target_ess=0.95, max_lag=1000, max_age_s=1e6))
    seen = play_ess(node, 1500, growth, measured=measured)
    assert np.mean(seen[750:]) == pytest.approx(0.95, abs=0.02)


def test_faster_learning_moves_weights_more_often() -> None:
    counts = []
    for growth in (1e-5, 1e-4, 1e-3):
        node = Node(APS(target_ess=0.95, max_lag=1000, max_age_s=1e6))
        play_ess(node, 600, growth)
        counts.append(len(node.syncs))
    assert counts[0] < counts[1] < counts[2]


def test_a_sample_size_below_the_target_lowers_the_threshold() -> None:
    trigger = ForESS(0.9)
    before = trigger.threshold
    for batches in (0, 1):
        trigger.update(situation(0, 1, 0.5, batches=batches, ess=np.array([0.5])))
    assert trigger.threshold == pytest.approx(before * math.exp(5.0 * (0.5 - 0.9)))


@pytest.mark.parametrize("ess", [None, np.full(2, math.nan)])
def test_while_nothing_is_known_the_threshold_stays(ess: Array | None) -> None:
    trigger = ForESS(0.9)
    for batches in range(10):
        trigger.update(situation(0, 1, [0.0, math.nan], batches=batches, ess=ess))
    assert trigger.threshold == ForESS(0.9).threshold


def test_only_a_new_batch_moves_the_threshold() -> None:
    trigger = ForESS(0.9)
    for _ in range(10):
        trigger.update(situation(0, 1, 0.5, batches=7, ess=np.array([0.5])))
    assert trigger.threshold == ForESS(0.9).threshold


def test_the_threshold_stays_within_its_bounds() -> None:
    low, high = ForESS(0.9), ForESS(0.5)
    for batches in range(500):
        low.update(situation(0, 1, 9.0, batches=batches, ess=np.array([0.01])))
        high.update(situation(0, 1, 0.0, batches=batches, ess=np.array([1.0])))
    assert (low.threshold, high.threshold) == (1e-5, 1.0)


@pytest.mark.parametrize("stall_after", [4, None])
def test_a_target_that_saturation_never_misses_does_not_run_away(stall_after: int | None) -> None:
    # The divergence saturates at 0.02, a sample size of 0.96: a target of 0.9 asks for more drift than there can be.
    node = Node(APS(target_ess=0.9, max_lag=None, max_age_s=1e6, stall_after=stall_after))
    for _ in range(400):
        node.now_s += 1.0
        divergence = saturating(node.lag + 1)
        node.learn(divergence, ess=np.array([ess_of(divergence)]))
    assert len(node.syncs) > 40
    gaps = np.diff([at for at, _ in node.syncs])
    assert gaps.max() < 60
    assert node.decider.threshold is not None
    assert node.decider.threshold < 0.03


def test_an_early_saturation_is_forgotten_in_time() -> None:
    trigger = ForESS(0.9)
    trigger.saturated(1e-4)
    assert trigger.threshold == 2.5e-5
    for batches in range(600):
        trigger.update(situation(0, 1, 0.0, batches=batches, ess=np.array([1.0])))
    assert trigger.threshold > 0.05


# The byte budget.


def test_a_sync_waits_until_it_can_be_paid() -> None:
    node = Node(APS(bandwidth=100, max_lag=None, stall_after=None), nbytes=1000)
    fired = []
    for _ in range(60):
        node.now_s += 1.0
        if node.learn(0.01):
            fired.append(node.now_s)
    # The first sync is owed: ten seconds to pay it back, ten to save for the next.
    assert fired == [20.0, 30.0, 40.0, 50.0, 60.0]
    assert set(node.reasons[1:]) == {Reason.BUDGET}


def test_a_budget_is_not_spent_on_nothing() -> None:
    node = Node(APS(bandwidth="1GB/s"))
    node.now_s = 100.0
    assert [node.learn(0.0), node.learn(9e-5), node.learn(2e-4)] == [None, None, Reason.BUDGET]


def test_with_ample_bandwidth_every_version_moves() -> None:
    node = Node(APS(bandwidth="1GB/s"), nbytes=1000)
    for _ in range(50):
        node.now_s += 1.0
        assert node.learn(0.01) is Reason.BUDGET


def test_the_budget_is_kept_and_spent_in_a_saturating_world() -> None:
    node = Node(APS(bandwidth=100, max_lag=None, max_age_s=1e6), nbytes=1000)
    for _ in range(2000):
        node.now_s += 1.0
        node.learn(saturating(node.lag + 1))
    assert len(node.syncs) * 1000 == pytest.approx(100 * 2000, rel=0.05)
    assert np.diff([at for at, _ in node.syncs]).max() <= 21


def naive_integral_control(steps: int) -> list[int]:
    """A threshold that is raised while too much has been sent and lowered while too little, with a sum that winds up.

    The first phase learns fast and sends more than the budget; then the divergence saturates below the threshold.
    """
    log_threshold, held, syncs = math.log(0.01), 0, []
    for step in range(1, steps):
        divergence = 0.1 * (step - held) if step < 100 else saturating(step - held)
        if divergence > math.exp(log_threshold):
            syncs.append(step)
            held = step
        log_threshold += 0.5 * (len(syncs) / step - 0.1)
    return syncs


def test_integral_control_winds_up_and_the_bucket_does_not() -> None:
    naive = naive_integral_control(600)
    assert max(np.diff([*naive, 600])) > 200, "the world of this test must be one that freezes a naive controller"

    node = Node(APS(bandwidth=100, max_lag=None, max_age_s=1e6, stall_after=None), nbytes=1000)
    for step in range(1, 600):
        node.now_s += 1.0
        node.learn(0.1 * (node.lag + 1) if step < 100 else saturating(node.lag + 1))
    times = [at for at, _ in node.syncs]
    assert max(np.diff([*times, 600])) <= 21
    assert len(times) == pytest.approx(60, abs=2)


def test_a_quiet_hour_is_not_followed_by_a_flood() -> None:
    node = Node(APS(bandwidth=100, max_lag=None, stall_after=None), nbytes=1000)
    node.now_s = 3600.0
    burst = [node.learn(0.01) for _ in range(10)]
    assert burst == [Reason.BUDGET, Reason.BUDGET, *[None] * 8]


def test_age_is_kept_at_any_price_and_its_debt_is_bounded() -> None:
    # One sync in 1000 s is all that the budget pays for; the age limit asks for one in 10 s.
    node = Node(APS(bandwidth=1, max_lag=None, max_age_s=10.0, stall_after=None), nbytes=1000)
    for _ in range(1000):
        node.now_s += 1.0
        node.learn(0.01)
    assert set(node.reasons[1:]) == {Reason.AGE}
    assert 80 <= len(node.syncs) <= 100
    # However much was overdrawn: one sync is owed, one must be saved for.
    trigger = ForBytes(1)
    for _ in range(50):
        trigger.synced(0.0, 1000)
    for now_s, expected in ((1999.0, None), (2000.0, Reason.BUDGET)):
        facts = situation(0, 1, 0.01, now_s=now_s, sync_bytes=1000)
        trigger.update(facts)
        assert trigger.fires(facts) is expected


def test_a_stall_may_borrow_one_sync_and_not_more() -> None:
    node = Node(APS(bandwidth=10, max_lag=None, max_age_s=1e6, stall_after=2), nbytes=1000)
    for _ in range(3000):
        node.now_s += 1.0
        node.learn(0.02)
    assert Reason.STALL in node.reasons
    assert len(node.syncs) * 1000 <= 10 * 3000 + 2 * 1000


def test_time_that_stands_still_or_steps_back_fills_nothing() -> None:
    trigger = ForBytes(1000)
    for now_s in (5.0, 5.0, 1.0, 1.0):
        trigger.update(situation(0, 1, 0.01, now_s=now_s, sync_bytes=10))
        assert trigger.fires(situation(0, 1, 0.01, sync_bytes=10)) is None
    # Nor does a step back take anything away: from here on, time counts as ever.
    trigger.update(situation(0, 1, 0.01, now_s=1.015, sync_bytes=10))
    assert trigger.fires(situation(0, 1, 0.01, sync_bytes=10)) is Reason.BUDGET
