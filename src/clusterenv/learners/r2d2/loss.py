"""The loss of R2D2. Pure functions of tensors [m, B]: the m steps of B sequences that are learned from.

Q-values are on the squashed scale of `rescaling` throughout; rewards and returns are as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from clusterenv.learners.common.rescaling import squash, unsquash
from clusterenv.learners.common.returns import n_step_returns

if TYPE_CHECKING:
    from torch import Tensor


def targets(
    q: Tensor,
    target_q: Tensor,
    reward: Tensor,
    terminated: Tensor,
    ended: Tensor,
    *,
    gamma: float,
    n: int,
    epsilon: float,
) -> Tensor:
    """What the Q-values of the actions that were taken should be, [m, B]. Constants.

    n rewards, or fewer where the sequence ends first, and what the target network makes of the choice that the network
    itself would take then (double Q-learning). The whole return is squashed once.

    Args:
        q: of the network, of every choice before each step and after the last, [m + 1, B, A].
        target_q: the same of the target network.
        reward: [m, B].
        terminated: the step ended the episode, and nothing follows, [m, B].
        ended: nothing of the sequence follows the step, because the episode or the sequence ended, [m, B].
        gamma: discount.
        n: how many rewards to look ahead.
        epsilon: of the squashed scale.

    Example:
        >>> q, no = torch.tensor([[[0.0, 1.0]], [[0.0, 1.0]]]), torch.tensor([[False]])
        >>> round(targets(q, 0 * q, torch.tensor([[3.0]]), no, no, gamma=0.9, n=3, epsilon=1e-3).item(), 4)
        1.003
    """
    best = q[1:].detach().argmax(-1, keepdim=True)
    follows = unsquash(target_q[1:].gather(-1, best).squeeze(-1), epsilon).masked_fill(terminated, 0.0)
    return squash(n_step_returns(reward, follows, ended, gamma=gamma, n=n), epsilon).detach()


def ends(terminated: Tensor, truncated: Tensor, mask: Tensor) -> Tensor:
    """After which steps nothing of the sequence follows: its episode ends, or only padding comes, [m, B].

    Example:
        >>> no, mask = torch.zeros(3, 1, dtype=torch.bool), torch.tensor([[True], [True], [False]])
        >>> ends(no, no, mask).flatten().tolist()
        [False, True, False]
    """
    padding = torch.cat([~mask[1:], torch.zeros_like(mask[:1])])
    return terminated | truncated | padding


def taken(q: Tensor, action: Tensor) -> Tensor:
    """The Q-values [m, B] of the actions that were taken [m, B]; q is [m, B, A].

    Example:
        >>> taken(torch.tensor([[[0.5, 1.5]]]), torch.tensor([[1]]))
        tensor([[1.5000]])
    """
    return q.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)


def sequence_loss(error: Tensor, mask: Tensor) -> Tensor:
    """Half the squared errors of each sequence, summed over its steps, [B].

    Args:
        error: target minus prediction, [m, B].
        mask: which steps are there; the others are padding, [m, B].

    Example:
        >>> sequence_loss(torch.tensor([[2.0], [9.0]]), torch.tensor([[True], [False]]))
        tensor([2.])
    """
    return 0.5 * error.masked_fill(~mask, 0.0).square().sum(0)


def priority(error: Tensor, mask: Tensor, eta: float) -> Tensor:
    """How much each sequence surprised, [B]: between its largest error and their mean.

    Where sequences are long, the mean alone would make all of them alike. Padding counts in neither.

    Args:
        error: [m, B], on the squashed scale.
        mask: which steps are there, [m, B]; at least one of each sequence.
        eta: the share of the largest.

    Example:
        >>> error, mask = torch.tensor([[-3.0], [1.0], [9.0]]), torch.tensor([[True], [True], [False]])
        >>> priority(error, mask, eta=0.9)
        tensor([2.9000])
    """
    size = error.detach().abs().masked_fill(~mask, 0.0)
    mean = size.sum(0) / mask.sum(0).clamp(min=1)
    return eta * size.amax(0) + (1 - eta) * mean


def first_priority(
    reward: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    mask: Tensor,
    taken: Tensor,
    following: Tensor,
    *,
    gamma: float,
    n: int,
    epsilon: float,
    eta: float,
) -> Tensor:
    """How much each sequence surprised the policy that acted, [B]; NaN where it has not told enough.

    That policy stands for the target network too, so nothing has to be computed again. What it would have thought of an
    observation that it never acted on, the last of a truncated episode or of a fragment, is not known: the step before
    that has no error yet.

    Args:
        reward: [m, B].
        terminated: [m, B].
        truncated: [m, B].
        mask: which steps are there, [m, B].
        taken: the value of the action that was taken, [m, B].
        following: the largest value of an action after the step, [m, B]; NaN where the policy did not act again.
        gamma: discount.
        n: how many rewards to look ahead.
        epsilon: of the squashed scale.
        eta: the share of the largest error.

    Example:
        >>> no, yes = torch.tensor([[False]]), torch.tensor([[True]])
        >>> zero, nan = torch.tensor([[0.0]]), torch.tensor([[torch.nan]])
        >>> settings = {"gamma": 0.9, "n": 1, "epsilon": 1e-3, "eta": 0.9}
        >>> first_priority(zero + 3, yes, no, yes, zero, nan, **settings)
        tensor([1.0030])
        >>> first_priority(zero + 3, no, no, yes, zero, nan, **settings)
        tensor([nan])
    """
    mask = mask & taken.isfinite() & (terminated | following.isfinite())
    follows = unsquash(following.nan_to_num(), epsilon).masked_fill(terminated, 0.0)
    returns = n_step_returns(reward, follows, ends(terminated, truncated, mask), gamma=gamma, n=n)
    surprise = priority(squash(returns, epsilon) - taken, mask, eta)
    return surprise.masked_fill(~mask.any(0), torch.nan)
