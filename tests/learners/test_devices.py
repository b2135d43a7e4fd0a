"""A device that is not there is refused before anything is started."""

from __future__ import annotations

import pytest

from clusterenv.errors import ConfigError
from clusterenv.learners.ppo import PPO, PPOConfig


@pytest.mark.parametrize("device", ["banana", "cuda:99", "meta"])
def test_a_run_on_a_device_that_is_not_there_is_refused(device: str) -> None:
    learner = PPO(PPOConfig(cluster="tcp:nodes=1", device=device))
    with pytest.raises(ConfigError, match=rf"device='{device}' cannot be used: .* Here are: cpu"):
        learner.train()
