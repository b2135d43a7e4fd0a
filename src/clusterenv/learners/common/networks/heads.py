"""From features to the parameters of an action distribution."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from clusterenv.policy.distributions import DiagGaussian

if TYPE_CHECKING:
    from clusterenv.policy.protocol import Distribution

# A small last layer makes the first policy nearly uniform, whatever the observation.
ACTOR_GAIN, CRITIC_GAIN = 0.01, 1.0


def outputs_of(distribution: Distribution) -> int:
    """How many outputs the network needs: all parameters, but of a Gaussian only the means."""
    return distribution.size // 2 if isinstance(distribution, DiagGaussian) else distribution.size


def spread_of(distribution: Distribution, first: float) -> nn.Parameter | None:
    """A Gaussian's spread is the same in every state: a parameter of its own, not an output of the network.

    Args:
        distribution: of the actions; only a Gaussian has a spread.
        first: the standard deviation before anything is learned.
    """
    if not isinstance(distribution, DiagGaussian):
        return None
    return nn.Parameter(torch.full((outputs_of(distribution),), math.log(first)))


def with_spread(outputs: Tensor, log_std: Tensor | None) -> Tensor:
    """The parameters of the distribution: the outputs, and the spread beside them if there is one."""
    return outputs if log_std is None else torch.cat([outputs, log_std.expand_as(outputs)], -1)
