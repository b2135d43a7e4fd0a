"""One update of SAC: one gradient step of the policy, the Q functions and the temperature. It knows no environments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Adam

from clusterenv.learners.common import torch_distributions
from clusterenv.learners.common.flat import clip_gradient, flatten
from clusterenv.learners.common.measured import measured
from clusterenv.learners.common.updater import seeded
from clusterenv.learners.replay.transitions import TransitionReplay
from clusterenv.learners.replay.updater import ReplayUpdater
from clusterenv.learners.sac.config import SACConfig
from clusterenv.learners.sac.loss import actor_loss, critic_loss, soft_target, temperature_loss
from clusterenv.learners.sac.networks import HIDDEN, SACNetwork, SquashedActor
from clusterenv.metrics import keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gymnasium import Space
    from torch import Tensor, nn

    from clusterenv.env.batch import Batch
    from clusterenv.learners.replay.updater import Drawn


class SACUpdater(ReplayUpdater[SACConfig, SACNetwork]):
    """The networks, the target of the Q functions, Adam, the memory, and what one sample does to them."""

    memory: TransitionReplay

    def __init__(self, config: SACConfig, observation_space: Space[Any], action_space: Space[Any]) -> None:
        network = seeded(lambda: _network(config, observation_space, action_space), config.seed).to(config.device)
        distribution = network.actor.distribution
        memory = TransitionReplay(
            observation_space,
            distribution.action,
            n_step=config.n_step,
            gamma=config.gamma,
            **config.memory_settings(),
        )
        self._parts = flatten(network.actor), flatten(network.critic)
        optimizer = _optimizer(config, self._parts, network.log_temperature)
        super().__init__(config, network, optimizer, memory, followed=network.critic)
        self._source = torch.Generator().manual_seed(config.seed)
        # In units in which the bounds are -1 and 1 the log-density of an action is more by this.
        _, half = torch_distributions.bounds(distribution, torch.float64, torch.device("cpu"))
        self._log_volume = float(half.log().sum())
        wanted = config.target_entropy
        self.target_entropy = -float(distribution.dims) if wanted is None else wanted

    @property
    def acting(self) -> SquashedActor:
        """The policy; the Q functions stay here."""
        return self.network.actor

    def insert(self, batch: Batch) -> int:
        """Put a batch into the memory."""
        self.learn_scale(batch)
        return self.memory.add(batch)

    def inputs(self, sample: Drawn) -> tuple[Any, ...]:
        """The sample, and normal noise for the actions that are drawn in its next states and in its states."""
        data, weights = super().inputs(sample)
        noise = torch.randn(2, len(weights), self.network.actor.distribution.dims, generator=self._source)
        return data, weights, noise.to(weights)

    def gradient_step(self, data: Any, weights: Tensor, *more: Any) -> tuple[dict[str, Tensor], Tensor]:
        """One step of everything at once: what each part learns from is constant to the others."""
        network, (noise,) = self.network, more
        rows = network.actor.rows(data.obs)
        temperature = network.log_temperature.detach().exp()
        aim = self._aim(data, temperature, noise[0])
        q = network.critic(rows, data.action)
        actions, logp = self._draw(network.actor.params(rows), noise[1])
        critic = critic_loss(q, aim, weights)
        actor = actor_loss(network.critic(rows, actions, frozen=True), logp, temperature)
        total = critic + actor
        if self.config.temperature_rate:
            total = total + temperature_loss(network.log_temperature, logp, self.target_entropy)
        self.optimizer.zero_grad(set_to_none=False)  # gradients are views of one tensor
        total.backward()  # type: ignore[no-untyped-call]
        norm = torch.stack([clip_gradient(part, self.config.max_grad_norm) for part in self._parts]).norm()
        self.optimizer.step()
        told = {
            keys.VALUE_LOSS: critic,
            keys.POLICY_LOSS: actor,
            keys.ENTROPY: -logp.mean(),
            keys.TEMPERATURE: temperature,
            keys.Q_MEAN: q.mean(),
            keys.GRAD_NORM: norm,
        }
        return measured(told), (q.detach() - aim).abs().mean(0)

    @torch.no_grad()
    def _aim(self, data: Any, temperature: Tensor, noise: Tensor) -> Tensor:
        """What the Q functions are to say."""
        rows = self.network.actor.rows(data.next_obs)
        actions, logp = self._draw(self.network.actor.params(rows), noise)
        return soft_target(data.reward, data.discount, self.target(rows, actions), logp, temperature)

    def _draw(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions and their log-density in units in which the bounds are -1 and 1."""
        actions, logp = torch_distributions.draw(self.network.actor.distribution, params, noise)
        return actions, logp + self._log_volume

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a checkpoint needs but the memory."""
        return {**super().tensors(), "source": self._source.get_state()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `tensors` told."""
        super().restore(tensors)
        self._source.set_state(tensors["source"])


def _network(config: SACConfig, observation_space: Space[Any], action_space: Space[Any]) -> SACNetwork:
    return SACNetwork(
        observation_space,
        action_space,
        hidden=HIDDEN if config.hidden is None else config.hidden,
        normalize=config.normalize_observations,
        temperature=config.temperature,
    )


def _optimizer(config: SACConfig, parts: tuple[nn.Parameter, nn.Parameter], temperature: nn.Parameter) -> Adam:
    """One Adam for all: policy, Q functions and temperature, each with a rate of its own."""
    rates = (config.learning_rate, config.critic_rate, config.temperature_rate)
    pairs = zip((*parts, temperature), rates, strict=True)
    return Adam([{"params": [part], "lr": rate, "initial_lr": rate} for part, rate in pairs], fused=True)
