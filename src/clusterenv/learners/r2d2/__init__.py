"""R2D2: Q-learning from sequences, with a memory whose state is stored beside them.

from clusterenv.learners.r2d2 import R2D2, R2D2Config

summary = R2D2(R2D2Config(env_id="clusterenv/Recall-v0", cluster="local:2")).train()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterenv.learners.r2d2.config import R2D2Config

if TYPE_CHECKING:
    from clusterenv.learners.r2d2.learner import R2D2

__all__ = ["R2D2", "R2D2Config"]


def __getattr__(name: str) -> object:
    # The settings are needed for `--help`; torch, which takes seconds, is not.
    if name == "R2D2":
        from clusterenv.learners.r2d2.learner import R2D2

        return R2D2
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
