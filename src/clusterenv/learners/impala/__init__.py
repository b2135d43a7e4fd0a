"""IMPALA with V-trace: workers that never wait, and a learner that corrects for the age of their data.

from clusterenv.learners.impala import IMPALA, IMPALAConfig

summary = IMPALA(IMPALAConfig(env_id="CartPole-v1", cluster="local:2")).train()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterenv.learners.impala.config import IMPALAConfig

if TYPE_CHECKING:
    from clusterenv.learners.impala.learner import IMPALA

__all__ = ["IMPALA", "IMPALAConfig"]


def __getattr__(name: str) -> object:
    # The settings are needed for `--help`; torch, which takes seconds, is not.
    if name == "IMPALA":
        from clusterenv.learners.impala.learner import IMPALA

        return IMPALA
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
