"""The losses of V-MPO. Pure functions of tensors; n transitions in a batch, flattened over time and slots.

Song et al. 2020, "V-MPO: On-Policy Maximum a Posteriori Policy Optimization for Discrete and Continuous Control". The
E-step weighs the better half of the transitions by a softmax of their advantages, at a temperature that is learned; the
M-step makes these actions likelier, within a trust region whose multiplier is learned.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from clusterenv.learners.common.divergence import gaussian_kl, kl
from clusterenv.policy.distributions import DiagGaussian, TanhGaussian

if TYPE_CHECKING:
    from torch import Tensor


class EStep(NamedTuple):
    """What the E-step makes of the advantages.

    Attributes:
        psi: weight of each transition, [n]; they sum to 1, and no gradient flows through them.
        temperature_loss: whose gradient moves the temperature, a scalar.
        psi_kl: how far the weights are from equal ones among those chosen, in nats. At the best temperature it is
            `epsilon`.
    """

    psi: Tensor
    temperature_loss: Tensor
    psi_kl: Tensor


@torch.no_grad()
def chosen(advantage: Tensor, *, share: float = 0.5, valid: Tensor | None = None) -> Tensor:
    """Where the largest advantages are, [k]: exactly k = floor(share x valid ones), but at least one.

    Among equals the first are taken. What is not valid is not counted, and never chosen.

    Args:
        advantage: [n].
        share: how many of the valid ones.
        valid: [n] bool; None if all are.

    Example:
        >>> chosen(torch.tensor([0.0, 3.0, 1.0, 2.0]))
        tensor([1, 3])
    """
    count = len(advantage) if valid is None else int(valid.sum())
    ranked = advantage if valid is None else advantage.masked_fill(~valid, -math.inf)
    return ranked.argsort(descending=True, stable=True)[: max(1, int(share * count))]


def e_step(
    advantage: Tensor,
    temperature: Tensor,
    *,
    epsilon: float,
    share: float = 0.5,
    valid: Tensor | None = None,
    log_weight: Tensor | None = None,
) -> EStep:
    """Weights for the transitions, and the loss of the temperature.

    Args:
        advantage: [n], over the whole batch: choice and weights are relative to all of it.
        temperature: a scalar above 0, to which the gradient flows.
        epsilon: how far the weights may be from equal ones, in nats.
        share: of the transitions that is chosen.
        valid: [n] bool: which transitions count; None if all do.
        log_weight: [n], logarithms of importance weights for data of another policy; None for equal ones.

    Example:
        >>> told = e_step(torch.tensor([0.0, 3.0, 1.0, 2.0]), torch.tensor(1.0), epsilon=0.1)
        >>> told.psi
        tensor([0.0000, 0.7311, 0.0000, 0.2689])
    """
    index = chosen(advantage, share=share, valid=valid)
    top = advantage.detach()[index]  # [k]
    largest = top.max()
    # By how much each is below the largest. Scores of the advantages themselves are huge at a small temperature, and
    # its gradient, a difference of such numbers, would drown in their rounding: it would stay near 0.
    scores = (top - largest) / temperature
    if log_weight is not None:
        scores = scores + log_weight.detach()[index]
    log_mean = scores.logsumexp(0) - math.log(len(index))
    log_psi = scores.detach().log_softmax(0)
    psi = torch.zeros_like(advantage).index_copy_(0, index, log_psi.exp().to(advantage.dtype))
    psi_kl = (log_psi.exp() * log_psi).sum() + math.log(len(index))
    return EStep(psi, temperature * (epsilon + log_mean) + largest, psi_kl)


def policy_loss(psi: Tensor, logp: Tensor) -> Tensor:
    """The weighted log-likelihood of the actions, with its sign turned: from weights and log-probabilities, each [n].

    A sum: the weights sum to 1 already.
    """
    return -(psi * logp).sum()


def divergences(distribution: Any, old: Tensor, new: Tensor) -> Tensor:
    """How far the policy has moved from parameters `old` to `new`, each [n, P], in nats: [C, n].

    C is 1, but 2 for Gaussians, whose mean and spread have trust regions of their own: a mean may move quickly while
    the spread, which keeps the exploration, must not.
    """
    if isinstance(distribution, (DiagGaussian, TanhGaussian)):
        return torch.stack(gaussian_kl(old, new))
    return kl(distribution, old, new).unsqueeze(0)


def trust_region_loss(
    divergence: Tensor, multiplier: Tensor, *, epsilon: Tensor, valid: Tensor | None = None
) -> Tensor:
    """The loss that keeps each divergence near or below its `epsilon`.

    Its value says nothing: it is always multiplier x epsilon. Its gradients do: the multiplier grows while the mean
    divergence exceeds epsilon, and the policy is drawn back in proportion to the multiplier.

    Args:
        divergence: [C, n], over all transitions and not only those that were chosen.
        multiplier: [C], above 0.
        epsilon: [C].
        valid: [n] bool: which transitions count; None if all do.
    """
    mean = divergence.mean(1) if valid is None else divergence[:, valid].mean(1)  # [C]
    return (multiplier * (epsilon - mean.detach()) + multiplier.detach() * mean).sum()
