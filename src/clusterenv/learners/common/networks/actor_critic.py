"""Networks for the learners: a small actor-critic for any observation and action space that lies in arrays.

The modules are "native" policies: they have a `distribution`, and `forward(obs, state)` returns the distribution's
parameters, the value and the state. All that acting needs, the running mean of the observations too, is in the
parameters and buffers, so it travels with the version.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from clusterenv.errors import ConfigError
from clusterenv.policy.distributions import DiagGaussian, distribution_for
from clusterenv.spaces import array_spaces, leaves_of, take_apart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gymnasium import Space

    from clusterenv.policy.protocol import Distribution

# Past this many standard deviations a normalised observation is an outlier, and is cut.
_MAX_DEVIATIONS = 10.0


class Encoder(nn.Module):
    """Turns an observation into one row of numbers: boxes flattened, choices as one-hot.

    Example:
        >>> encode = Encoder(spaces.Dict(speed=spaces.Box(-1, 1, (2,)), gear=spaces.Discrete(3)))
        >>> encode({"gear": torch.tensor([2]), "speed": torch.tensor([[0.5, -0.5]])})
        tensor([[ 0.5000, -0.5000,  0.0000,  0.0000,  1.0000]])
    """

    def __init__(self, space: Space[Any]) -> None:
        super().__init__()
        if leaves_of(space) is None:
            raise ConfigError(
                f"the observation space {space} does not lie in arrays. "
                "Use Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of these; a wrapper can translate."
            )
        self.space = space
        self.parts = array_spaces(space)
        self.size = sum(spaces.flatdim(part) for part in self.parts)

    def forward(self, obs: Any) -> Tensor:
        """Observations with n rows -> [n, size] float32."""
        rows = [_encode(part, value) for part, value in zip(self.parts, take_apart(self.space, obs), strict=True)]
        return rows[0] if len(rows) == 1 else torch.cat(rows, -1)


class Normalizer(nn.Module):
    """Keeps the mean and variance of all rows it was shown, and normalises by them.

    Its buffers travel with the weights. They are float64, which no encoding rounds: of a large mean with a small
    spread, half a float32 would leave nothing.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("var", torch.ones(size, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, rows: Tensor) -> Tensor:
        """Normalise rows [n, size]."""
        scaled = (rows - self.mean) / torch.sqrt(self.var + 1e-8)
        return scaled.clamp(-_MAX_DEVIATIONS, _MAX_DEVIATIONS).float()

    @torch.no_grad()
    def learn(self, rows: Tensor) -> None:
        """Take rows [n, size] into the mean and variance (Chan's rule for two groups)."""
        count, added = self.count.item(), float(len(rows))
        total = count + added
        var, mean = torch.var_mean(rows.double(), 0, correction=0)
        delta = mean - self.mean
        spread = self.var * count + var * added + delta.square() * (count * added / total)
        self.mean += delta * (added / total)
        self.var.copy_(spread / total)
        self.count.fill_(total)


class ActorCritic(nn.Module):
    """An actor and a critic that share nothing but the encoder.

    Args:
        observation_space: of one environment.
        action_space: of one environment: Discrete, MultiDiscrete, MultiBinary or Box.
        hidden: sizes of the hidden layers, the same for both.
        normalize: whether observations are normalised by their running mean and variance.

    Example:
        >>> net = ActorCritic(spaces.Box(-1, 1, (4,)), spaces.Discrete(2))
        >>> params, value, state = net(torch.zeros(3, 4))
        >>> params.shape, value.shape, state
        (torch.Size([3, 2]), torch.Size([3]), ())
    """

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        hidden: Sequence[int] = (64, 64),
        normalize: bool = False,
    ) -> None:
        super().__init__()
        self.distribution: Distribution = distribution_for(action_space)
        self.encoder = Encoder(observation_space)
        self.normalizer = Normalizer(self.encoder.size) if normalize else None
        # A Gaussian's spread is the same in every state: a parameter of its own, not an output of the network.
        gaussian = isinstance(self.distribution, DiagGaussian)
        outputs = self.distribution.size // 2 if gaussian else self.distribution.size
        self.log_std = nn.Parameter(torch.zeros(outputs)) if gaussian else None
        # A small last layer makes the first policy nearly uniform, whatever the observation.
        self.actor = mlp(self.encoder.size, hidden, outputs, last_gain=0.01)
        self.critic = mlp(self.encoder.size, hidden, 1, last_gain=1.0)

    def forward(self, obs: Any, state: tuple[Tensor, ...] = ()) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Observations with n rows -> parameters [n, P], values [n], and the (empty) state."""
        rows = self.rows(obs)
        params = self.actor(rows)
        if self.log_std is not None:
            params = torch.cat([params, self.log_std.expand_as(params)], -1)
        return params, self.critic(rows).squeeze(-1), state

    def rows(self, obs: Any) -> Tensor:
        """What the two networks see: [n, size]."""
        rows: Tensor = self.encoder(obs)
        return rows if self.normalizer is None else self.normalizer(rows)

    def value(self, obs: Any) -> Tensor:
        """The critic alone: observations with n rows -> [n]."""
        value: Tensor = self.critic(self.rows(obs))
        return value.squeeze(-1)

    def parts(self) -> list[list[nn.Parameter]]:
        """The parameters of the actor, and those of the critic."""
        critic = list(self.critic.parameters())
        own = {id(parameter) for parameter in critic}
        return [[parameter for parameter in self.parameters() if id(parameter) not in own], critic]

    def learn_scale(self, obs: Any) -> None:
        """Take observations with n rows into the running mean and variance, if there is one."""
        if self.normalizer is not None:
            self.normalizer.learn(self.encoder(obs))


def mlp(inputs: int, hidden: Sequence[int], outputs: int, *, last_gain: float) -> nn.Sequential:
    """Tanh layers with orthogonal weights; the last one is linear with a gain of its own."""
    layers: list[nn.Module] = []
    sizes = [inputs, *hidden]
    for before, after in itertools.pairwise(sizes):
        layers += [_linear(before, after, 2**0.5), nn.Tanh()]
    return nn.Sequential(*layers, _linear(sizes[-1], outputs, last_gain))


def _linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def _encode(space: Space[Any], value: Tensor) -> Tensor:
    if isinstance(space, spaces.Discrete):
        return _one_hot(value - int(space.start), int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        starts, sizes = space.start.reshape(-1).tolist(), space.nvec.reshape(-1).tolist()
        columns = value.flatten(1)
        hot = [_one_hot(columns[:, i] - starts[i], sizes[i]) for i in range(len(sizes))]
        return torch.cat(hot, -1)
    rows = value.float().unsqueeze(-1) if value.ndim == 1 else value.float().flatten(1)
    # Images: bytes from 0 to 255 become 0 to 1.
    return rows / 255.0 if isinstance(space, spaces.Box) and space.dtype == "uint8" else rows


def _one_hot(index: Tensor, size: int) -> Tensor:
    # By comparison: torch's own one_hot looks at the values, which cannot be exported as a graph.
    return (index.unsqueeze(-1) == torch.arange(size, device=index.device)).float()
