"""The loss of IMPACT. Pure functions of tensors of any one shape."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def ratio(logp: Tensor, behaviour_logp: Tensor, target_logp: Tensor, rho: float | None) -> Tensor:
    """min(actor / target, rho) x learner / actor: how far the learner has moved from the target network.

    Where the actor is not much more likely than the target to do what was done, that is learner / target: one trust
    region for the data of all workers. Where it is, the ratio is bounded. Gradients flow through `logp` alone.

    Args:
        logp: of the actions, by the policy that learns.
        behaviour_logp: by the policy that acted, when it acted.
        target_logp: by the target network.
        rho: a ratio of actor to target above this is cut; None cuts nothing.

    Example:
        >>> log = lambda p: torch.tensor(p).log()
        >>> round(ratio(log(0.5), log(0.2), log(0.4), rho=2.0).item(), 4)
        1.25
    """
    # In logarithms up to here: of an action that one of the three all but rules out, infinity times 0 would be NaN.
    to_target = (behaviour_logp - target_logp).detach()
    cut = to_target if rho is None else to_target.clamp(max=math.log(rho))
    return (cut + (logp - behaviour_logp.detach())).exp()


def surrogate(ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """PPO's clipped objective, of each transition.

    Example:
        >>> surrogate(torch.tensor([1.5, 0.5]), torch.tensor([1.0, 1.0]), clip=0.4)
        tensor([1.4000, 0.5000])
    """
    return torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)


def steer(coef: float, divergence: float, wanted: float) -> float:
    """The weight of the divergence from now on: more where it was too large, less where it was small.

    Example:
        >>> steer(1.0, 0.1, wanted=0.04), steer(1.0, 0.01, wanted=0.04), steer(1.0, 0.05, wanted=0.04)
        (1.5, 0.5, 1.0)
    """
    if divergence > 2.0 * wanted:
        return coef * 1.5
    return coef * 0.5 if divergence < 0.5 * wanted else coef
