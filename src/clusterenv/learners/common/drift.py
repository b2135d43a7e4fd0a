"""How far the learner's policy is from the one that acted, and how good the critic was: for the metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from clusterenv.metrics import keys

if TYPE_CHECKING:
    from torch import Tensor


@torch.no_grad()
def drift_metrics(log_ratio: Tensor, rho_bar: float) -> dict[str, float]:
    """From the log-ratios of learner to actor, of any shape.

    The estimate of the KL divergence is (r - 1) - log r, which is never negative.

    Example:
        >>> drift_metrics(torch.zeros(3), 1.0)["losses/approx_kl"]
        0.0
    """
    ratio = log_ratio.exp()
    return {
        keys.APPROX_KL.name: (ratio - 1.0 - log_ratio).mean().item(),
        keys.LOG_RATIO.name: log_ratio.abs().mean().item(),
        # A little above, as rounding alone puts half of all ratios of 1 beyond it.
        keys.RHO_CLIPPED.name: (ratio > rho_bar * (1 + 1e-4)).float().mean().item(),
    }


@torch.no_grad()
def explained_variance(value: Tensor, target: Tensor) -> float:
    """Share of the variance of the targets that the values explain; 1 is perfect, below 0 worse than a constant.

    Example:
        >>> explained_variance(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]))
        1.0
    """
    spread = target.var(correction=0)
    return float("nan") if spread == 0 else float(1.0 - (target - value).var(correction=0) / spread)
