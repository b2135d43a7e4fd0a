"""One update of Ape-X DQN: one gradient step on a sample of the memory. It knows no environments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from clusterenv.learners.apex.config import ApeXConfig
from clusterenv.learners.apex.loss import bootstrap, td_error, td_loss
from clusterenv.learners.common import trees
from clusterenv.learners.common.measured import measured
from clusterenv.learners.common.networks import QNetwork
from clusterenv.learners.replay.q_learning import q_network_for
from clusterenv.learners.replay.transitions import TransitionReplay
from clusterenv.learners.replay.updater import ReplayUpdater
from clusterenv.metrics import keys
from clusterenv.policy.categorical import values_at

if TYPE_CHECKING:
    import numpy.typing as npt
    from gymnasium import Space
    from torch import Tensor

    from clusterenv.env.batch import Batch

    Array = npt.NDArray[Any]


class ApeXUpdater(ReplayUpdater[ApeXConfig, QNetwork]):
    """The network, its target, the memory, and what one sample does to them."""

    memory: TransitionReplay

    def __init__(self, config: ApeXConfig, observation_space: Space[Any], action_space: Space[Any]) -> None:
        network = q_network_for(config, observation_space, action_space)
        memory = TransitionReplay(
            observation_space,
            network.distribution.action,
            n_step=config.n_step,
            gamma=config.gamma,
            **config.memory_settings(),
        )
        super().__init__(config, network, _optimizer(config, network), memory)

    @property
    def judged(self) -> QNetwork:
        """The network without exploration, which is there to learn from and no part of how good it is."""
        return self.network.greedy()

    def insert(self, batch: Batch) -> int:
        """Put a batch into the memory, with first priorities by the Q-values that the workers acted on."""
        self.learn_scale(batch)
        if not self.config.prioritized:
            return self.memory.add(batch)
        taken, best = values_at(batch.params, batch.action), batch.params.max(-1)
        return self.memory.add(batch, taken, best, self._final_best(batch))

    @torch.no_grad()
    def _final_best(self, batch: Batch) -> Array:
        """[K]: no worker acted on the last observation of an episode, so the learner's network says it."""
        if not len(batch.final_at[0]):
            return np.zeros(0, np.float32)
        obs = trees.each(lambda array: torch.as_tensor(array, device=self.config.device), batch.final_obs)
        best: Array = self.network(obs)[0].max(-1).values.cpu().numpy()
        return best

    def gradient_step(self, data: Any, weights: Tensor, *more: Any) -> tuple[dict[str, Tensor], Tensor]:
        """One step; what surprised are the errors before it."""
        config, network = self.config, self.network
        obs, action, reward, discount, next_obs = data
        with torch.no_grad():
            following = bootstrap(self.target(next_obs)[0], network(next_obs)[0] if config.double else None)
        q = network(obs)[0]
        error = td_error(q, action, reward, discount, following)
        loss = td_loss(error, weights)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), config.max_grad_norm)
        self.optimizer.step()
        size = error.detach().abs()
        taken = q.detach().gather(-1, action.unsqueeze(-1))
        told = {keys.TD_LOSS: loss, keys.TD_ERROR: size.mean(), keys.Q_MEAN: taken.mean(), keys.GRAD_NORM: norm}
        return measured(told), size


def _optimizer(config: ApeXConfig, network: QNetwork) -> torch.optim.Optimizer:
    if config.optimizer == "adam":
        # In one kernel: for a small network the optimiser is a fifth of an update, and this a third of that.
        return torch.optim.Adam(network.parameters(), lr=config.learning_rate, fused=True)
    return torch.optim.RMSprop(network.parameters(), config.learning_rate, alpha=0.95, eps=1.5e-7, centered=True)
