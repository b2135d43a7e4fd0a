"""Ape-X DQN: Q-learning from a memory of what many explorers played, each in its own measure.

from clusterenv.learners.apex import ApeX, ApeXConfig

summary = ApeX(ApeXConfig(env_id="CartPole-v1", cluster="local:2")).train()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterenv.learners.apex.config import ApeXConfig

if TYPE_CHECKING:
    from clusterenv.learners.apex.learner import ApeX

__all__ = ["ApeX", "ApeXConfig"]


def __getattr__(name: str) -> object:
    # The settings are needed for `--help`; torch, which takes seconds, is not.
    if name == "ApeX":
        from clusterenv.learners.apex.learner import ApeX

        return ApeX
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
