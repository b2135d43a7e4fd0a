"""PPO on the shared loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterenv.learners.common.loop import Learner
from clusterenv.learners.ppo.config import PPOConfig
from clusterenv.learners.ppo.update import PPOUpdater

if TYPE_CHECKING:
    from gymnasium import Space


class PPO(Learner[PPOConfig]):
    """Proximal policy optimisation with the policy on the workers.

    Example:
        >>> config = PPOConfig(cluster="inproc", num_envs=2, rollout_steps=8, total_steps=16, minibatches=2)
        >>> PPO(config).train().steps
        16
    """

    def make_updater(self, observation_space: Space[Any], action_space: Space[Any]) -> PPOUpdater:
        """An actor and a critic, and PPO's rule."""
        return PPOUpdater(self.config, observation_space, action_space)
