"""One update of R2D2: one gradient step on a sample of sequences. It knows no environments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from clusterenv.learners.common import trees
from clusterenv.learners.common.measured import measured
from clusterenv.learners.common.networks import QNetwork
from clusterenv.learners.r2d2.config import R2D2Config
from clusterenv.learners.r2d2.loss import ends, first_priority, priority, sequence_loss, taken, targets
from clusterenv.learners.replay.q_learning import q_network_for
from clusterenv.learners.replay.sequences import SequenceReplay
from clusterenv.learners.replay.updater import ReplayUpdater
from clusterenv.metrics import keys
from clusterenv.policy.categorical import values_at

if TYPE_CHECKING:
    import numpy.typing as npt
    from gymnasium import Space
    from torch import Tensor

    from clusterenv.env.batch import Batch

    Array = npt.NDArray[Any]


class R2D2Updater(ReplayUpdater[R2D2Config, QNetwork]):
    """The network, its target, Adam, the sequences, and what a sample of them does to the network."""

    memory: SequenceReplay

    def __init__(self, config: R2D2Config, observation_space: Space[Any], action_space: Space[Any]) -> None:
        network = q_network_for(config, observation_space, action_space, lstm=config.lstm)
        self.every_state = config.stored_state and bool(network.state)
        memory = SequenceReplay(
            observation_space,
            network.distribution.action,
            network.state if self.every_state else (),
            length=config.length,
            burn_in=config.burn_in,
            overlap=config.overlap,
            **config.memory_settings(),
        )
        adam = torch.optim.Adam(network.parameters(), lr=config.learning_rate, eps=config.adam_epsilon)
        super().__init__(config, network, adam, memory)

    @property
    def judged(self) -> QNetwork:
        """The network without exploration, which is there to learn from and no part of how good it is."""
        return self.network.greedy()

    def insert(self, batch: Batch) -> int:
        """Put a batch into the memory, with what the policy that acted thought of it as first priorities."""
        config = self.config
        self.learn_scale(batch)
        if not config.prioritized:
            return len(self.memory.add(batch))
        ids = self.memory.add(batch, values_at(batch.params, batch.action), batch.params.max(-1))
        acted = map(torch.from_numpy, self.memory.acted(ids))
        surprise: Array = first_priority(
            *acted, gamma=config.gamma, n=config.n_step, epsilon=config.rescaling, eta=config.eta
        ).numpy()
        known = np.isfinite(surprise)
        self.memory.update(ids[known], surprise[known])
        return len(ids)

    def gradient_step(self, data: Any, weights: Tensor, *more: Any) -> tuple[dict[str, Tensor], Tensor]:
        """One step; what surprised is made of the errors before it."""
        config = self.config
        q = unroll(self.network, data, config.burn_in)
        with torch.no_grad():
            target_q = unroll(self.target, data, config.burn_in)
        parts = (data.action, data.reward, data.terminated, data.truncated, data.mask)
        action, reward, terminated, truncated, mask = (part[config.burn_in :] for part in parts)
        ended = ends(terminated, truncated, mask)
        aim = targets(
            q, target_q, reward, terminated, ended, gamma=config.gamma, n=config.n_step, epsilon=config.rescaling
        )
        predicted = taken(q[:-1], action)
        error = aim - predicted
        loss = (weights * sequence_loss(error, mask)).mean()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), config.max_grad_norm)
        self.optimizer.step()
        told = {
            keys.TD_LOSS: loss,
            keys.TD_ERROR: _mean(error.abs(), mask),
            keys.Q_MEAN: _mean(predicted, mask),
            keys.GRAD_NORM: norm,
        }
        return measured(told), priority(error, mask, config.eta)


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """Of the values that are there. By their sum: how many there are, only the device need know."""
    return values.masked_fill(~mask, 0.0).sum() / mask.sum()


def unroll(network: QNetwork, sequences: Any, burn_in: int) -> Tensor:
    """The Q-values of the steps of sequences that are learned from, and of what follows them, [m + 1, B, A].

    The network starts from the state that is stored with a sequence, or from zero if none is. The steps of burn-in only
    bring its memory up to date: no gradient goes back into them.

    Args:
        network: the one that learns, or its target; each has a memory of its own of what it saw.
        sequences: `Sequences` as tensors.
        burn_in: how many steps come before those that are learned from.
    """
    first, nowhere = sequences.first, torch.zeros(0, dtype=torch.long, device=sequences.first.device)
    # The last observation of an episode follows its last step here: there are none beside the others.
    finals = trees.each(lambda array: array[:0, 0], sequences.obs), (nowhere, nowhere)
    state = sequences.state or tuple(
        torch.zeros(first.shape[1], *leaf.shape, device=first.device) for leaf in network.state
    )
    if state and burn_in:
        with torch.no_grad():
            before = trees.each(lambda array: array[:burn_in], sequences.obs)
            state = tuple(part[-1] for part in network.unroll(before, state, first[:burn_in], *finals).state)
    rest = trees.each(lambda array: array[burn_in:], sequences.obs)
    return network.unroll(rest, state, first[burn_in:], *finals).q
