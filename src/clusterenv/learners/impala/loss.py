"""The loss of IMPALA. Pure functions of tensors [T, N]: T steps, N slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

Reduction = Literal["sum", "mean"]


class Loss(NamedTuple):
    """The loss of a batch and what it is made of, all scalars."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor


def loss(
    logp: Tensor,
    entropy: Tensor,
    value: Tensor,
    *,
    target: Tensor,
    advantage: Tensor,
    value_coef: float,
    entropy_coef: float | Tensor,
    reduction: Reduction = "mean",
) -> Loss:
    """Policy gradient, half the squared error of the critic, and the entropy bonus.

    Args:
        logp: of the actions, by the policy that learns, [T, N].
        entropy: of its distributions, [T, N].
        value: by its critic, [T, N].
        target: of the value, a constant, [T, N].
        advantage: of the actions, already weighed by their clipped ratios, a constant, [T, N].
        value_coef: weight of the critic's part.
        entropy_coef: weight of the bonus.
        reduction: over all steps. With "sum" the size of the gradient grows with the batch.

    Example:
        >>> one = torch.ones(2, 1)
        >>> loss(-one, one, one, target=3 * one, advantage=one, value_coef=0.5, entropy_coef=0.1).total.item()
        1.899999976158142
    """
    reduce = torch.sum if reduction == "sum" else torch.mean
    policy = -reduce(logp * advantage)
    critic = 0.5 * reduce((target - value).square())
    bonus = reduce(entropy)
    return Loss(policy + value_coef * critic - entropy_coef * bonus, policy.detach(), critic.detach(), bonus.detach())
