"""SAC on the shared loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterenv.learners.common.loop import Learner
from clusterenv.learners.sac.config import SACConfig
from clusterenv.learners.sac.update import SACUpdater

if TYPE_CHECKING:
    from gymnasium import Space


class SAC(Learner[SACConfig]):
    """Workers play without a pause; the learner learns from a memory of what they played.

    Example:
        >>> config = SACConfig(cluster="inproc", num_envs=2, total_steps=64, learning_starts=48, runtime="torch")
        >>> SAC(config).train().steps
        64
    """

    def make_updater(self, observation_space: Space[Any], action_space: Space[Any]) -> SACUpdater:
        """Networks of the settings, and SAC's rule."""
        return SACUpdater(self.config, observation_space, action_space)
