"""Ape-X DQN on the shared loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterenv.learners.apex.config import ApeXConfig
from clusterenv.learners.apex.update import ApeXUpdater
from clusterenv.learners.common.loop import Learner

if TYPE_CHECKING:
    from gymnasium import Space


class ApeX(Learner[ApeXConfig]):
    """Workers explore, each slot in its own measure; the learner samples what surprised from a memory of it all.

    Example:
        >>> config = ApeXConfig(cluster="inproc", num_envs=2, learning_starts=64, total_steps=400, runtime="torch")
        >>> ApeX(config).train().steps
        400
    """

    def make_updater(self, observation_space: Space[Any], action_space: Space[Any]) -> ApeXUpdater:
        """A network of the settings, a memory, and Ape-X's rule."""
        return ApeXUpdater(self.config, observation_space, action_space)
