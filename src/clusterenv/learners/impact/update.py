"""One update of IMPACT: one gradient step on a batch that may have been used before. It knows no environments."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from clusterenv.learners.common import divergence, torch_distributions, unrolls
from clusterenv.learners.common.drift import drift, explained_variance
from clusterenv.learners.common.gae import normalized
from clusterenv.learners.common.measured import measured, numbers
from clusterenv.learners.common.networks import Network
from clusterenv.learners.common.updater import Updater, under
from clusterenv.learners.impact.buffer import CircularBuffer
from clusterenv.learners.impact.config import IMPACTConfig
from clusterenv.learners.impact.loss import ratio, steer, surrogate
from clusterenv.metrics import keys

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gymnasium import Space
    from torch import Tensor

    from clusterenv.env.batch import Batch
    from clusterenv.learners.common.unrolls import Material, NetworkOutputs


class Anchor(NamedTuple):
    """The policy that the learner must not move far from, on a batch. Constants.

    Attributes:
        params: [T, N, P].
        logp: [T, N], of the actions that were taken.
        log_ratio: [T, N], for V-trace: of the policy whose value is learned to the one that acted.
    """

    params: Tensor
    logp: Tensor
    log_ratio: Tensor


class IMPACTUpdater(Updater[IMPACTConfig, Network]):
    """The network, its target, Adam, the buffer, and what one batch does to them."""

    def __init__(self, config: IMPACTConfig, observation_space: Space[Any], action_space: Space[Any]) -> None:
        network = unrolls.network_for(config, observation_space, action_space)
        optimizer = torch.optim.Adam(network.parameters(), lr=config.learning_rate, eps=1e-5)
        super().__init__(config, network, optimizer, acting=network.policy_only())
        self.target = copy.deepcopy(network).requires_grad_(False)
        self.buffer: CircularBuffer[Batch] = CircularBuffer(config.buffer_batches, config.uses)
        self._source = torch.Generator().manual_seed(config.seed)
        self._step = self.best_step(self.gradient_step)
        self._updates, self._kl_coef = 0, config.kl_coef
        self._apart_sum, self._apart_count = 0.0, 0

    @property
    def needs_batch(self) -> bool:
        """Only when every batch has been used as often as it may."""
        return len(self.buffer) == 0

    @property
    def takes_batch(self) -> bool:
        """As long as there is room; or always, if new batches push out old ones."""
        return self.config.overwrite or len(self.buffer) < self.config.buffer_batches

    @property
    def takes_more(self) -> int:
        """If new batches push out old ones, as many as there is room for: what is not taken makes the workers wait."""
        return self.config.buffer_batches - 1 if self.config.overwrite else 0

    def keep(self, batch: Batch) -> None:
        """Keep a new batch; the oldest may have to leave."""
        self.buffer.add(batch)

    def update(self, batch: Batch | None, left: float, publish: Callable[[], None]) -> dict[str, float]:
        """Keep a new batch, learn from any of those that are kept, and return the losses."""
        left = self.anneal(left)
        if batch is not None:
            self.keep(batch)
        kept = self.buffer.take(self._source)
        told = self._learn(kept.item, left)
        self._updates += 1
        self._steer(told[keys.TARGET_KL.name])
        if self.config.target_every and self._updates % self.config.target_every == 0:
            self.target.load_state_dict(self.network.state_dict())
        if self._updates % self.config.publish_every == 0:
            publish()
        return {
            keys.LEARNING_RATE.name: self.config.learning_rate * left,
            keys.REUSE.name: kept.uses,
            keys.DROPPED.name: self.buffer.dropped_uses,
            **told,
        }

    def _steer(self, apart: float) -> None:
        """Steer the weight of the divergence once for each target network, by the mean over its time.

        The divergence is 0 right after each copy and grows until the next: steered by every one of them, the weight
        would be halved after each copy, and die, even where the mean is just what is wanted. Without a target network
        every update counts by itself.
        """
        self._apart_sum, self._apart_count = self._apart_sum + apart, self._apart_count + 1
        if self._updates % max(1, self.config.target_every) == 0:
            self._kl_coef = steer(self._kl_coef, self._apart_sum / self._apart_count, self.config.kl_target)
            self._apart_sum, self._apart_count = 0.0, 0

    def _learn(self, batch: Batch, left: float) -> dict[str, float]:
        """One gradient step on a batch; returns what it measured."""
        material = unrolls.material(batch, few_shapes=self.is_recordable)
        told = self._step(material, self.number(left), self.number(self._kl_coef))
        unrolls.learn_scale(self.network, batch)
        return numbers(told)

    def gradient_step(self, material: Material, left: Tensor, kl_coef: Tensor) -> dict[str, Tensor]:
        """One step, with this share of the entropy bonus. It reads no number back, so that a GPU need not wait."""
        config, network = self.config, self.network
        outputs = unrolls.read(network, material)
        anchor = self._anchor(material, outputs)
        aim = unrolls.corrected(config, material, outputs, anchor.log_ratio)
        advantage = normalized(aim.advantage) if config.normalize_advantage else aim.advantage
        moved = ratio(outputs.logp, material.logp, anchor.logp, config.rho)
        policy = -surrogate(moved, advantage, config.clip).mean()
        critic = 0.5 * (outputs.value - aim.target).square().mean()
        bonus = torch_distributions.entropy(network.distribution, outputs.params).mean()
        apart = divergence.kl(network.distribution, anchor.params, outputs.params).mean()
        total = policy + config.value_coef * critic - config.entropy_coef * left * bonus + kl_coef * apart
        self.optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        norm = unrolls.clip_gradients(network, config.max_grad_norm)
        self.optimizer.step()
        clipped = ((moved.detach() - 1.0).abs() > config.clip).float().mean()
        return measured(
            {
                keys.POLICY_LOSS: policy,
                keys.VALUE_LOSS: critic,
                keys.ENTROPY: bonus,
                keys.TARGET_KL: apart,
                keys.CLIPFRAC: clipped,
                keys.GRAD_NORM: norm,
                keys.EXPLAINED_VARIANCE: explained_variance(outputs.value.detach(), aim.target),
                **drift(outputs.logp.detach() - material.logp, config.rho_bar),
            }
        )

    @torch.no_grad()
    def _anchor(self, material: Material, outputs: NetworkOutputs) -> Anchor:
        if not self.config.target_every:
            return Anchor(material.params, material.logp, outputs.logp.detach() - material.logp)
        target = unrolls.read(self.target, material)
        return Anchor(target.params, target.logp, target.logp - material.logp)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a checkpoint needs. The batches that are kept are not part of it."""
        target = {f"target/{name}": tensor for name, tensor in self.target.state_dict().items()}
        numbers = [self._updates, self._kl_coef, self._apart_sum, self._apart_count]
        counters = torch.tensor(numbers, dtype=torch.float64)
        return {**super().tensors(), **target, "source": self._source.get_state(), "counters": counters}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `tensors` told."""
        super().restore(tensors)
        self.target.load_state_dict(under("target/", tensors))
        self._source.set_state(tensors["source"])
        updates, steered, *apart = tensors["counters"].tolist()
        self._updates = int(updates)
        # Settings may change with a resume: a coefficient that is switched on or off is not what was saved.
        self._kl_coef = steered if steered and self.config.kl_coef else self.config.kl_coef
        # Older checkpoints have no sum of divergences: it starts anew.
        self._apart_sum, self._apart_count = (apart[0], int(apart[1])) if apart else (0.0, 0)
