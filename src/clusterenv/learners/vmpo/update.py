"""One update of V-MPO: from a batch to a better network. It knows no environments."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from clusterenv.learners.common import popart, rewards, torch_distributions, unrolls
from clusterenv.learners.common.drift import explained_variance
from clusterenv.learners.common.measured import measured, numbers
from clusterenv.learners.common.networks import Network
from clusterenv.learners.common.returns import returns_to_end
from clusterenv.learners.common.tasks import task_of
from clusterenv.learners.common.updater import Updater, under
from clusterenv.learners.vmpo.config import VMPOConfig
from clusterenv.learners.vmpo.loss import divergences, e_step, policy_loss, trust_region_loss
from clusterenv.metrics import keys
from clusterenv.policy.distributions import DiagGaussian

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gymnasium import Space

    from clusterenv.env.batch import Batch
    from clusterenv.learners.common.unrolls import Material, NetworkOutputs

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


class Aim(NamedTuple):
    """What a batch is to teach. Constants.

    Attributes:
        returns: of each step to the end of the fragment or of its episode, [T, N].
        advantage: how much better they were than the value, on the scale of the critic, [T, N].
        scale: of the critic in each slot, [N].
        task: of each slot, [N].
    """

    returns: Tensor
    advantage: Tensor
    scale: Tensor
    task: Tensor


class VMPOUpdater(Updater[VMPOConfig, Network]):
    """The network that learns, the one that acts, and what one batch does to them.

    The acting policy is that of the target network, a copy of the learning one that is renewed every `target_period`
    updates. Of several tasks each has a value and statistics of its own. Which one a transition is of follows from its
    slot; the policy is not told.
    """

    def __init__(self, config: VMPOConfig, observation_space: Space[Any], action_space: Space[Any]) -> None:
        self.tasks = [task.name for task in config.all_tasks()]
        network = unrolls.network_for(config, observation_space, action_space, tasks=len(self.tasks))
        self.head: popart.PopArtHead | None = None
        if config.popart:
            network.critic, self.head = popart.install(network.get_submodule("critic"), beta=config.popart_rate)
            if len(self.tasks) > 1:
                # Its first guesses, of about 1, would be a hundred deviations of a task with rewards of 0.01, and
                # PopArt keeps what was said: the guesses would stay while the scale shrinks under them.
                nn.init.zeros_(self.head.weight)
        gaussian = isinstance(network.distribution, DiagGaussian)
        self.multipliers = Multipliers(config, 2 if gaussian else 1).to(config.device)
        self.target = copy.deepcopy(network).requires_grad_(False)
        optimizer = _optimizer(config, network, self.multipliers)
        super().__init__(config, network, optimizer, acting=self.target.policy_only())
        epsilons = [config.epsilon_kl, config.epsilon_spread] if gaussian else [config.epsilon_kl]
        self._epsilon = torch.tensor(epsilons, device=config.device)
        self._step = self.best_step(self.gradient_step)
        self._updates = 0

    def update(self, batch: Batch | None, left: float, publish: Callable[[], None]) -> dict[str, float]:
        """Learn from a batch, and return the losses."""
        if batch is None:
            raise ValueError("V-MPO uses every batch once, so each update needs a new one.")
        left = self.anneal(left)
        aim = self.aim(batch)
        material, share = unrolls.material(batch, few_shapes=self.is_recordable), self.number(left)
        for _ in range(self.config.passes):
            told = self._step(material, aim, share)
        unrolls.learn_scale(self.network, batch)
        self._updates += 1
        if self._updates % self.config.target_period == 0:
            self.target.load_state_dict(self.network.state_dict())
            publish()
        return {keys.LEARNING_RATE.name: self.config.learning_rate * left, **numbers(told)}

    @torch.no_grad()
    def aim(self, batch: Batch) -> Aim:
        """What a batch is to teach, by the critic before it. Moves the statistics of PopArt."""
        task = task_of(batch.slot, len(self.tasks))
        outputs = self._read(batch, task)
        reward, ended = rewards.for_learner(self.config, batch.reward), batch.terminated | batch.truncated
        returns = returns_to_end(reward, outputs.next_value, ended, gamma=self.config.gamma)
        if self.head is None:
            return Aim(returns, returns - outputs.value, torch.ones_like(returns[0]), task)
        self.head.learn(returns.flatten(), task.expand(returns.shape).flatten())
        scale = self.head.std[task].to(returns.dtype)
        return Aim(returns, (returns - outputs.value) / scale, scale, task)

    @property
    def _several(self) -> bool:
        """Whether there are several tasks, so that the critic tells several values."""
        return len(self.tasks) > 1

    def _read(self, batch: Batch | Material, task: Tensor) -> NetworkOutputs:
        return unrolls.read(self.network, batch, task if self._several else None)

    def gradient_step(self, material: Material, aim: Aim, left: Tensor) -> dict[str, Tensor]:
        """One step, with this share of the entropy bonus. It reads no number back, so that a GPU need not wait."""
        config, network, multipliers = self.config, self.network, self.multipliers
        outputs = self._read(material, aim.task)
        step = e_step(
            aim.advantage.flatten(),
            multipliers.temperature,
            epsilon=config.epsilon_temperature,
            share=config.top_share,
        )
        # The parameters that came with the batch are those of the policy that acted, whichever version that was.
        moved = divergences(network.distribution, material.params.flatten(0, 1), outputs.params.flatten(0, 1))
        policy = policy_loss(step.psi, outputs.logp.flatten())
        critic = 0.5 * ((aim.returns - outputs.value) / aim.scale).square().mean()
        entropy = torch_distributions.entropy(network.distribution, outputs.params).mean()
        total = policy + config.value_coef * critic - config.entropy_coef * left * entropy + step.temperature_loss
        total = total + trust_region_loss(moved, multipliers.kl, epsilon=self._epsilon)
        self.optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        norm = unrolls.clip_gradients(network, config.max_grad_norm)
        self.optimizer.step()
        multipliers.project()
        return measured(
            {
                keys.POLICY_LOSS: policy,
                keys.VALUE_LOSS: critic,
                keys.ENTROPY: entropy,
                keys.GRAD_NORM: norm,
                keys.PSI_KL: step.psi_kl,
                keys.EXPLAINED_VARIANCE: explained_variance(outputs.value, aim.returns),
                keys.TEMPERATURE: multipliers.temperature.clone(),  # the next step changes it in place
                **self._regions(moved.mean(1)),
                **self._shares(step.psi, aim),
            }
        )

    def _regions(self, moved: Tensor) -> dict[keys.Metric, Tensor]:
        """How far the policy has moved in each trust region, [C], and its multiplier."""
        multipliers = self.multipliers.kl.clone()
        values = {keys.APPROX_KL: moved[0], keys.KL_MULTIPLIER: multipliers[0]}
        if len(moved) == 1:
            return values
        return {**values, keys.KL_SPREAD: moved[1], keys.KL_MULTIPLIER_SPREAD: multipliers[1]}

    def _shares(self, psi: Tensor, aim: Aim) -> dict[keys.Metric, Tensor]:
        """How much of what the policy learns each task teaches, from the weights [T * N]."""
        if not self._several:
            return {}
        weight = psi.view(aim.returns.shape).sum(0)  # [T * N] -> [N]
        shares = weight.new_zeros(len(self.tasks)).index_add_(0, aim.task, weight)
        names = [keys.find(f"{keys.TASK_WEIGHT_PREFIX}{name}") for name in self.tasks]
        return dict(zip(names, shares, strict=True))

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a checkpoint needs."""
        beside = {"target/": self.target.state_dict(), "multipliers/": self.multipliers.state_dict()}
        more = {prefix + name: tensor for prefix, state in beside.items() for name, tensor in state.items()}
        return {**super().tensors(), **more, "updates": torch.tensor(self._updates)}

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
