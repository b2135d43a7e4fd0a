"""Soft actor-critic (SAC) for continuous actions, with a temperature that is learned.

from clusterenv.learners.sac import SAC, SACConfig

summary = SAC(SACConfig(env_id="Pendulum-v1", cluster="local:2")).train()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterenv.learners.sac.config import SACConfig

if TYPE_CHECKING:
    from clusterenv.learners.sac.learner import SAC

__all__ = ["SAC", "SACConfig"]


def __getattr__(name: str) -> object:
    # The settings are needed for `--help`; torch, which takes seconds, is not.
    if name == "SAC":
        from clusterenv.learners.sac.learner import SAC

        return SAC
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
