"""The trust-region deadlock: PPO's clip holds the learner near workers that never move, unless a guard moves them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from clusterenv import APS
from clusterenv.learners.common.sync import SyncConfig
from clusterenv.learners.ppo import PPO, PPOConfig

if TYPE_CHECKING:
    from clusterenv.learners.common.tracking import Summary
    from clusterenv.sync.rules import Rule

# Far above the level at which the divergence saturates: by itself it never fires.
THRESHOLD = 0.5


@dataclass(frozen=True, kw_only=True)
class Given(SyncConfig):
    """Settings that give a rule made by hand."""

    given: APS

    def make(self, *, threshold: float | None = None, by_clock: bool = True, stall_after: int | None = 4) -> Rule:
        """That rule."""
        return self.given


def train(rule: APS) -> Summary:
    """A few seconds of CartPole on the head, in lock step: the same numbers every time."""
    config = PPOConfig(
        env_id="CartPole-v1",
        cluster="inproc",
        num_envs=16,
        rollout_steps=32,
        total_steps=60_000,
        minibatches=4,
        epochs=4,
        learning_rate=2e-3,
        anneal=False,
        sync=Given(given=rule),
    )
    return PPO(config).train()


def test_without_guards_nothing_is_learnt() -> None:
    told = train(APS(THRESHOLD, stall_after=None, max_lag=10**6, max_age_s=None))
    assert told.sync_reasons == {"first": 1}
    assert told.divergence_max < 0.1, "it saturates below the threshold"
    assert told.final_return < 40.0


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (APS(THRESHOLD, max_age_s=None, max_lag=10**6), "stall"),
        (APS(THRESHOLD, max_age_s=None, max_lag=8, stall_after=None), "lag"),
    ],
)
def test_each_guard_alone_trains_through_it(rule: APS, reason: str) -> None:
    told = train(rule)
    # The stall rule lowers the threshold, so that from then on the divergence reaches it.
    assert told.sync_reasons.keys() - {"divergence"} == {"first", reason}
    assert told.syncs < 0.75 * told.publishes
    assert told.final_return > 150.0
