"""Returns over a fragment: to its end, or n steps ahead. Pure functions of tensors [T, N]: T steps, N slots.

Both count on `next_value` where an episode or the fragment ends: see `gae.next_values`. Whatever follows the end of an
episode plays no part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def returns_to_end(reward: Tensor, next_value: Tensor, ended: Tensor, *, gamma: float) -> Tensor:
    """The discounted return of each step up to the end of its episode or of the fragment, [T, N].

    Args:
        reward: of each step, [T, N].
        next_value: what each step may count on after it, [T, N].
        ended: the step ended an episode, by termination or truncation, [T, N] bool.
        gamma: discount.

    Example:
        >>> reward, no = torch.ones(3, 1), torch.zeros(3, 1, dtype=torch.bool)
        >>> returns_to_end(reward, torch.full((3, 1), 8.0), no, gamma=0.5).flatten().tolist()
        [2.75, 3.5, 5.0]
    """
    result = torch.empty_like(reward + next_value)
    following = next_value[-1]
    for t in reversed(range(len(reward))):
        following = reward[t] + gamma * torch.where(ended[t], next_value[t], following)
        result[t] = following
    return result


def n_step_returns(reward: Tensor, next_value: Tensor, ended: Tensor, *, gamma: float, n: int) -> Tensor:
    """The discounted return of each step n steps ahead, or fewer where the episode or the fragment ends first, [T, N].

    Args:
        reward: of each step, [T, N].
        next_value: what each step may count on after it, [T, N].
        ended: the step ended an episode, by termination or truncation, [T, N] bool.
        gamma: discount.
        n: how many rewards to look ahead, at least 1.

    Example:
        >>> reward, no = torch.ones(3, 1), torch.zeros(3, 1, dtype=torch.bool)
        >>> n_step_returns(reward, torch.full((3, 1), 8.0), no, gamma=0.5, n=2).flatten().tolist()
        [3.5, 3.5, 5.0]
    """
    result = reward + gamma * next_value
    for _ in range(min(n, len(reward)) - 1):
        # One step more: the reward, and what the step after it makes of one step less.
        longer = reward[:-1] + gamma * torch.where(ended[:-1], next_value[:-1], result[1:])
        result = torch.cat([longer, result[-1:]])
    return result
