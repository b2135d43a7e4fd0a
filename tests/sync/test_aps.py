"""Adaptive synchronisation: each reason alone, their order, what is refused, and the deadlock that the guards end."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest

from clusterenv.errors import ConfigError, ConfigTypeError
from clusterenv.sync.aps import APS, HeldBack, parse_bandwidth
from clusterenv.sync.rules import Reason
from clusterenv.sync.versions import Version
from tests.sync.kit import Node, situation

# As few guards as are allowed.
BARE: dict[str, Any] = {"max_lag": None, "max_age_s": 1e6, "stall_after": None}


def test_drift_of_any_worker_moves_the_weights_of_the_node() -> None:
    node = Node(APS(0.05, **BARE))
    assert node.publish([0.01, 0.05, 0.0]) is None
    assert node.publish([0.01, 0.051, 0.0]) is Reason.DIVERGENCE


def test_a_threshold_of_zero_moves_with_any_drift() -> None:
    node = Node(APS(0, **BARE))
    assert [node.publish(0.0), node.publish(1e-9)] == [None, Reason.DIVERGENCE]


def test_unknown_drift_moves_nothing_and_the_guards_still_do() -> None:
    node = Node(APS(0.05, max_lag=3))
    assert [node.publish(math.nan) for _ in range(3)] == [None, None, Reason.LAG]


def test_lag() -> None:
    node = Node(APS(max_lag=4, max_age_s=None))
    assert [node.publish() for _ in range(8)] == [None] * 3 + [Reason.LAG] + [None] * 3 + [Reason.LAG]


def test_age_counts_from_the_first_newer_version() -> None:
    node = Node(APS(max_age_s=10.0))
    node.now_s = 100.0  # nothing newer existed until now
    assert node.publish() is None
    node.now_s = 109.0
    assert node.publish() is None
    node.now_s = 110.0
    assert node.ask() is Reason.AGE
    node.now_s = 200.0
    assert [node.ask(), node.publish()] == [None, None]


def test_age_counts_from_the_sync_for_what_came_while_weights_were_under_way() -> None:
    decider = APS(max_age_s=10.0).start(1)
    decider.synced(Version(0, 0), Reason.FIRST, now_s=0.0)
    assert decider.consider(situation(0, 1, 1.0, now_s=1.0)) is Reason.DIVERGENCE
    assert decider.consider(situation(1, 2, 0.0, now_s=2.0)) is None  # version 1 is under way
    decider.synced(Version(0, 1), Reason.DIVERGENCE, now_s=3.0)
    assert decider.consider(situation(1, 2, 0.0, now_s=12.9)) is None
    assert decider.consider(situation(1, 2, 0.0, now_s=13.0)) is Reason.AGE


def test_the_interval_holds_everything_back() -> None:
    node = Node(APS(max_lag=2, max_age_s=5.0, min_interval_s=5.0))
    node.now_s = 4.9
    assert [node.publish(1.0) for _ in range(5)] == [None] * 5
    node.now_s = 5.0
    assert node.ask(1.0) is Reason.DIVERGENCE


def test_the_interval_does_not_hold_back_a_node_without_weights_or_a_demand() -> None:
    node = Node(APS(min_interval_s=5.0))
    node.held = None
    assert node.ask() is Reason.RECONNECT
    node.decider.force()
    assert node.publish() is Reason.FORCED


def test_the_order_of_reasons() -> None:
    def all_at_once(divergence: float, **rule: Any) -> Reason | None:
        node = Node(APS(0.05, **rule))
        for _ in range(3):
            node.newest = node.newest.next()
            node.batches += 1
            node.decider.consider(situation(node.held, node.newest, divergence, batches=node.batches))
        node.now_s = 99.0
        node.batches += 1
        return node.publish(divergence)

    assert all_at_once(0.2, max_lag=4, stall_after=4) is Reason.DIVERGENCE
    assert all_at_once(0.02, max_lag=4, stall_after=4) is Reason.LAG
    assert all_at_once(0.02, max_lag=5, stall_after=4) is Reason.AGE
    assert all_at_once(0.02, max_lag=5, max_age_s=100.0, stall_after=4) is Reason.STALL
    assert all_at_once(0.02, max_lag=5, max_age_s=100.0, stall_after=5) is None


# The deadlock.


def saturating(versions_behind: int) -> float:
    """PPO's clip ties the learner to a policy that stands still: it can move 0.02 nats away and no farther."""
    return 0.02 * (1.0 - 0.5**versions_behind)


