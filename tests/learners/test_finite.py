"""Rewards and observations that are not finite never reach a network."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from clusterenv.errors import ConfigError, PolicyError
from clusterenv.learners.catalog import LEARNERS
from tests.learners.envs import Lever


class Spoilt(Lever):
    """Gives one reward that is no number."""

    def __init__(self, reward: float) -> None:
        super().__init__()
        self.spoilt, self.steps = reward, 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        self.steps += 1
        return observation, self.spoilt if self.steps == 20 else reward, terminated, truncated, info


gymnasium.register("test/Spoilt-v0", f"{__name__}:Spoilt", kwargs={"reward": float("nan")})


@pytest.mark.threat("T10")
@pytest.mark.parametrize("name", ["ppo", "impala", "impact", "vmpo"])
@pytest.mark.parametrize("reward", ["nan", "inf", "1e39"])
@pytest.mark.filterwarnings("ignore:.*reward")
def test_a_learner_refuses_it_before_it_learns(name: str, reward: str) -> None:
    made = LEARNERS[name]
    settings: dict[str, Any] = {"env_id": "test/Spoilt-v0", "env_args": (f"reward={reward}",), "cluster": "inproc"}
    settings |= {"num_envs": 4, "rollout_steps": 8, "total_steps": 4 * 8 * 6, "hidden": (8,), "runtime": "torch"}
    learner = made.learner()(made.config(**settings))
    with pytest.raises(ConfigError, match=r"the reward of slot 0 is .* at step 3 of its fragment of 8"):
        learner.train()
    assert all(torch.isfinite(tensor).all() for tensor in learner.network.state_dict().values())


class Blinded(Lever):
    """Shows one observation that is no number, at a step of its life; episodes have four."""

    def __init__(self, seen: float, at: int) -> None:
        super().__init__()
        self.seen, self.at, self.steps = seen, at, 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, *rest = super().step(action)
        self.steps += 1
        return np.full_like(observation, self.seen) if self.steps == self.at else observation, *rest


gymnasium.register("test/Blinded-v0", f"{__name__}:Blinded", kwargs={"seen": float("nan"), "at": 20})


def blinded(name: str, seen: str, at: int, **changes: Any) -> Any:
    made = LEARNERS[name]
    settings: dict[str, Any] = {"env_id": "test/Blinded-v0", "env_args": (f"seen={seen}", f"at={at}")}
    settings |= {"cluster": "inproc", "num_envs": 4, "rollout_steps": 8, "total_steps": 4 * 8 * 6, "hidden": (8,)}
    return made.learner()(made.config(**settings, runtime="torch", **changes))


@pytest.mark.parametrize("name", ["ppo", "impala", "impact", "vmpo"])
@pytest.mark.parametrize(("at", "steps"), [(20, 4), (24, 8)])  # both are last observations of episodes
def test_a_last_observation_that_is_not_finite_is_not_learned_from(name: str, at: int, steps: int) -> None:
    learner = blinded(name, "nan", at)
    with pytest.raises(ConfigError, match=rf"slot 0 holds nan after {steps} steps of its fragment of 8"):
        learner.train()
    assert all(torch.isfinite(tensor).all() for tensor in learner.network.state_dict().values())


def test_one_that_a_normalised_policy_does_not_mind_is_not_learned_from() -> None:
    learner = blinded("ppo", "inf", 18, normalize_observations=True)
    with pytest.raises(ConfigError, match=r"slot 0 holds inf after 2 steps of its fragment of 8"):
        learner.train()


@pytest.mark.parametrize("inference", ["worker", "head"])
def test_who_gave_nan_is_told(inference: str) -> None:
    learner = blinded("impala", "nan", 18, inference=inference, mode="stream")
    with pytest.raises(PolicyError, match="Its observation is not finite there: look at the environment"):
        learner.train()
