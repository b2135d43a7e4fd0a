"""The networks of SAC: a policy that acts on the workers, and two Q functions that never leave the learner."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from clusterenv.errors import ConfigError
from clusterenv.learners.common.networks.encoding import Encoder, Normalizer
from clusterenv.learners.common.networks.heads import ACTOR_GAIN
from clusterenv.learners.common.networks.layers import linear, relu_layers
from clusterenv.learners.common.torch_distributions import bounds
from clusterenv.policy.distributions import TanhGaussian

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gymnasium import Space

    from clusterenv.spaces import Leaf

HIDDEN = (256, 256)
# The logarithm of a deviation stays within these, and gets there smoothly: a clamp would have no gradient beyond them.
LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
# tanh(x) with x normal of mean 0 and this deviation is as near to uniform between -1 and 1 as it gets: 0.01 nats.
UNIFORM_STD = 0.87


def squashed_for(action_space: Space[Any]) -> TanhGaussian:
    """The distribution of SAC's actions.

    Raises:
        ConfigError: the actions are not real numbers within bounds.

    Example:
        >>> squashed_for(spaces.Box(-2, 2, (3,))).dims
        3
    """
    if not isinstance(action_space, spaces.Box) or not np.issubdtype(action_space.dtype, np.floating):
        raise ConfigError(
            f"SAC learns actions that are real numbers within bounds (a Box of floats), but the action space is "
            f"{str(action_space)[:200]}. Learners for other actions: ppo, impala, impact, vmpo, and apex and "
            "r2d2 for Discrete."
        )
    if not (np.isfinite(action_space.low).all() and np.isfinite(action_space.high).all()):
        raise ConfigError(
            f"SAC needs finite bounds of all actions, but the action space is {str(action_space)[:200]}. Bound it by a "
            "wrapper (gymnasium.wrappers.RescaleAction, TransformAction), or use ppo, impala, impact or vmpo."
        )
    return TanhGaussian(action_space.low, action_space.high, shape=action_space.shape, dtype=action_space.dtype)


class SquashedActor(nn.Module):
    """From an observation to a squashed Gaussian, whose spread depends on the observation too.

    With its first weights it acts nearly uniformly within the bounds, whatever it sees.

    Args:
        observation_space: of one environment.
        action_space: of one environment: a Box of floats with bounds.
        hidden: sizes of the layers.
        normalize: whether observations are normalised by their running mean and variance.

    Attributes:
        distribution: how actions follow from the parameters.
        state: there is no memory.

    Example:
        >>> actor = SquashedActor(spaces.Box(-1, 1, (4,)), spaces.Box(-2, 2, (3,)), hidden=(8,))
        >>> params, value, state = actor(torch.zeros(5, 4))
        >>> params.shape, value, state
        (torch.Size([5, 6]), None, ())
    """

    state: tuple[Leaf, ...] = ()

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        hidden: Sequence[int] = HIDDEN,
        normalize: bool = False,
    ) -> None:
        super().__init__()
        self.distribution = squashed_for(action_space)
        self.encoder = Encoder(observation_space)
        self.normalizer = Normalizer(self.encoder.size) if normalize else None
        last = linear([self.encoder.size, *hidden][-1], self.distribution.size, ACTOR_GAIN)
        with torch.no_grad():
            last.bias[self.distribution.dims :] = math.atanh(_share_of_range(math.log(UNIFORM_STD)))
        self.layers = nn.Sequential(*relu_layers(self.encoder.size, hidden), last)

    def forward(self, obs: Any, state: tuple[Tensor, ...] = ()) -> tuple[Tensor, None, tuple[Tensor, ...]]:
        """Observations with n rows -> parameters [n, P], no value, and the (empty) state."""
        return self.params(self.rows(obs)), None, state

    def rows(self, obs: Any) -> Tensor:
        """What the networks see, the Q functions too: [n, size]."""
        rows: Tensor = self.encoder(obs)
        return rows if self.normalizer is None else self.normalizer(rows)

    def params(self, rows: Tensor) -> Tensor:
        """Rows [n, size] -> parameters [n, P]: means, then log deviations."""
        mean, spread = self.layers(rows).chunk(2, -1)
        log_std = LOG_STD_MIN + (LOG_STD_MAX - LOG_STD_MIN) / 2 * (torch.tanh(spread) + 1.0)
        return torch.cat([mean, log_std], -1)

    def learn_scale(self, obs: Any) -> None:
        """Take observations with n rows into the running mean and variance, if there is one."""
        if self.normalizer is not None:
            self.normalizer.learn(self.encoder(obs))


class TwinQ(nn.Module):
    """Two Q functions that share nothing, computed together: the weights of both lie in one tensor per layer.

    Args:
        size: how many numbers an observation has.
        distribution: of the actions, whose bounds become -1 and 1 before the first layer.
        hidden: sizes of the layers.

    Example:
        >>> TwinQ(4, TanhGaussian(-2, 2), (8,))(torch.zeros(5, 4), torch.zeros(5, 1)).shape
        torch.Size([2, 5])
    """

    def __init__(self, size: int, distribution: TanhGaussian, hidden: Sequence[int] = HIDDEN) -> None:
        super().__init__()
        self.distribution = distribution
        pairs = list(itertools.pairwise([size + distribution.dims, *hidden, 1]))
        self.weights = nn.ParameterList([_uniform(2, inputs, outputs, inputs=inputs) for inputs, outputs in pairs])
        self.biases = nn.ParameterList([_uniform(2, 1, outputs, inputs=inputs) for inputs, outputs in pairs])

    def forward(self, rows: Tensor, actions: Tensor, *, frozen: bool = False) -> Tensor:
        """Rows [n, size] and actions [n, ...] -> [2, n].

        Args:
            rows: what `SquashedActor.rows` makes of observations.
            actions: as the environment gets them.
            frozen: the weights are constants: gradients flow to the actions alone.
        """
        middle, half = bounds(self.distribution, rows.dtype, rows.device)
        scaled = (actions.reshape(len(actions), -1) - middle) / half  # an action may be a single number: [n]
        values = torch.cat([rows, scaled], -1).expand(2, -1, -1)  # [2, n, inputs]
        last = len(self.weights) - 1
        for place, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if frozen:
                weight, bias = weight.detach(), bias.detach()
            values = torch.baddbmm(bias, values, weight)
            if place < last:
                values = values.relu_()
        return values.squeeze(-1)


class SACNetwork(nn.Module):
    """All that learns: the policy, the two Q functions and the logarithm of the temperature.

    Args:
        observation_space: of one environment.
        action_space: of one environment: a Box of floats with bounds.
        hidden: sizes of the layers of the policy and of the Q functions.
        normalize: whether observations are normalised by their running mean and variance.
        temperature: at the start.
    """

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        hidden: Sequence[int] = HIDDEN,
        normalize: bool = False,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        self.actor = SquashedActor(observation_space, action_space, hidden=hidden, normalize=normalize)
        self.critic = TwinQ(self.actor.encoder.size, self.actor.distribution, hidden)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))


def _share_of_range(log_std: float) -> float:
    """Where a log deviation lies between its bounds, which count as -1 and 1."""
    return 2 * (log_std - LOG_STD_MIN) / (LOG_STD_MAX - LOG_STD_MIN) - 1


def _uniform(*shape: int, inputs: int) -> nn.Parameter:
    """First weights as torch's own Linear has them."""
    limit = inputs**-0.5
    return nn.Parameter(torch.empty(shape).uniform_(-limit, limit))