def run(node: Node, batches: int, seconds_each: float = 1.0) -> None:
    for _ in range(batches):
        node.now_s += seconds_each
        node.learn(saturating(node.lag + 1))


def test_without_guards_a_threshold_above_saturation_never_fires_until_the_cap() -> None:
    node = Node(APS(0.05, max_lag=None, max_age_s=500.0, stall_after=None))
    run(node, 500)
    assert node.reasons == [Reason.FIRST]
    run(node, 1)
    assert node.syncs[1:] == [(501.0, Reason.AGE)]


def test_the_stall_rule_ends_the_deadlock_and_lowers_the_threshold_to_where_it_can_be_reached() -> None:
    node = Node(APS(0.05, max_lag=None, max_age_s=500.0, stall_after=4))
    run(node, 200)
    # 0.015 after two batches, 0.019 after four: less than half as much again.
    assert node.syncs[1] == (4.0, Reason.STALL)
    # From then on a quarter of that level is the bar, which the first batch reaches.
    later = node.syncs[2:]
    assert {reason for _, reason in later} <= {Reason.DIVERGENCE, Reason.STALL}
    assert [reason for _, reason in later].count(Reason.DIVERGENCE) > 4 * len(later) / 5
    assert max(after[0] - before[0] for before, after in itertools.pairwise(node.syncs)) == 4.0


def test_a_threshold_that_is_only_reached_when_the_learner_is_held_back_comes_down_too() -> None:
    node = Node(APS(0.018, **{**BARE, "stall_after": 4}))
    run(node, 4)
    assert node.syncs[1:] == [(4.0, Reason.DIVERGENCE)]
    assert node.decider.threshold == saturating(4) / 4


def test_the_lowered_threshold_is_told_and_rises_again() -> None:
    node = Node(APS(0.05, **{**BARE, "stall_after": 2}))
    assert [node.learn(0.02), node.learn(0.02)] == [None, Reason.STALL]
    assert node.decider.threshold == 0.005
    assert node.learn(0.004) is None
    assert node.decider.threshold == pytest.approx(0.005 * 1.02)
    for _ in range(150):
        node.batches += 1
        node.ask(0.004)
    assert node.decider.threshold == 0.05, "as it was asked for, and no higher"


@pytest.mark.parametrize(("after", "batches"), [(1, 2), (2, 2), (4, 4), (5, 6), (8, 8)])
def test_at_a_level_from_the_start_a_stall_takes_as_many_batches_as_it_is_told(after: int, batches: int) -> None:
    node = Node(APS(0.05, **{**BARE, "stall_after": after}))
    assert [node.learn(0.02) for _ in range(batches)] == [None] * (batches - 1) + [Reason.STALL]


def test_a_stall_that_begins_late_is_seen_when_the_batches_have_doubled() -> None:
    node = Node(APS(1.0, **{**BARE, "stall_after": 4}))
    assert [node.learn(0.01 * min(batch, 5)) for batch in range(1, 9)] == [None] * 7 + [Reason.STALL]


def test_a_threshold_below_saturation_needs_no_guard() -> None:
    node = Node(APS(0.015, **BARE))
    run(node, 40)
    assert set(node.reasons[1:]) == {Reason.DIVERGENCE}


def test_a_stall_counts_batches_and_not_versions() -> None:
    node = Node(APS(0.05, **{**BARE, "stall_after": 4}))
    assert node.learn(0.02) is None
    assert [node.publish(0.02) for _ in range(1000)] == [None] * 1000
    assert [node.learn(0.02) for _ in range(3)] == [None, None, Reason.STALL]


def test_batches_without_a_new_version_are_no_stall() -> None:
    node = Node(APS(0.05, **{**BARE, "stall_after": 4}))
    node.learn(0.02)
    for _ in range(20):
        node.batches += 1
        assert node.ask(0.02) is None
    assert node.publish(0.02) is Reason.STALL


@pytest.mark.parametrize("power", [1, 2])
def test_a_policy_that_walks_on_is_no_stall(power: int) -> None:
    """At random or straight on: the divergence grows with the batches, or with their square."""
    node = Node(APS(1e6, **{**BARE, "stall_after": 2}))
    assert not any(node.learn(1e-3 * batch**power) for batch in range(1, 300))


def test_a_single_measurement_that_is_off_by_a_quarter_is_no_stall() -> None:
    for wrong in range(1, 40):
        node = Node(APS(1e6, **{**BARE, "stall_after": 2}))
        assert not any(node.learn(1e-3 * batch * (0.76 if batch == wrong else 1.0)) for batch in range(1, 60))


