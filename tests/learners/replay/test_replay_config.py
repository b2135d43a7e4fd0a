"""Settings of learners with a memory that do not fit are refused, with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from clusterenv.errors import ConfigError
from clusterenv.learners.replay.config import ReplayConfig


@pytest.mark.parametrize(
    "changes",
    [
        *({name: 0} for name in ("capacity", "sample_size", "n_step", "target_every", "publish_every")),
        {"samples_per_insert": 0.0},
        {"samples_per_insert": float("nan")},
        {"learning_starts": -1},
        {"priority_exponent": 1.5},
        {"importance_exponent": -0.1},
        {"target_rate": 0.0},
        {"target_rate": 1.1},
    ],
)
def test_numbers_outside_are_refused(changes: dict[str, Any]) -> None:
    name = next(iter(changes))
    with pytest.raises(ConfigError, match=name):
        ReplayConfig(**changes)


def test_a_memory_that_is_never_full_enough_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learning_starts=500 takes about 500 steps, more than capacity=400"):
        ReplayConfig(capacity=400, learning_starts=500)


def test_a_budget_that_is_spent_before_the_first_update_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"total_steps=1000 whole batches.*nothing would be learned"):
        ReplayConfig(total_steps=1_000, learning_starts=1_000)


def test_a_budget_that_is_too_small_for_one_sample_is_refused() -> None:
    for rate in (0.01, 5e-324):
        with pytest.raises(ConfigError, match="nothing would be learned"):
            ReplayConfig(total_steps=2_000, learning_starts=100, sample_size=64, samples_per_insert=rate)


def test_a_memory_that_cannot_hold_a_fragment_of_each_slot_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"capacity=79 is shared by num_envs=8.*at least 80"):
        ReplayConfig(capacity=79, num_envs=8, rollout_steps=10, learning_starts=10)


def test_the_slack_holds_two_batches_and_a_sample() -> None:
    config = ReplayConfig(num_envs=8, rollout_steps=5, samples_per_insert=2.0, sample_size=32)
    assert config.slack == 2.0 * 2 * config.batch_size + 32
