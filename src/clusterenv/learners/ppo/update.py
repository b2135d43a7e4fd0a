"""One update of PPO: from a batch to a better network. It knows no environments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from clusterenv.learners.common import gae, rewards, torch_distributions, trees
from clusterenv.learners.common.drift import explained_variance
from clusterenv.learners.common.measured import measured, numbers, together
from clusterenv.learners.common.networks import ActorCritic
from clusterenv.learners.common.updater import Updater, seeded
from clusterenv.learners.ppo.config import PPOConfig
from clusterenv.learners.ppo.loss import Samples, loss
from clusterenv.metrics import keys

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gymnasium import Space

    from clusterenv.env.batch import Batch


class PPOUpdater(Updater[PPOConfig, ActorCritic]):
    """The network, Adam, and what one batch does to them."""

    def __init__(self, config: PPOConfig, observation_space: Space[Any], action_space: Space[Any]) -> None:
        network = seeded(
            lambda: ActorCritic(
                observation_space,
                action_space,
                hidden=(64, 64) if config.hidden is None else config.hidden,
                normalize=config.normalize_observations,
                first_spread=config.first_spread,
            ),
            config.seed,
        ).to(config.device)
        optimizer = torch.optim.Adam(network.parameters(), lr=config.learning_rate, eps=1e-5)
        super().__init__(config, network, optimizer, acting=network.policy_only())
        self._step = self.best_step(self.gradient_step)
        self._order = torch.Generator().manual_seed(config.seed)

    def update(self, batch: Batch | None, left: float, publish: Callable[[], None]) -> dict[str, float]:
        """Learn from a batch, and return the losses."""
        if batch is None:
            raise ValueError("PPO uses every batch once, so each update needs a new one.")
        left = self.anneal(left)
        each_step = self.config.publish_every == "gradient step"
        samples, explained = self.samples(batch)
        rounds: list[dict[str, Tensor]] = []
        for _ in range(self.config.epochs):
            rounds.append(self._pass(samples, left, publish if each_step else _nothing))
            if self.config.target_kl is not None and rounds[-1][keys.APPROX_KL.name] > self.config.target_kl:
                break
        # After the gradient steps: the ratios above compare policies that see observations on the same scale.
        self.network.learn_scale(trees.rows(trees.each(lambda array: array[:-1], batch.obs)))
        if not each_step or self.config.normalize_observations:
            publish()
        told = {
            **{name: torch.stack([each[name] for each in rounds]).mean() for name in rounds[0]},
            keys.APPROX_KL.name: rounds[-1][keys.APPROX_KL.name],
            keys.EXPLAINED_VARIANCE.name: explained,
        }
        return {keys.LEARNING_RATE.name: self.config.learning_rate * left, **numbers(told)}

    @torch.no_grad()
    def samples(self, batch: Batch) -> tuple[Samples, Tensor]:
        """The transitions of a batch with advantages and targets by the newest critic, and how good that was."""
        config, network = self.config, self.network
        value = network.value(trees.rows(batch.obs)).view(batch.T + 1, batch.N)  # [T + 1, N]
        final_value = network.value(batch.final_obs) if len(batch.final_at[0]) else value.new_zeros(0)  # [K]
        following = gae.next_values(value, batch.terminated, batch.truncated, final_value, batch.final_at)
        ended = batch.terminated | batch.truncated
        reward = rewards.for_learner(config, batch.reward)
        advantage = gae.advantages(
            reward, value[:-1], following, ended, gamma=config.gamma, gae_lambda=config.gae_lambda
        )
        target = advantage + value[:-1]
        obs = trees.rows(trees.each(lambda array: array[:-1], batch.obs))
        flat = (tensor.flatten(0, 1) for tensor in (batch.action, batch.logp, advantage, target))
        return Samples(obs, *flat), explained_variance(value[:-1], target)

    def _pass(self, samples: Samples, left: float, after_step: Callable[[], None]) -> dict[str, Tensor]:
        """One pass over the samples in random order; returns the mean of what was measured."""
        order = torch.randperm(len(samples.logp), generator=self._order).to(samples.logp.device)
        share, steps = self.number(left), []
        for index in order.tensor_split(self.config.minibatches):
            told = self._step(samples.pick(index), share)
            steps.append(together(told))
            after_step()
        return dict(zip(told, torch.stack(steps).mean(0), strict=True))

    def gradient_step(self, samples: Samples, left: Tensor) -> dict[str, Tensor]:
        """One step, with this share of the entropy bonus. It reads no number back, so that a GPU need not wait."""
        config, network = self.config, self.network
        params, value, _ = network(samples.obs)
        told = loss(
            samples,
            torch_distributions.log_prob(network.distribution, params, samples.action),
            torch_distributions.entropy(network.distribution, params),
            value,
            clip=config.clip,
            value_coef=config.value_coef,
            entropy_coef=config.entropy_coef * left,
            normalize_advantage=config.normalize_advantage,
        )
        self.optimizer.zero_grad()
        told.total.backward()  # type: ignore[no-untyped-call]
        # Each by itself: they share nothing, and where returns are large the critic's gradient would drown the actor's.
        norms = [nn.utils.clip_grad_norm_(part, config.max_grad_norm) for part in network.parts()]
        self.optimizer.step()
        return measured(
            {
                keys.POLICY_LOSS: told.policy,
                keys.VALUE_LOSS: told.value,
                keys.ENTROPY: told.entropy,
                keys.APPROX_KL: told.approx_kl,
                keys.CLIPFRAC: told.clipfrac,
                keys.GRAD_NORM: torch.stack(norms).norm(),
            }
        )

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a checkpoint needs; the order of the samples is part of it."""
        return {**super().tensors(), "order": self._order.get_state()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `tensors` told."""
        super().restore(tensors)
        self._order.set_state(tensors["order"])


def _nothing() -> None:
    """When versions are made per update, a gradient step is followed by nothing."""
