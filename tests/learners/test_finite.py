"""Rewards that are not finite never reach a network."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
import torch

from clusterenv.errors import ConfigError
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
