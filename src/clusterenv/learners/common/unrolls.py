"""What learners on whole unrolls share: the network of the settings, and what it says about a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional

from clusterenv.learners.common import gae, rewards, torch_distributions, trees
from clusterenv.learners.common.networks import make_network
from clusterenv.learners.common.updater import seeded
from clusterenv.learners.common.vtrace import vtrace

if TYPE_CHECKING:
    from gymnasium import Space
    from torch import Tensor

    from clusterenv.env.batch import Batch
    from clusterenv.learners.common.config import UnrollConfig, VTraceConfig
    from clusterenv.learners.common.networks import Network
    from clusterenv.learners.common.vtrace import VTrace


class Material(NamedTuple):
    """What a gradient step looks at in a batch: tensors only, named as there."""

    obs: Any
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    first: Tensor
    final_obs: Any
    final_at: tuple[Tensor, Tensor]
    logp: Tensor
    params: Tensor
    state: tuple[Tensor, ...]


class NetworkOutputs(NamedTuple):
    """What a network says about a batch of T steps of N slots.

    Attributes:
        params: [T, N, P], of the distribution of actions.
        logp: [T, N], of the actions that were taken.
        value: [T, N], of the observations before each step.
        next_value: [T, N], what each step may count on after it; a constant.
    """

    params: Tensor
    logp: Tensor
    value: Tensor
    next_value: Tensor


def network_for(
    config: UnrollConfig, observation_space: Space[Any], action_space: Space[Any], *, tasks: int = 1
) -> Network:
    """The network that the settings describe, with a value for each task and its first weights, on the device."""
    return seeded(
        lambda: make_network(
            observation_space,
            action_space,
            body=config.body,
            hidden=config.hidden,
            lstm=config.lstm,
            normalize=config.normalize_observations,
            values=tasks,
            first_spread=config.first_spread,
        ),
        config.seed,
    ).to(config.device)


def material(batch: Batch, *, few_shapes: bool = False) -> Material:
    """What a gradient step looks at.

    Args:
        batch: of tensors.
        few_shapes: fill up the last observations of episodes, of which every batch has another number, to a power of
            two times the slots. What is added is nobody's: it has t = T.
    """
    found = Material(*(getattr(batch, name) for name in Material._fields))
    if not few_shapes:
        return found
    count, room = len(batch.final_at[0]), batch.N
    while room < count:
        room *= 2

    def fill_up(array: Tensor, value: int = 0) -> Tensor:
        return functional.pad(array, (0, 0) * (array.ndim - 1) + (0, room - count), value=value)

    times, slots = batch.final_at
    return found._replace(
        final_obs=trees.each(fill_up, batch.final_obs), final_at=(fill_up(times, batch.T), fill_up(slots))
    )


def read(network: Network, batch: Batch | Material, task: Tensor | None = None) -> NetworkOutputs:
    """Let a network look at a batch.

    Args:
        network: with one value, or with one for each task.
        batch: what it looks at.
        task: of each slot, [N]; None if there is one value.
    """
    told = network.unroll(batch.obs, batch.state, batch.first, batch.final_obs, batch.final_at)
    params, value, final_value = told.params[:-1], told.value, told.final_value
    if task is not None:
        slot, ended = torch.arange(len(task), device=task.device), batch.final_at[1]
        value = value[:, slot, task]  # [T + 1, N, tasks] -> [T + 1, N]
        final_value = final_value.gather(1, task[ended].unsqueeze(1)).squeeze(1)  # [K, tasks] -> [K]
    # The last value is only counted on, never learned.
    next_value = gae.next_values(value.detach(), batch.terminated, batch.truncated, final_value, batch.final_at)
    logp = torch_distributions.log_prob(network.distribution, params, batch.action)
    return NetworkOutputs(params, logp, value[:-1], next_value)


def corrected(config: VTraceConfig, batch: Batch | Material, outputs: NetworkOutputs, log_ratio: Tensor) -> VTrace:
    """V-trace of a batch, with the rewards that the learner is to see.

    Args:
        config: the settings.
        batch: what was played.
        outputs: by the network that learns.
        log_ratio: [T, N], of the policy whose value is learned to the one that acted.
    """
    return vtrace(
        log_ratio=log_ratio,
        reward=rewards.for_learner(config, batch.reward),
        value=outputs.value.detach(),
        next_value=outputs.next_value,
        ended=batch.terminated | batch.truncated,
        gamma=config.gamma,
        rho_bar=config.rho_bar,
        c_bar=config.c_bar,
        pg_rho_bar=config.rho_bar,
        lam=config.vtrace_lambda,
    )


def learn_scale(network: Network, batch: Batch) -> None:
    """Take the observations of a batch into the network's running mean and variance, if it has one."""
    network.learn_scale(trees.rows(trees.each(lambda array: array[:-1], batch.obs)))


def clip_gradients(network: Network, largest: float) -> Tensor:
    """Cut the gradient of each part that shares nothing with the others; returns the norm of them all before."""
    norm: Tensor = torch.stack([torch.nn.utils.clip_grad_norm_(part, largest) for part in network.parts()]).norm()
    return norm
