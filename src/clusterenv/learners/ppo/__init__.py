"""Proximal policy optimisation, in lock step or on a stream.

from clusterenv.learners.ppo import PPO, PPOConfig

summary = PPO(PPOConfig(env_id="CartPole-v1", cluster="local:2")).train()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterenv.learners.ppo.config import PPOConfig
from clusterenv.learners.ppo.presets import preset

if TYPE_CHECKING:
    from clusterenv.learners.ppo.learner import PPO

__all__ = ["PPO", "PPOConfig", "preset"]


def __getattr__(name: str) -> object:
    # The settings are needed for `--help`; torch, which takes seconds, is not.
    if name == "PPO":
        from clusterenv.learners.ppo.learner import PPO

        return PPO
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
