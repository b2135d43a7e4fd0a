"""Ape-X as a whole: it learns with and without its parts, repeats itself, and goes on where it was saved."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from clusterenv.errors import ConfigError
from clusterenv.learners.apex import ApeX, ApeXConfig
from clusterenv.metrics import keys
from clusterenv.metrics.recorder import Recorder
from tests.learners import envs as _envs  # noqa: F401  # registers the environments
from tests.learners.runs import LEVER, Notebook

OWN: dict[str, Any] = {
    "total_steps": 40 * 64,
    "learning_rate": 0.01,
    "learning_starts": 128,
    "sample_size": 32,
    "samples_per_insert": 4.0,
    "target_every": 10,
    "publish_every": 4,
}
# What is left of Ape-X without its parts.
DQN: dict[str, Any] = {
    "prioritized": False,
    "n_step": 1,
    "double": False,
    "dueling": False,
    "epsilon": 0.05,
    "epsilon_power": 0.0,
}


LEARNER = ApeX


def config(**changes: Any) -> ApeXConfig:
    return ApeXConfig(**{**LEVER, **OWN, **changes})


def run(settings: ApeXConfig, **kwargs: Any) -> tuple[ApeX, Notebook]:
    notebook = Notebook()
    learner = ApeX(settings, recorder=Recorder([notebook]), **kwargs)
    learner.train()
    return learner, notebook


def first_pull(learner: ApeX) -> list[int]:
    """What it does under either light."""
    q, _, _ = learner.network(torch.eye(2))
    found: list[int] = q.argmax(-1).tolist()
    return found


@pytest.mark.parametrize(
    "part",
    [{}, {"double": False}, {"dueling": False}, {"n_step": 1}, {"prioritized": False}, {"epsilon_power": 0.0}, DQN],
    ids=str,
)
def test_it_learns_with_and_without_each_of_its_parts(part: dict[str, Any]) -> None:
    learner, _ = run(config(**part))
    assert first_pull(learner) == [0, 1]


@pytest.mark.parametrize(
    "changes",
    [
        {"normalize_observations": True},
        {"optimizer": "rmsprop", "learning_rate": 0.003},
        {"reward": "clip", "reward_scale": 10.0},
        {"target_rate": 0.1, "target_every": 1},
    ],
    ids=str,
)
def test_it_learns_with(changes: dict[str, Any]) -> None:
    learner, _ = run(config(**changes))
    assert first_pull(learner) == [0, 1]


def test_it_learns_from_a_stream_and_from_images() -> None:
    settings = config(
        env_id="test/Screen-v0",
        body="shallow",
        mode="stream",
        stream_slots=4,
        cluster="local:1",
        total_steps=20 * 64,
        capacity=1000,
    )
    learner, notebook = run(settings)
    assert learner.summary().steps == 20 * 64
    assert notebook.rows[-1][keys.TD_LOSS.name] > 0


def test_the_returns_that_count_are_those_of_the_greediest_slots() -> None:
    # The first of two slots does little but explore, the second never does: the mean over both would be near 3.1.
    learner, _ = run(config(epsilon=0.9, epsilon_power=100.0, num_envs=2, total_steps=80 * 16))
    assert learner.summary().final_return > 3.4


def test_settings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"reward_scale=0\.0 must be more than 0"):
        config(reward_scale=0.0)
