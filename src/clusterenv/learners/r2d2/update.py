"""One update of R2D2: one gradient step on a sample of sequences. It knows no environments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from clusterenv.learners.common import trees
from clusterenv.learners.common.networks import QNetwork, make_q_network
from clusterenv.learners.common.updater import seeded
from clusterenv.learners.r2d2.acted import Acted
from clusterenv.learners.r2d2.config import R2D2Config
from clusterenv.learners.r2d2.loss import ends, priority, sequence_loss, taken, targets
from clusterenv.learners.replay.sequences import SequenceReplay
from clusterenv.learners.replay.updater import Learned, ReplayUpdater
from clusterenv.metrics import keys

if TYPE_CHECKING:
    from gymnasium import Space
    from torch import Tensor

    from clusterenv.env.batch import Batch
    from clusterenv.learners.replay.updater import Drawn


class R2D2Updater(ReplayUpdater[R2D2Config, QNetwork]):
    """The network, its target, Adam, the sequences, and what a sample of them does to the network."""

    def __init__(self, config: R2D2Config, observation_space: Space[Any], action_space: Space[Any]) -> None:
        network = seeded(
            lambda: make_q_network(
                observation_space,
                action_space,
                epsilon=config.epsilons(),
                body=config.body,
                hidden=config.hidden,
                lstm=config.lstm,
                dueling=config.dueling,
                normalize=config.normalize_observations,
            ),
            config.seed,
        ).to(config.device)
        self.every_state = config.stored_state and bool(network.state)
        self._sequences = SequenceReplay(
            observation_space,
            network.distribution.action,
            network.state if self.every_state else (),
            slots=config.num_envs,
            capacity=config.capacity,
            length=config.length,
            burn_in=config.burn_in,
            overlap=config.overlap,
            prioritized=config.prioritized,
            alpha=config.priority_exponent,
            beta=config.importance_exponent,
            seed=config.seed,
        )
        adam = torch.optim.Adam(network.parameters(), lr=config.learning_rate, eps=config.adam_epsilon)
        super().__init__(config, network, adam, self._sequences)
        self._acted = Acted(config) if config.prioritized else None

    @property
    def judged(self) -> QNetwork:
        """The network without exploration, which is there to learn from and no part of how good it is."""
        return self.network.greedy()

    def insert(self, batch: Batch) -> int:
        """Put a batch into the memory, with what the policy that acted thought of it as first priorities."""
        config = self.config
        if config.normalize_observations:
            self.network.learn_scale(trees.each(lambda array: torch.as_tensor(array[:-1]).flatten(0, 1), batch.obs))
        ids = self._sequences.add(batch)
        if self._acted is not None:
            self._acted.add(batch)
            start, slot = np.divmod(ids, config.num_envs)
            surprise = self._acted.priorities(slot, start)
            known = ~np.isnan(surprise)
            self._sequences.update(ids[known], surprise[known])
        return len(ids)

    def learn(self, sample: Drawn, left: float) -> Learned:
        """One gradient step."""
        config, data = self.config, sample.data
        self.anneal(left)
        q = self._unroll(self.network, data)
        with torch.no_grad():
            target_q = self._unroll(self.target, data)
        action, reward, terminated, truncated, mask = (
            part[config.burn_in :] for part in (data.action, data.reward, data.terminated, data.truncated, data.mask)
        )
        aim = targets(
            q,
            target_q,
            reward,
            terminated,
            ends(terminated, truncated, mask),
            gamma=config.gamma,
            n=config.n_step,
            epsilon=config.rescaling,
        )
        error = aim - taken(q[:-1], action)
        weights: Any = sample.weights
        loss = (weights * sequence_loss(error, mask)).mean()
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), config.max_grad_norm)
        self.optimizer.step()
        metrics = {
            keys.LEARNING_RATE.name: self.optimizer.param_groups[0]["lr"],
            keys.GRAD_NORM.name: norm.item(),
            keys.TD_LOSS.name: loss.item(),
            keys.Q_MEAN.name: taken(q[:-1], action)[mask].mean().item(),
        }
        return Learned(metrics, priority(error, mask, config.eta).cpu().numpy())

    def _unroll(self, network: QNetwork, data: Any) -> Tensor:
        """The Q-values of what is learned from and of what follows it, [m + 1, B, A].

        The steps before only bring the memory of this network up to date: no gradient goes back into them.

        Args:
            network: the one that learns, or its target.
            data: `Sequences` as tensors.
        """
        state = data.state if self.every_state else self._zeros(data.first.shape[1])
        before = self.config.burn_in
        if network.state and before:
            with torch.no_grad():
                prefix = trees.each(lambda array: array[:before], data.obs)
                states = network.unroll(prefix, state, data.first[:before], *_nothing(data)).state
                state = tuple(part[-1] for part in states)
        rest = trees.each(lambda array: array[before:], data.obs)
        return network.unroll(rest, state, data.first[before:], *_nothing(data)).q

    def _zeros(self, rows: int) -> tuple[Tensor, ...]:
        return tuple(torch.zeros(rows, *leaf.shape, device=self.config.device) for leaf in self.network.state)


def _nothing(data: Any) -> tuple[Any, tuple[Tensor, Tensor]]:
    """No last observations beside the others: in a sequence they follow the last step."""
    nowhere = torch.zeros(0, dtype=torch.long, device=data.mask.device)
    return trees.each(lambda array: array[:0, 0], data.obs), (nowhere, nowhere)
