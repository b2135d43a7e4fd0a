"""IMPALA on the shared loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterenv.learners.common.loop import Learner
from clusterenv.learners.impala.config import IMPALAConfig
from clusterenv.learners.impala.update import IMPALAUpdater

if TYPE_CHECKING:
    from gymnasium import Space


class IMPALA(Learner[IMPALAConfig]):
    """Importance weighted actors and learner: workers play without a pause, V-trace corrects for the age of their data.

    Example:
        >>> config = IMPALAConfig(cluster="inproc", num_envs=2, rollout_steps=8, total_steps=32, runtime="torch")
        >>> IMPALA(config).train().steps
        32
    """

    def make_updater(self, observation_space: Space[Any], action_space: Space[Any]) -> IMPALAUpdater:
        """A network of the settings, and IMPALA's rule."""
        return IMPALAUpdater(self.config, observation_space, action_space)
