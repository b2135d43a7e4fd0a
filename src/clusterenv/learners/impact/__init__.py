"""IMPACT: batches that are used several times, anchored by a target network.

from clusterenv.learners.impact import IMPACT, IMPACTConfig

summary = IMPACT(IMPACTConfig(env_id="CartPole-v1", cluster="local:2")).train()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterenv.learners.impact.config import IMPACTConfig

if TYPE_CHECKING:
    from clusterenv.learners.impact.learner import IMPACT

__all__ = ["IMPACT", "IMPACTConfig"]


def __getattr__(name: str) -> object:
    # The settings are needed for `--help`; torch, which takes seconds, is not.
    if name == "IMPACT":
        from clusterenv.learners.impact.learner import IMPACT

        return IMPACT
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
