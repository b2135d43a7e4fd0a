"""IMPACT on the shared loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterenv.learners.common.loop import Learner
from clusterenv.learners.impact.config import IMPACTConfig
from clusterenv.learners.impact.update import IMPACTUpdater

if TYPE_CHECKING:
    from gymnasium import Space


class IMPACT(Learner[IMPACTConfig]):
    """Workers play without a pause; the learner uses their batches several times, anchored by a target network.

    Example:
        >>> config = IMPACTConfig(cluster="inproc", num_envs=2, rollout_steps=8, total_steps=32, runtime="torch")
        >>> IMPACT(config).train().steps
        32
    """

    def make_updater(self, observation_space: Space[Any], action_space: Space[Any]) -> IMPACTUpdater:
        """A network of the settings, and IMPACT's rule."""
        return IMPACTUpdater(self.config, observation_space, action_space)
