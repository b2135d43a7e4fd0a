"""V-MPO on the shared loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterenv.learners.common.loop import Learner
from clusterenv.learners.vmpo.config import VMPOConfig
from clusterenv.learners.vmpo.update import VMPOUpdater

if TYPE_CHECKING:
    from gymnasium import Space


class VMPO(Learner[VMPOConfig]):
    """On-policy maximum a posteriori policy optimisation; the target network acts on the workers.

    Example:
        >>> config = VMPOConfig(cluster="inproc", num_envs=2, rollout_steps=8, total_steps=16)
        >>> VMPO(config).train().steps
        16
    """

    def make_updater(self, observation_space: Space[Any], action_space: Space[Any]) -> VMPOUpdater:
        """An actor and a critic, the copy that acts, and V-MPO's rule."""
        return VMPOUpdater(self.config, observation_space, action_space)
