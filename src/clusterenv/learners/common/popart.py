"""PopArt: a value head whose targets have mean 0 and deviation 1, whatever the rewards of a task are.

Hessel et al. 2018, "Multi-task Deep Reinforcement Learning with PopArt". Statistics of the returns of each task give
the scale (ART); when they move, the last layer is rescaled so that what it says in the units of the rewards stays as it
is (POP).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from clusterenv.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


class PopArtHead(nn.Module):
    """The last layer of a critic, with one output for each task.

    The statistics are buffers in float64, so they travel and are saved with the weights, and no encoding rounds them.

    Args:
        inputs: features.
        tasks: of which each has an output and statistics of its own.
        beta: how far the statistics move towards those of a batch. For short runs 1e-2 or more; 3e-4 and less need
            thousands of batches.
        scale: smallest and largest deviation.

    Example:
        >>> head = PopArtHead(inputs=2, beta=0.5)
        >>> features, returns = torch.ones(1, 2), torch.tensor([100.0, 300.0])
        >>> before = head(features)
        >>> head.learn(returns)
        >>> head.mean.item(), torch.allclose(head(features), before, atol=1e-4)
        (100.0, True)
    """

    mean: Tensor
    var: Tensor

    def __init__(
        self, inputs: int, tasks: int = 1, *, beta: float = 1e-2, scale: tuple[float, float] = (1e-2, 1e6)
    ) -> None:
        super().__init__()
        if not 0 < beta <= 1:
            raise ConfigError(f"beta={beta!r} must be more than 0 and at most 1.")
        if not 0 < scale[0] <= scale[1]:
            raise ConfigError(f"scale={scale!r} must be two deviations above 0, the smaller one first.")
        self.beta, self.scale = beta, scale
        self.linear = nn.Linear(inputs, tasks)
        self.register_buffer("mean", torch.zeros(tasks, dtype=torch.float64))
        self.register_buffer("var", torch.ones(tasks, dtype=torch.float64))

    @property
    def std(self) -> Tensor:
        """The deviation of each task within its bounds, [tasks] float64."""
        smallest, largest = self.scale
        return self.var.clamp(smallest**2, largest**2).sqrt()

    def forward(self, features: Tensor) -> Tensor:
        """Features [n, inputs] -> values in the units of the rewards, [n, tasks]."""
        normalized = self.normalized(features)
        return (normalized * self.std + self.mean).to(normalized.dtype)

    def normalized(self, features: Tensor) -> Tensor:
        """Features [n, inputs] -> values on the scale that is learned, [n, tasks]."""
        values: Tensor = self.linear(features)
        return values

    def normalize(self, returns: Tensor, task: Tensor | None = None) -> Tensor:
        """Returns [n] of tasks [n] (of the first one, if not given) on the scale that is learned, [n]."""
        index = _index(task)
        return ((returns - self.mean[index]) / self.std[index]).to(returns.dtype)

    @torch.no_grad()
    def learn(self, returns: Tensor, task: Tensor | None = None) -> None:
        """Move the statistics towards those of returns [n] of tasks [n], and rescale the layer to say the same.

        A task of which there is no return stays as it is.
        """
        task = torch.zeros(len(returns), dtype=torch.int64, device=returns.device) if task is None else task
        old_mean, old_std = self.mean.clone(), self.std
        for present in sorted(set(task.tolist())):
            var, mean = torch.var_mean(returns[task == present].double(), correction=0)
            delta = mean - self.mean[present]
            # The same as the variance by first and second moments, without their difference of large numbers.
            self.var[present] += self.beta * (var - self.var[present] + (1 - self.beta) * delta.square())
            self.mean[present] += self.beta * delta
        ratio = old_std / self.std  # [tasks]
        shift = (old_mean - self.mean) / self.std
        self.linear.weight.copy_(self.linear.weight * ratio.unsqueeze(1))
        self.linear.bias.copy_(self.linear.bias * ratio + shift)


def _index(task: Tensor | None) -> Tensor | Sequence[int]:
    return [0] if task is None else task
