"""One update of IMPALA: one gradient step on a batch of unrolls. It knows no environments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from clusterenv.learners.common import torch_distributions, unrolls
from clusterenv.learners.common.drift import drift, explained_variance
from clusterenv.learners.common.measured import measured, numbers
from clusterenv.learners.common.networks import Network
from clusterenv.learners.common.rmsprop import TensorFlowRMSprop
from clusterenv.learners.common.updater import Updater
from clusterenv.learners.impala.config import IMPALAConfig
from clusterenv.learners.impala.loss import loss
from clusterenv.metrics import keys

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gymnasium import Space
    from torch import Tensor

    from clusterenv.env.batch import Batch
    from clusterenv.learners.common.unrolls import Material


class IMPALAUpdater(Updater[IMPALAConfig, Network]):
    """The network, its optimiser, and what one batch does to them."""

    def __init__(self, config: IMPALAConfig, observation_space: Space[Any], action_space: Space[Any]) -> None:
        network = unrolls.network_for(config, observation_space, action_space)
        super().__init__(config, network, _optimizer(config, network), acting=network.policy_only())
        self._step = self.best_step(self.gradient_step)
        self._updates = 0

    def update(self, batch: Batch | None, left: float, publish: Callable[[], None]) -> dict[str, float]:
        """Learn from a batch, and return the losses."""
        if batch is None:
            raise ValueError("IMPALA uses every batch once, so each update needs a new one.")
        left = self.anneal(left)
        told = self._step(unrolls.material(batch, few_shapes=self.is_recordable), self.number(left))
        unrolls.learn_scale(self.network, batch)
        self._updates += 1
        if self._updates % self.config.publish_every == 0:
            publish()
        return {keys.LEARNING_RATE.name: self.config.learning_rate * left, **numbers(told)}

    def gradient_step(self, material: Material, left: Tensor) -> dict[str, Tensor]:
        """One step, with this share of the entropy bonus. It reads no number back, so that a GPU need not wait."""
        config, network = self.config, self.network
        outputs = unrolls.read(network, material)
        log_ratio = outputs.logp.detach() - material.logp
        weighed = log_ratio if config.correction == "v-trace" else torch.zeros_like(log_ratio)
        aim = unrolls.corrected(config, material, outputs, weighed)
        told = loss(
            outputs.logp,
            torch_distributions.entropy(network.distribution, outputs.params),
            outputs.value,
            target=aim.target,
            advantage=aim.advantage,
            value_coef=config.value_coef,
            entropy_coef=config.entropy_coef * left,
            reduction=config.reduction,
        )
        self.optimizer.zero_grad()
        told.total.backward()  # type: ignore[no-untyped-call]
        norm = unrolls.clip_gradients(network, config.max_grad_norm)
        self.optimizer.step()
        share = 1.0 / log_ratio.numel() if config.reduction == "sum" else 1.0
        return measured(
            {
                keys.POLICY_LOSS: told.policy * share,
                keys.VALUE_LOSS: told.value * share,
                keys.ENTROPY: told.entropy * share,
                keys.GRAD_NORM: norm,
                **drift(log_ratio, config.rho_bar),
                keys.EXPLAINED_VARIANCE: explained_variance(outputs.value.detach(), aim.target),
            }
        )

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a checkpoint needs; how many updates there were tells when the next version is due."""
        return {**super().tensors(), "updates": torch.tensor(self._updates)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `tensors` told."""
        super().restore(tensors)
        if "updates" in tensors:  # older checkpoints have none: they count anew
            self._updates = int(tensors["updates"])


def _optimizer(config: IMPALAConfig, network: Network) -> torch.optim.Optimizer:
    settings: dict[str, Any] = {"lr": config.learning_rate}
    if config.optimizer == "adam":
        return torch.optim.Adam(network.parameters(), eps=1e-5, **settings)
    settings |= {"alpha": config.rmsprop_alpha, "eps": config.rmsprop_eps}
    if config.optimizer == "rmsprop":
        return torch.optim.RMSprop(network.parameters(), **settings)
    return TensorFlowRMSprop(network.parameters(), **settings)