@pytest.mark.parametrize("level", [0.0, 1e-7, 1e-4])
def test_a_policy_that_acts_the_same_holds_nobody_back(level: float) -> None:
    node = Node(APS(0.05, **{**BARE, "stall_after": 1}))
    assert not any(node.learn(level) for _ in range(200))


def test_what_was_measured_before_a_sync_is_forgotten() -> None:
    held_back = HeldBack(2)
    assert [held_back.update(batch, 0.02, Version(0, batch)) for batch in (1, 2)] == [False, True]
    held_back.clear()
    assert held_back.peak == 0.0
    assert [held_back.update(batch, 0.02, Version(0, batch)) for batch in (7, 8)] == [False, True]


# What is refused.


def test_the_defaults() -> None:
    assert dataclasses.asdict(APS()) == {
        "threshold": 0.05,
        "divergence": "auto",
        "max_lag": 64,
        "max_age_s": 60.0,
        "min_interval_s": 0.0,
        "stall_after": 4,
        "target_ess": None,
        "bandwidth": None,
    }
    assert APS(target_ess=0.9).threshold is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_lag": None, "max_age_s": None}, "must not both be None. A loss with a trust region, such as PPO's clip"),
        ({"threshold": 0.1, "target_ess": 0.9}, "one of threshold, target_ess and bandwidth, not threshold and target"),
        ({"bandwidth": 1.0, "target_ess": 0.9}, "not target_ess and bandwidth"),
        ({"threshold": -0.1}, "threshold=-0.1 must not be negative"),
        ({"threshold": math.inf}, "threshold=inf must be finite"),
        ({"threshold": 10**400}, "threshold=inf must be finite"),
        ({"max_age_s": 10**400}, "or None for no such limit"),
        ({"target_ess": 1.0}, "target_ess=1.0 must lie between 0 and 1"),
        ({"target_ess": 0}, "target_ess=0 must lie between 0 and 1"),
        ({"divergence": "lgop"}, r"unknown divergence 'lgop'\. Did you mean 'logp'"),
        ({"max_lag": 0}, "max_lag=0 must be at least 1"),
        ({"max_lag": -1}, "max_lag=-1 must be at least 1"),
        ({"stall_after": 0}, "stall_after=0 must be at least 1"),
        ({"max_age_s": 0.0}, "max_age_s=0.0 must be seconds, more than 0"),
        ({"min_interval_s": -1.0}, "min_interval_s=-1.0 must not be negative"),
        ({"min_interval_s": 61.0}, "min_interval_s=61.0 is longer than max_age_s=60.0"),
        ({"bandwidth": 0}, "bandwidth=0 must be more than 0"),
        ({"bandwidth": "0MB/s"}, "bandwidth='0MB/s' must be more than 0"),
        ({"bandwidth": "2Mb/s"}, "bandwidth='2Mb/s' must be bytes per second, as in '2MB/s'"),
        ({"bandwidth": "fast"}, "must be bytes per second"),
    ],
)
def test_wrong_values_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        APS(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [{"threshold": "0.05"}, {"threshold": True}, {"max_lag": 1.5}, {"stall_after": "4"}, {"min_interval_s": None}],
)
def test_wrong_types_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigTypeError):
        APS(**arguments)


def test_numbers_of_numpy_become_those_of_python() -> None:
    numbers: dict[str, Any] = {"max_lag": np.int64(4), "max_age_s": np.float32(2), "min_interval_s": np.float32(1)}
    rule = APS(threshold=np.float32(0.5), **numbers)  # type: ignore[arg-type]
    assert rule == APS(0.5, max_lag=4, max_age_s=2.0, min_interval_s=1.0)
    assert type(rule.threshold) is type(rule.max_age_s) is type(rule.min_interval_s) is float
    assert type(rule.max_lag) is int


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("2MB/s", 2e6),
        ("500 KiB/s", 512_000.0),
        ("1.5GB/s", 1.5e9),
        ("10kB/s", 1e4),
        ("10KB/s", 1e4),
        (" 3 MiB/s ", 3 * 2**20),
        ("7B/s", 7.0),
        (125_000, 125_000.0),
    ],
)
def test_bandwidths(text: float | str, rate: float) -> None:
    assert parse_bandwidth(text) == rate
    assert APS(bandwidth=text).bandwidth == rate
