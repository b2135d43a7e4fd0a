"""Transitions over several steps: the sum of rewards, and what the value after them counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


class NStep(NamedTuple):
    """What n steps from each start come to, or fewer where the episode ends before.

    Attributes:
        reward: [B] float32, the discounted sum.
        discount: [B] float32, gamma^length, or 0 where the episode terminated: by this the value of what was seen
            after the last step is multiplied.
        length: [B] int64, how many steps.
    """

    reward: Array
    discount: Array
    length: Array


def nstep(reward: Array, terminated: Array, truncated: Array, gamma: float) -> NStep:
    """Add up steps until the end of the window or of the episode. What comes after an end is not looked at.

    Args:
        reward: [B, n].
        terminated: [B, n].
        truncated: [B, n].
        gamma: the discount of one step.

    Example:
        >>> flags = np.array([[False, False], [False, False]])
        >>> told = nstep(np.array([[1.0, 1.0], [2.0, 0.0]]), flags, np.array([[False, False], [True, False]]), 0.5)
        >>> told.reward.tolist(), told.discount.tolist(), told.length.tolist()
        ([1.5, 2.0], [0.25, 0.5], [2, 1])
    """
    ended = np.logical_or.accumulate(terminated | truncated, axis=1)
    played = np.ones_like(ended)
    played[:, 1:] = ~ended[:, :-1]
    length = played.sum(axis=1)
    total = np.where(played, reward, 0.0) @ gamma ** np.arange(reward.shape[1])
    is_over = terminated[np.arange(len(length)), length - 1]
    discount = np.where(is_over, 0.0, gamma**length)
    return NStep(total.astype(np.float32), discount.astype(np.float32), length)
