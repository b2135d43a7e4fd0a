"""The action distributions, and the usual one for an action space.

They are frozen, picklable values that need NumPy only: the worker samples from them, the head measures divergences
with them, a learner may compare its own arithmetic with theirs. The random numbers come in as arguments.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from clusterenv.errors import ConfigError
from clusterenv.policy.base import DistributionBase
from clusterenv.policy.categorical import MASKED, Categorical, MultiCategorical
from clusterenv.policy.continuous import Deterministic, DiagGaussian, TanhGaussian
from clusterenv.policy.discrete import Bernoulli, EpsilonGreedy
from clusterenv.policy.protocol import Distribution

if TYPE_CHECKING:
    from gymnasium import Space

__all__ = [
    "MASKED",
    "Bernoulli",
    "Categorical",
    "Deterministic",
    "DiagGaussian",
    "Distribution",
    "DistributionBase",
    "EpsilonGreedy",
    "MultiCategorical",
    "TanhGaussian",
    "distribution_for",
]


def distribution_for(action_space: Space[Any]) -> Distribution:
    """The usual distribution for a (single) action space.

    Raises:
        ConfigError: there is none, because the space is of another kind or a Box of whole numbers.

    Example:
        >>> from gymnasium.spaces import Box, Discrete
        >>> distribution_for(Discrete(4)).size
        4
        >>> distribution_for(Box(-1, 1, (2, 3))).action.shape
        (2, 3)
    """
    if isinstance(action_space, spaces.Discrete):
        return Categorical(int(action_space.n), start=int(action_space.start), dtype=action_space.dtype)
    if isinstance(action_space, spaces.MultiDiscrete):
        nvec, start = action_space.nvec, action_space.start
        return MultiCategorical(_whole(nvec), start=_whole(start), shape=nvec.shape, dtype=action_space.dtype)
    if isinstance(action_space, spaces.MultiBinary):
        shape = action_space.shape
        return Bernoulli(math.prod(shape), shape=shape, dtype=action_space.dtype)
    if isinstance(action_space, spaces.Box) and np.issubdtype(action_space.dtype, np.floating):
        return _gaussian_for(action_space)
    raise ConfigError(
        f"the action space {str(action_space)[:200]} has no usual distribution; Discrete, MultiDiscrete, MultiBinary "
        "and Box of floats have one. Wrap the environment (gymnasium.wrappers.TransformAction) so that its actions "
        "are one of these, or give the policy a `distribution` of its own."
    )


def _gaussian_for(box: spaces.Box) -> DiagGaussian:
    return DiagGaussian(math.prod(box.shape), low=box.low, high=box.high, shape=box.shape, dtype=box.dtype)


def _whole(numbers: Any) -> tuple[int, ...]:
    return tuple(int(number) for number in np.asarray(numbers).reshape(-1))
