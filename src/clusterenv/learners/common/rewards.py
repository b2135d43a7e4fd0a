"""What a learner may do to rewards before it learns from them. What is reported is always the reward itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import torch

from clusterenv.errors import ConfigError, unknown
from clusterenv.learners.common.config import RewardTransform

if TYPE_CHECKING:
    from torch import Tensor

    from clusterenv.learners.common.config import LearnerConfig


def for_learner(config: LearnerConfig, reward: Tensor) -> Tensor:
    """The rewards that a learner is to see, by its settings."""
    return transform(reward, config.reward) * config.reward_scale


def transform(reward: Tensor, kind: RewardTransform = "none") -> Tensor:
    """The rewards that a learner sees.

    Args:
        reward: of any shape.
        kind: "none" leaves them; "clip" cuts them to -1 ... 1; "sign" keeps their sign alone; "soft asymmetric" is
            5 tanh(r / 5) with losses at 0.3 (the code of IMPALA); "optimistic asymmetric" is tanh(r) with gains times 5
            and losses times 0.3 (its paper, for DMLab-30).

    Raises:
        ConfigError: there is no such kind.

    Example:
        >>> transform(torch.tensor([-2.0, 0.5]), "clip")
        tensor([-1.0000,  0.5000])
    """
    if kind == "none":
        return reward
    if kind == "clip":
        return reward.clamp(-1, 1)
    if kind == "sign":
        return reward.sign()
    if kind == "soft asymmetric":
        soft = 5 * torch.tanh(reward / 5)
        return torch.where(reward < 0, 0.3 * soft, soft)
    if kind == "optimistic asymmetric":
        soft = torch.tanh(reward)
        return torch.where(reward < 0, 0.3 * soft, 5 * soft)
    raise ConfigError(unknown("reward transform", kind, get_args(RewardTransform)))
