"""The action distributions in torch: log-probability, entropy and drawn actions that gradients flow through.

The same formulas as in `clusterenv.policy.distributions`, which act on workers without torch, on the same parameters.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from clusterenv.errors import ConfigError
from clusterenv.policy.categorical import MASKED
from clusterenv.policy.distributions import (
    Bernoulli,
    Categorical,
    DiagGaussian,
    MultiCategorical,
    TanhGaussian,
)

# Far enough below every other logit that a masked choice has probability 0, and finite, so that nothing becomes NaN.
_FLOOR = -2e8


@functools.singledispatch
def log_prob(distribution: Any, params: Tensor, actions: Tensor) -> Tensor:
    """The log-probability of actions under parameters [..., P] -> [...].

    Raises:
        ConfigError: there are no gradients for this kind of distribution.

    Example:
        >>> log_prob(Categorical(2), torch.zeros(1, 2), torch.tensor([1])).exp()
        tensor([0.5000])
    """
    raise ConfigError(_refusal(distribution))


@functools.singledispatch
def entropy(distribution: Any, params: Tensor) -> Tensor:
    """The entropy in nats of the distributions with parameters [..., P] -> [...].

    Raises:
        ConfigError: there are no gradients for this kind of distribution.
    """
    raise ConfigError(_refusal(distribution))


def draw(distribution: TanhGaussian, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Flat actions [..., dims] from parameters [..., P] and normal noise [..., dims], and their log-density [...].

    Gradients flow through both to the parameters.

    The same numbers as `sample` and `log_prob` of the distribution, but for rounding: this one knows what was squashed
    and need not recover it from the action.

    Example:
        >>> draw(TanhGaussian(low=0, high=4), torch.zeros(1, 2), torch.zeros(1, 1))
        (tensor([[2.]]), tensor([-1.6121]))
    """
    mean, log_std = params.chunk(2, -1)
    values = mean + log_std.exp() * noise
    middle, half = bounds(distribution, params.dtype, params.device)
    density = -(0.5 * noise.square() + log_std + 0.5 * math.log(2 * math.pi))
    return middle + half * values.tanh(), (density - _log_slope(distribution, values)).sum(-1)


@functools.lru_cache(maxsize=64)
def bounds(distribution: TanhGaussian, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The middle of the bounds and half of their distance, each [dims]. Kept: they are asked for at every step.

    Example:
        >>> bounds(TanhGaussian(low=0, high=4), torch.float32, torch.device("cpu"))
        (tensor([2.]), tensor([2.]))
    """
    low, high = (torch.tensor(bound, dtype=torch.float64) for bound in (distribution.low, distribution.high))
    half = high / 2 - low / 2
    return (low + half).to(device, dtype), half.to(device, dtype)


@log_prob.register
def _(distribution: Categorical, params: Tensor, actions: Tensor) -> Tensor:
    return log_softmax(params).gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)


@entropy.register
def _(distribution: Categorical, params: Tensor) -> Tensor:
    logs = log_softmax(params)
    return -(logs.exp() * logs).sum(-1)


@log_prob.register
def _(distribution: MultiCategorical, params: Tensor, actions: Tensor) -> Tensor:
    chosen = _flat(params, actions).long()
    choices = enumerate(parts(distribution, params))
    picked = [log_softmax(part).gather(-1, chosen[..., i : i + 1]) for i, part in choices]
    return torch.cat(picked, -1).sum(-1)


@entropy.register
def _(distribution: MultiCategorical, params: Tensor) -> Tensor:
    logs = [log_softmax(part) for part in parts(distribution, params)]
    return -torch.stack([(log.exp() * log).sum(-1) for log in logs], -1).sum(-1)


@log_prob.register
def _(distribution: Bernoulli, params: Tensor, actions: Tensor) -> Tensor:
    sign = _flat(params, actions).to(params.dtype) * 2 - 1
    return functional.logsigmoid(params.clamp(MASKED, -MASKED) * sign).sum(-1)


@entropy.register
def _(distribution: Bernoulli, params: Tensor) -> Tensor:
    logits = params.clamp(MASKED, -MASKED)
    on, off = functional.logsigmoid(logits), functional.logsigmoid(-logits)
    return -(on.exp() * on + off.exp() * off).sum(-1)


@log_prob.register
def _(distribution: DiagGaussian, params: Tensor, actions: Tensor) -> Tensor:
    mean, log_std = params.chunk(2, -1)
    deviations = (_flat(params, actions) - mean) * (-log_std).exp()
    return -(0.5 * deviations.square() + log_std + 0.5 * math.log(2 * math.pi)).sum(-1)


@entropy.register
def _(distribution: DiagGaussian, params: Tensor) -> Tensor:
    _, log_std = params.chunk(2, -1)
    return (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


@log_prob.register
def _(distribution: TanhGaussian, params: Tensor, actions: Tensor) -> Tensor:
    # The actions are given, so what they were before the squashing and its slope there are constants.
    values = torch.from_numpy(distribution.unsquash(_flat(params, actions).cpu().numpy())).to(params)
    mean, log_std = params.chunk(2, -1)
    deviations = (values - mean) * (-log_std).exp()
    density = -(0.5 * deviations.square() + log_std + 0.5 * math.log(2 * math.pi))
    return (density - _log_slope(distribution, values)).sum(-1)


@entropy.register
def _(distribution: TanhGaussian, params: Tensor) -> Tensor:
    mean, log_std = params.chunk(2, -1)
    # There is no closed form for the mean of the slope: a sum over seven deviations to each side.
    points = torch.linspace(-7, 7, 113, dtype=params.dtype, device=params.device)
    weights = torch.softmax(-points.square() / 2, 0)
    spread = mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * points  # [..., dims, points]
    slope = _log_slope(distribution, spread.movedim(-1, 0)).movedim(0, -1) @ weights
    return (log_std + 0.5 * math.log(2 * math.pi * math.e) + slope).sum(-1)


def _log_slope(distribution: TanhGaussian, values: Tensor) -> Tensor:
    """The logarithm of the slope of the squashing at values [..., dims]."""
    _, half = bounds(distribution, values.dtype, values.device)
    return half.log() + 2 * (math.log(2) - values - functional.softplus(-2 * values))


def parts(distribution: MultiCategorical, params: Tensor) -> tuple[Tensor, ...]:
    """The logits of each choice, from parameters [..., P]."""
    return torch.split(params, list(distribution.nvec), -1)


def log_softmax(logits: Tensor) -> Tensor:
    """Logits [..., n] as log-probabilities; what is masked has probability 0, and no gradient."""
    return torch.where(logits <= MASKED, _FLOOR, logits).log_softmax(-1)


def _flat(params: Tensor, actions: Tensor) -> Tensor:
    """Actions of any shape as [..., numbers in an action]."""
    return actions.reshape(*params.shape[:-1], -1)


def _refusal(distribution: object) -> str:
    return (
        f"{distribution!r} cannot be learned by a policy gradient. "
        "Use Categorical, MultiCategorical, Bernoulli, DiagGaussian or TanhGaussian."
    )
