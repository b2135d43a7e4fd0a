"""How far one action distribution is from another, in torch: Kullback-Leibler divergences that gradients flow through.

The same formulas as `divergence` in `clusterenv.policy.distributions`, on the same parameters.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from clusterenv.errors import ConfigError
from clusterenv.learners.common.torch_distributions import log_softmax, parts
from clusterenv.policy.categorical import MASKED
from clusterenv.policy.distributions import (
    Bernoulli,
    Categorical,
    DiagGaussian,
    MultiCategorical,
    TanhGaussian,
)


class GaussianKL(NamedTuple):
    """The two parts of the divergence of Gaussians, each [...]: they can be kept small separately.

    Attributes:
        mean: how far the mean moved, in deviations of the old one.
        spread: how far the deviations moved, whatever the mean did.
    """

    mean: Tensor
    spread: Tensor


@functools.singledispatch
def kl(distribution: Any, old: Tensor, new: Tensor) -> Tensor:
    """KL(old || new) in nats of the distributions with parameters [..., P] -> [...].

    Raises:
        ConfigError: there are no gradients for this kind of distribution.

    Example:
        >>> kl(Categorical(2), torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 1.0]]))
        tensor([0.1201])
    """
    raise ConfigError(
        f"{distribution!r} has no divergence that can be learned from. "
        "Use Categorical, MultiCategorical, Bernoulli, DiagGaussian or TanhGaussian."
    )


@kl.register
def _(distribution: Categorical, old: Tensor, new: Tensor) -> Tensor:
    return _categorical(old, new)


@kl.register
def _(distribution: MultiCategorical, old: Tensor, new: Tensor) -> Tensor:
    pairs = zip(parts(distribution, old), parts(distribution, new), strict=True)
    return torch.stack([_categorical(before, after) for before, after in pairs], -1).sum(-1)


@kl.register
def _(distribution: Bernoulli, old: Tensor, new: Tensor) -> Tensor:
    before, after = old.clamp(MASKED, -MASKED), new.clamp(MASKED, -MASKED)
    on = before.sigmoid() * (functional.softplus(-after) - functional.softplus(-before))
    off = (-before).sigmoid() * (functional.softplus(after) - functional.softplus(before))
    return (on + off).sum(-1)


@kl.register(DiagGaussian)
@kl.register(TanhGaussian)  # squashing both in the same way changes nothing
def _(distribution: DiagGaussian | TanhGaussian, old: Tensor, new: Tensor) -> Tensor:
    (mean, log_std), (new_mean, new_log_std) = old.chunk(2, -1), new.chunk(2, -1)
    shift = (mean - new_mean) * (-new_log_std).exp()
    return 0.5 * (_excess(2 * (log_std - new_log_std)) + shift.square()).sum(-1)


def gaussian_kl(old: Tensor, new: Tensor) -> GaussianKL:
    """The divergence of diagonal Gaussians in two parts, from parameters [..., P]: means, then log deviations.

    The first is KL(old || one with the new mean), the second KL(old || one with the new deviations). Their sum is not
    the whole divergence, in which the mean is measured in new deviations: there, a wider policy would hide how far its
    mean has moved.

    Example:
        >>> old, new = torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0])
        >>> gaussian_kl(old, new)
        GaussianKL(mean=tensor(0.5000), spread=tensor(0.))
    """
    (mean, log_std), (new_mean, new_log_std) = old.chunk(2, -1), new.chunk(2, -1)
    shift = (new_mean - mean) * (-log_std).exp()
    return GaussianKL(0.5 * shift.square().sum(-1), 0.5 * _excess(2 * (log_std - new_log_std)).sum(-1))


def _categorical(old: Tensor, new: Tensor) -> Tensor:
    before, after = log_softmax(old), log_softmax(new)
    return (before.exp() * (before - after)).sum(-1)


def _excess(log_ratio: Tensor) -> Tensor:
    """Of a ratio of variances, how much it is above 1 plus its logarithm; exact also where that is nearly nothing."""
    return torch.expm1(log_ratio) - log_ratio
