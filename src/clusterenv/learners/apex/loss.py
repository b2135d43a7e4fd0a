"""What Q-values should be, and how far they are from it. Pure functions of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def bootstrap(target_q: Tensor, online_q: Tensor | None = None) -> Tensor:
    """What the next observation is worth by its best action, as the target network values it.

    Args:
        target_q: [B, A], by the target network.
        online_q: [B, A], by the network that learns, which then chooses the action: the one who chooses does not
            value, so that what is overrated by chance is not chosen for it (double Q-learning). None: the target
            network does both.

    Returns:
        [B].

    Example:
        >>> target_q = torch.tensor([[1.0, 5.0]])
        >>> bootstrap(target_q), bootstrap(target_q, online_q=torch.tensor([[0.2, 0.1]]))
        (tensor([5.]), tensor([1.]))
    """
    best = (target_q if online_q is None else online_q).argmax(-1, keepdim=True)
    return target_q.gather(-1, best).squeeze(-1)


def td_error(q: Tensor, action: Tensor, reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """How much better the transition was than the Q-value said.

    Args:
        q: [B, A].
        action: [B].
        reward: [B], over the steps of the transition.
        discount: [B], of what follows; 0 where the episode terminated, and nothing follows, whatever its value.
        next_value: [B], of what follows.

    Returns:
        [B].

    Example:
        >>> q, one = torch.tensor([[1.0, 2.0]]), torch.ones(1)
        >>> td_error(q, torch.tensor([1]), reward=one, discount=0.5 * one, next_value=4 * one)
        tensor([1.])
    """
    target = reward + torch.where(discount == 0, 0.0, discount * next_value)
    return target - q.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def td_loss(error: Tensor, weight: Tensor) -> Tensor:
    """Half the mean squared error, each weighed for how much too often it was sampled.

    Example:
        >>> td_loss(torch.tensor([2.0, -4.0]), torch.tensor([1.0, 0.5]))
        tensor(3.)
    """
    return 0.5 * (weight * error.square()).mean()
