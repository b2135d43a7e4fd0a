"""How far the learner's policy is from the one that acted, and how good the critic was: for the metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from clusterenv.metrics import keys

if TYPE_CHECKING:
    from torch import Tensor


@torch.no_grad()
def drift(log_ratio: Tensor, rho_bar: float) -> dict[keys.Metric, Tensor]:
    """From the log-ratios of learner to actor, of any shape.

    The estimate of the KL divergence is (r - 1) - log r, which is never negative.

    Example:
        >>> drift(torch.zeros(3), 1.0)[keys.APPROX_KL]
        tensor(0.)
    """
    ratio = log_ratio.exp()
    # A little above, as rounding alone puts half of all ratios of 1 beyond it.
    above = ratio > rho_bar * (1 + 1e-4)
    return {
        keys.APPROX_KL: (ratio - 1.0 - log_ratio).mean(),
        keys.LOG_RATIO: log_ratio.abs().mean(),
        keys.RHO_CLIPPED: above.to(ratio.dtype).mean(),
    }


@torch.no_grad()
def explained_variance(value: Tensor, target: Tensor) -> Tensor:
    """Share of the variance of the targets that the values explain; 1 is perfect, below 0 worse than a constant.

    NaN where all targets are the same.

    Example:
        >>> explained_variance(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]))
        tensor(1.)
    """
    spread = target.var(correction=0)
    return torch.where(spread == 0, torch.nan, 1.0 - (target - value).var(correction=0) / spread)
