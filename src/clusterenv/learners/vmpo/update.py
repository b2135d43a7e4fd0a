"""One update of V-MPO: from a batch to a better network. It knows no environments."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from clusterenv.learners.common import gae, popart, torch_distributions, trees
from clusterenv.learners.common.networks import ActorCritic
from clusterenv.learners.common.returns import returns_to_end
from clusterenv.learners.common.updater import Updater, seeded, under
from clusterenv.learners.vmpo.config import VMPOConfig
from clusterenv.learners.vmpo.loss import divergences, e_step, policy_loss, trust_region_loss
from clusterenv.metrics import keys
from clusterenv.policy.distributions import DiagGaussian

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gymnasium import Space

    from clusterenv.env.batch import Batch

# Below this a temperature or a multiplier would never come back.
_LEAST = 1e-8


class Multipliers(nn.Module):
    """What is learned beside the network: the temperature of the E-step, and a multiplier for each trust region.

    Args:
        config: where they start.
        regions: one, or for Gaussians two, the mean's and the spread's.
    """

    def __init__(self, config: VMPOConfig, regions: int) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(config.temperature))
        self.kl = nn.Parameter(torch.full((regions,), config.kl_multiplier))

    @torch.no_grad()
    def project(self) -> None:
        """Keep them above 0, wherever a gradient step has taken them."""
        for parameter in self.parameters():
            parameter.clamp_(min=_LEAST)


class Told(NamedTuple):
    """What the network says about a batch of T steps of N slots: [T + 1, N, P], [T + 1, N] and [K]."""

    params: Tensor
    value: Tensor
    final_value: Tensor


class VMPOUpdater(Updater[VMPOConfig, ActorCritic]):
    """The network that learns, the one that acts, and what one batch does to them.

    The acting policy, the target network, is a copy of the learning one that is renewed every `target_period` updates.
    """

    def __init__(self, config: VMPOConfig, observation_space: Space[Any], action_space: Space[Any]) -> None:
        network = seeded(
            lambda: ActorCritic(
                observation_space, action_space, hidden=config.hidden, normalize=config.normalize_observations
            ),
            config.seed,
        )
        self.head: popart.PopArtHead | None = None
        if config.popart:
            network.critic, self.head = popart.install(network.critic, beta=config.popart_rate)  # type: ignore[assignment]
        network.to(config.device)
        gaussian = isinstance(network.distribution, DiagGaussian)
        self.multipliers = Multipliers(config, 2 if gaussian else 1).to(config.device)
        super().__init__(config, network, _optimizer(config, network, self.multipliers))
        epsilons = [config.epsilon_kl, config.epsilon_spread] if gaussian else [config.epsilon_kl]
        self._epsilon = torch.tensor(epsilons, device=config.device)
        self.target = copy.deepcopy(network).requires_grad_(False)
        self._updates = 0

    @property
    def acting(self) -> nn.Module:
        """The target network."""
        return self.target

    def update(self, batch: Batch | None, left: float, publish: Callable[[], None]) -> dict[str, float]:
        """Learn from a batch, and return the losses."""
        if batch is None:
            raise ValueError("V-MPO uses every batch once, so each update needs a new one.")
        left = self.anneal(left)
        told = self._told(batch)
        returns = self.returns(batch, told)
        if self.head is not None:
            self.head.learn(returns.flatten())
            told = self._told(batch)  # the same values, by the rescaled head
        measured = self._gradient_step(batch, told, returns, left)
        self.network.learn_scale(trees.rows(trees.each(lambda array: array[:-1], batch.obs)))
        self._updates += 1
        if self._updates % self.config.target_period == 0:
            self.target.load_state_dict(self.network.state_dict())
            publish()
        return measured

    def _told(self, batch: Batch) -> Told:
        network = self.network
        params, value, _ = network(trees.rows(batch.obs))
        final_value = network.value(batch.final_obs) if len(batch.final_at[0]) else value.new_zeros(0)
        shape = (batch.T + 1, batch.N)
        return Told(params.unflatten(0, shape), value.unflatten(0, shape), final_value)

    @torch.no_grad()
    def returns(self, batch: Batch, told: Told) -> Tensor:
        """The return of each step to the end of the fragment or of its episode, by the newest critic, [T, N]."""
        following = gae.next_values(told.value, batch.terminated, batch.truncated, told.final_value, batch.final_at)
        reward, clip = batch.reward, self.config.reward_clip
        reward = reward if clip is None else reward.clamp(-clip, clip)
        return returns_to_end(reward, following, batch.terminated | batch.truncated, gamma=self.config.gamma)

    def _gradient_step(self, batch: Batch, told: Told, returns: Tensor, left: float) -> dict[str, float]:
        config, network, multipliers = self.config, self.network, self.multipliers
        scale = 1.0 if self.head is None else self.head.std.float()
        error = ((returns - told.value[:-1]) / scale).flatten()  # [T * N]
        params, action = told.params[:-1].flatten(0, 1), batch.action.flatten(0, 1)
        step = e_step(
            error.detach(), multipliers.temperature, epsilon=config.epsilon_temperature, share=config.top_share
        )
        # The parameters that came with the batch are those of the policy that acted, whichever version that was.
        moved = divergences(network.distribution, batch.params.flatten(0, 1), params)  # [C, T * N]
        policy = policy_loss(step.psi, torch_distributions.log_prob(network.distribution, params, action))
        critic = 0.5 * error.square().mean()
        entropy = torch_distributions.entropy(network.distribution, params).mean()
        total = policy + config.value_coef * critic - config.entropy_coef * left * entropy + step.temperature_loss
        total = total + trust_region_loss(moved, multipliers.kl, epsilon=self._epsilon)
        self.optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        norms = [nn.utils.clip_grad_norm_(part, config.max_grad_norm) for part in network.parts()]
        self.optimizer.step()
        multipliers.project()
        return self._metrics(policy, critic, entropy, moved.mean(1), torch.stack(norms).norm(), step.psi_kl)

    def _metrics(self, *measured: Tensor) -> dict[str, float]:
        names = [keys.POLICY_LOSS, keys.VALUE_LOSS, keys.ENTROPY, keys.APPROX_KL, keys.KL_SPREAD]
        names = names if len(self._epsilon) == 2 else names[:-1]
        names += [keys.GRAD_NORM, keys.PSI_KL, keys.TEMPERATURE, keys.KL_MULTIPLIER, keys.KL_MULTIPLIER_SPREAD]
        learned = (self.multipliers.temperature, self.multipliers.kl)
        numbers = torch.cat([number.detach().reshape(-1) for number in (*measured, *learned)]).tolist()
        values = {metric.name: number for metric, number in zip(names, numbers, strict=False)}
        return {**values, keys.LEARNING_RATE.name: self.optimizer.param_groups[0]["lr"]}

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a checkpoint needs."""
        beside = {"target/": self.target.state_dict(), "multipliers/": self.multipliers.state_dict()}
        named = {prefix + name: tensor for prefix, state in beside.items() for name, tensor in state.items()}
        return {**super().tensors(), **named, "updates": torch.tensor(self._updates)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `tensors` told."""
        super().restore(tensors)
        self.target.load_state_dict(under("target/", tensors))
        self.multipliers.load_state_dict(under("multipliers/", tensors))
        self._updates = int(tensors["updates"])


def _optimizer(config: VMPOConfig, network: nn.Module, multipliers: nn.Module) -> torch.optim.Optimizer:
    """Adam, with a learning rate of its own for the multipliers."""
    groups = [
        {"params": list(network.parameters()), "lr": config.learning_rate, "initial_lr": config.learning_rate},
        {"params": list(multipliers.parameters()), "lr": config.multiplier_rate, "initial_lr": config.multiplier_rate},
    ]
    return torch.optim.Adam(groups)
