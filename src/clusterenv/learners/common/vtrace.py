"""V-trace: value targets and advantages from the data of an older policy. A pure function of tensors [T, N].

Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor


class VTrace(NamedTuple):
    """What the learner aims at. Both are constants: no gradient flows through them.

    Attributes:
        target: of the value, [T, N].
        advantage: of the action, already weighed by its clipped ratio, [T, N].
    """

    target: Tensor
    advantage: Tensor


@torch.no_grad()
def vtrace(
    *,
    log_ratio: Tensor,
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    ended: Tensor,
    gamma: float,
    rho_bar: float | None = 1.0,
    c_bar: float = 1.0,
    pg_rho_bar: float | None = 1.0,
    lam: float = 1.0,
) -> VTrace:
    """V-trace over T steps of N slots.

    With equal policies and lam=1 the target is the discounted return up to the end of the fragment or of the episode.
    A truncated episode counts on the value of its own last observation, in the targets and in the advantages alike;
    nothing comes from the episode that follows.

    Args:
        log_ratio: log-probability of the action by the policy that learns minus that by the policy that acted, [T, N].
        reward: of each step, [T, N].
        value: of the observation before each step, by the newest critic, [T, N].
        next_value: what each step may count on after it, see `gae.next_values`, [T, N].
        ended: the step ended an episode, by termination or truncation, [T, N] bool.
        gamma: discount.
        rho_bar: ratios above this are cut in the temporal differences; it decides between the values of the acting
            policy (near 0) and of the learner's (None, not cut). At least `c_bar`.
        c_bar: ratios above this are cut in the trace; it decides how fast values travel back, not which.
        pg_rho_bar: ratios above this are cut in the advantages; None does not cut.
        lam: shortens the trace as in generalised advantage estimation; 1 is V-trace as published.

    Example:
        >>> one, no = torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.bool)
        >>> told = vtrace(log_ratio=0 * one, reward=one, value=0 * one, next_value=0 * one, ended=no, gamma=0.5)
        >>> told.target.flatten().tolist()
        [1.5, 1.0]
    """
    ratio = log_ratio.exp()
    delta = _cut(ratio, rho_bar) * (reward + gamma * next_value - value)
    # The trace stops where an episode ends, whatever the reason.
    trace = torch.where(ended, 0.0, gamma * lam * _cut(ratio, c_bar))
    added = torch.empty_like(delta)  # the target minus the value, [T, N]
    following = torch.zeros_like(delta[0])
    for t in reversed(range(len(delta))):
        following = torch.addcmul(delta[t], trace[t], following, out=added[t])
    # The target of the next step where the episode goes on; where it does not, or the fragment ends, what it counts on.
    next_target = next_value.to(delta.dtype, copy=True)
    next_target[:-1] += torch.where(ended[:-1], 0.0, added[1:])
    return VTrace(value + added, _cut(ratio, pg_rho_bar) * (reward + gamma * next_target - value))


def _cut(ratio: Tensor, bar: float | None) -> Tensor:
    return ratio if bar is None else ratio.clamp(max=bar)
