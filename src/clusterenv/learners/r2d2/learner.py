"""R2D2 on the shared loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterenv.learners.common.loop import Learner
from clusterenv.learners.r2d2.config import R2D2Config
from clusterenv.learners.r2d2.update import R2D2Updater

if TYPE_CHECKING:
    from gymnasium import Space


class R2D2(Learner[R2D2Config]):
    """Workers play without a pause, each exploring in its own measure; the learner learns from stored sequences.

    Example:
        >>> config = R2D2Config(cluster="inproc", num_envs=2, total_steps=200, learning_starts=4, runtime="torch")
        >>> R2D2(config).train().steps
        200
    """

    def make_updater(self, observation_space: Space[Any], action_space: Space[Any]) -> R2D2Updater:
        """A network of the settings, and R2D2's rule."""
        return R2D2Updater(self.config, observation_space, action_space)
