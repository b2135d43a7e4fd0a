"""The loss of PPO. Pure functions of tensors; B transitions in a minibatch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from clusterenv.learners.common import trees
from clusterenv.learners.common.gae import normalized

if TYPE_CHECKING:
    from torch import Tensor


class Samples(NamedTuple):
    """Transitions to learn from, in any order.

    Attributes:
        obs: [B, ...].
        action: [B, ...].
        logp: [B] of the action, under the policy that took it, however old that was.
        advantage: [B].
        target: [B] for the value.
    """

    obs: Any
    action: Tensor
    logp: Tensor
    advantage: Tensor
    target: Tensor

    def pick(self, index: Tensor) -> Samples:
        """The transitions at these places."""
        picked: Samples = trees.each(lambda array: array[index], self)
        return picked


class Loss(NamedTuple):
    """The loss of a minibatch and what it is made of, all scalars."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clipfrac: Tensor


def policy_loss(logp: Tensor, behaviour_logp: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """PPO's clipped objective with its sign turned.

    The ratio is to the policy that acted, so data from an older version is weighed as what it is; the clip then keeps
    the learner near that older version.

    Example:
        >>> zero = torch.zeros(1)
        >>> policy_loss(zero, zero, torch.ones(1), clip=0.2).item()
        -1.0
    """
    ratio = (logp - behaviour_logp).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage).mean()


def value_loss(value: Tensor, target: Tensor) -> Tensor:
    """Half the mean squared error."""
    return 0.5 * (value - target).square().mean()


@torch.no_grad()
def drift(logp: Tensor, behaviour_logp: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """How far the policy has moved from the one that acted: KL estimate (k3, never negative), and share outside."""
    log_ratio = logp - behaviour_logp
    ratio = log_ratio.exp()
    return (ratio - 1.0 - log_ratio).mean(), ((ratio - 1.0).abs() > clip).float().mean()


def loss(
    samples: Samples,
    logp: Tensor,
    entropy: Tensor,
    value: Tensor,
    *,
    clip: float,
    value_coef: float,
    entropy_coef: float | Tensor,
    normalize_advantage: bool,
) -> Loss:
    """All of it, from what the network now says about the samples: logp, entropy and value, each [B]."""
    advantage = normalized(samples.advantage) if normalize_advantage else samples.advantage
    policy, critic = policy_loss(logp, samples.logp, advantage, clip), value_loss(value, samples.target)
    bonus = entropy.mean()
    approx_kl, clipfrac = drift(logp, samples.logp, clip)
    total = policy + value_coef * critic - entropy_coef * bonus
    return Loss(total, policy.detach(), critic.detach(), bonus.detach(), approx_kl, clipfrac)
