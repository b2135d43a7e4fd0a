"""Any order of publishes, batches, waits and losses: what every rule promises holds after each step."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from clusterenv.sync.aps import APS
from clusterenv.sync.rules import Always, Every, Never, OnChange, Reason
from clusterenv.sync.versions import Version
from tests.sync.kit import Node

DIVERGENCES = st.lists(st.sampled_from([0.0, 1e-7, 1e-3, 0.02, 0.05, 0.5, np.inf, np.nan]), min_size=1, max_size=3)
APS_RULES = st.builds(
    APS,
    st.sampled_from([0.0, 0.02, 0.05, 100.0]),
    max_lag=st.integers(1, 6),
    max_age_s=st.sampled_from([None, 5.0, 60.0]),
    stall_after=st.sampled_from([None, 1, 3]),
)
STEERED = st.builds(
    lambda aim, lag: APS(**aim, max_lag=lag),
    st.sampled_from([{"target_ess": 0.9}, {"bandwidth": 100.0}, {"bandwidth": 1e9}]),
    st.integers(1, 6),
)
ANY_RULE = st.one_of(
    st.builds(Always), st.builds(Every, st.integers(1, 6)), st.builds(OnChange), st.builds(Never), APS_RULES, STEERED
)


class SyncMachine(RuleBasedStateMachine):
    """One node under one rule. The head is played by `Node`, which moves weights as soon as it is told to."""

    @initialize(policy=ANY_RULE)
    def start(self, policy: Any) -> None:
        self.rule = policy
        self.node = Node(policy)
        self.moved = False
        self.since = 0.0

    def _ask(self, ask: Any, divergence: list[float]) -> None:
        held, count = self.node.held, len(self.node.syncs)
        reason = ask(divergence)
        self.moved = reason is not None
        assert len(self.node.syncs) - count == self.moved
        if self.moved and not isinstance(self.rule, Always):
            assert held is None or self.node.newest > held, f"{reason} without a newer version"
        assert self.node.held is None or held is None or self.node.held >= held

    @rule(divergence=DIVERGENCES)
    def publish(self, divergence: list[float]) -> None:
        self._ask(self.node.publish, divergence)

    @rule(divergence=DIVERGENCES)
    def take_a_batch(self, divergence: list[float]) -> None:
        self.node.batches += 1
        self._ask(self.node.ask, divergence)

    @rule(seconds=st.sampled_from([0.0, 0.1, 3.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.node.now_s += seconds

    @rule()
    def lose_the_weights(self) -> None:
        self.node.held = None
        self._ask(self.node.ask, [0.0])
        assert self.node.reasons[-1] is Reason.RECONNECT

    @rule()
    def restart_the_head(self) -> None:
        self.node.newest = Version(self.node.newest.epoch + 1, 0)
        self._ask(self.node.ask, [0.0])
        assert self.node.reasons[-1] is Reason.RECONNECT

    @rule()
    def force(self) -> None:
        newer = self.node.newest > (self.node.held or self.node.newest)
        self.node.decider.force()
        self._ask(self.node.ask, [0.0])
        assert not newer or self.node.held == self.node.newest

    @invariant()
    def the_first_sync_came_first_and_once(self) -> None:
        assert self.node.reasons[0] is Reason.FIRST
        assert self.node.reasons.count(Reason.FIRST) == 1

    @invariant()
    def the_lag_is_bounded(self) -> None:
        limits = {OnChange: 1, Always: 10**9, Never: 10**9}
        limit = self.rule.max_lag if isinstance(self.rule, APS) else getattr(self.rule, "versions", None)
        assert self.node.lag < (limit or limits[type(self.rule)])

    @invariant()
    def a_threshold_is_a_number_one_can_use(self) -> None:
        threshold = self.node.decider.threshold
        assert (threshold is not None) == isinstance(self.rule, APS)
        assert threshold is None or 0.0 <= threshold <= 100.0


SyncMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestSyncMachine = SyncMachine.TestCase
