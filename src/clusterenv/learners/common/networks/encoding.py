"""Observations as rows of numbers, on a scale that travels with the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from clusterenv.errors import ConfigError
from clusterenv.spaces import array_spaces, leaves_of, take_apart

if TYPE_CHECKING:
    from gymnasium import Space

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
