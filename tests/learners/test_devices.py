"""A device that is not there is refused before anything is started."""

from __future__ import annotations

from typing import Any

import pytest

from clusterenv.errors import ConfigError
from clusterenv.learners.common.devices import room_for_network
from clusterenv.learners.impala import IMPALA, IMPALAConfig
from clusterenv.learners.ppo import PPO, PPOConfig


@pytest.mark.parametrize("device", ["banana", "cuda:99", "meta"])
def test_a_run_on_a_device_that_is_not_there_is_refused(device: str) -> None:
    learner = PPO(PPOConfig(cluster="tcp:nodes=1", device=device))
    with pytest.raises(ConfigError, match=rf"device='{device}' cannot be used: .* Here are: cpu"):
        learner.train()


@pytest.mark.parametrize("sizes", [{"hidden": (1, 10**15)}, {"lstm": 10**15}])
def test_a_network_that_does_not_fit_into_memory_is_refused_in_words(sizes: dict[str, Any]) -> None:
    learner = IMPALA(IMPALAConfig(cluster="inproc", **sizes))
    with pytest.raises(ConfigError, match=r"does not fit into the memory of device='cpu': .*allocate .*smaller layers"):
        learner.train()


def test_other_errors_of_torch_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="size mismatch"), room_for_network("cpu"):
        raise RuntimeError("size mismatch")
