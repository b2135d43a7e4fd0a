"""Proximal policy optimisation, in lock step or on a stream.

from clusterenv.learners.ppo import PPO, PPOConfig

summary = PPO(PPOConfig(env_id="CartPole-v1", cluster="local:2")).train()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterenv.learners.common.presets import preset as _preset
from clusterenv.learners.ppo.config import PPOConfig

if TYPE_CHECKING:
    from clusterenv.learners.common.config import Mode
    from clusterenv.learners.ppo.learner import PPO

__all__ = ["PPO", "PPOConfig", "preset"]


def preset(env_id: str, mode: Mode = "lock step") -> PPOConfig:
    """The settings for an environment; the defaults if there are none of its own.

    Example:
        >>> preset("LunarLander-v3").rollout_steps
        1024
        >>> preset("LunarLander-v3", "stream").rollout_steps
        256
    """
    return _preset("ppo", PPOConfig, env_id, mode)


def __getattr__(name: str) -> object:
    # The settings are needed for `--help`; torch, which takes seconds, is not.
    if name == "PPO":
        from clusterenv.learners.ppo.learner import PPO

        return PPO
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
