"""Generalised advantage estimation. Pure functions of tensors [T, N]: T steps, N slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def next_values(
    value: Tensor, terminated: Tensor, truncated: Tensor, final_value: Tensor, final_at: tuple[Tensor, Tensor]
) -> Tensor:
    """What each step may count on after it, [T, N].

    Usually the value of the next observation. After an episode's end the next observation belongs to another episode,
    so there it is the value of the episode's own last observation if it was truncated (it would have gone on), and
    nothing if it terminated.

    Args:
        value: of every observation, [T + 1, N].
        terminated: [T, N] bool.
        truncated: [T, N] bool. A step that is both has terminated.
        final_value: of the last observation of each episode that ended here, [K].
        final_at: where they ended: t and n, each [K]. What has t = T is nobody's and is not looked at.
    """
    steps = len(terminated)
    following = value.roll(-1, 0)  # row T takes what is nobody's
    following[final_at] = final_value.to(following.dtype)
    told = torch.zeros_like(following, dtype=torch.bool)
    told[final_at] = torch.ones_like(final_value, dtype=torch.bool)  # a plain True would come from the CPU each time
    # An end without a last observation must not count on a stranger's value.
    nothing = terminated | (truncated & ~told[:steps])
    return torch.where(nothing, 0.0, following[:steps])


def advantages(
    reward: Tensor, value: Tensor, next_value: Tensor, ended: Tensor, *, gamma: float, gae_lambda: float
) -> Tensor:
    """Generalised advantage estimation, [T, N].

    Args:
        reward: of each step, [T, N].
        value: of the observation before each step, [T, N].
        next_value: what each step may count on after it, see `next_values`, [T, N].
        ended: the step ended an episode, by termination or truncation, [T, N] bool.
        gamma: discount.
        gae_lambda: 0 looks one step ahead, 1 to the end.

    Example:
        >>> one = torch.ones(2, 1)
        >>> no = torch.zeros(2, 1, dtype=torch.bool)
        >>> advantages(one, 0 * one, 0 * one, no, gamma=0.5, gae_lambda=1.0).flatten().tolist()
        [1.5, 1.0]
    """
    delta = reward + gamma * next_value - value
    # What is earned in the next episode says nothing about this one.
    keep = (~ended).to(delta.dtype) * (gamma * gae_lambda)
    result = torch.empty_like(delta)
    following = torch.zeros_like(delta[0])
    for t in reversed(range(len(delta))):
        following = torch.addcmul(delta[t], keep[t], following, out=result[t])
    return result


def normalized(advantage: Tensor) -> Tensor:
    """Mean 0 and deviation 1, also for a single one."""
    return (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
