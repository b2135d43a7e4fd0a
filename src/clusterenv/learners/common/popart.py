"""PopArt: a value head whose targets have mean 0 and deviation 1, whatever the rewards of a task are.

Hessel et al. 2018, "Multi-task Deep Reinforcement Learning with PopArt". Statistics of the returns of each task give
the scale (ART); when they move, the last layer is rescaled so that what it says in the units of the rewards stays as it
is (POP).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clusterenv.errors import ConfigError


class PopArtHead(nn.Linear):
    """The last layer of a critic, with one output for each task.

    Weight and bias are those of the values on the scale that is learned. The statistics are buffers in float64, so they
    travel and are saved with the weights, and no encoding rounds them.

    Args:
        inputs: features.
        tasks: of which each has an output and statistics of its own.
        beta: how far the statistics move towards those of a batch. Short runs need 1e-2 or more.
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
        super().__init__(inputs, tasks)
        if not 0 < beta <= 1:
            raise ConfigError(f"beta={beta!r} must be more than 0 and at most 1.")
        if not 0 < scale[0] <= scale[1]:
            raise ConfigError(f"scale={scale!r} must be two deviations above 0, the smaller one first.")
        self.beta, self.scale = beta, scale
        self.register_buffer("mean", torch.zeros(tasks, dtype=torch.float64))
        self.register_buffer("var", torch.ones(tasks, dtype=torch.float64))

    @property
    def std(self) -> Tensor:
        """The deviation of each task within its bounds, [tasks] float64."""
        smallest, largest = self.scale
        return self.var.clamp(smallest**2, largest**2).sqrt()

    def forward(self, features: Tensor) -> Tensor:
        """Features [..., inputs] -> values in the units of the rewards, [..., tasks]."""
        normalized = self.normalized(features)
        return (normalized * self.std + self.mean).to(normalized.dtype)

    def normalized(self, features: Tensor) -> Tensor:
        """Features [..., inputs] -> values on the scale that is learned, [..., tasks]."""
        return super().forward(features)

    def normalize(self, returns: Tensor, task: Tensor | None = None) -> Tensor:
        """Returns [n] of tasks [n] (of the first one, if not given) on the scale that is learned, [n]."""
        index = [0] if task is None else task
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
        self.weight.copy_(self.weight * ratio.unsqueeze(1))
        self.bias.copy_(self.bias * ratio + (old_mean - self.mean) / self.std)


def install(critic: nn.Module, *, beta: float) -> tuple[nn.Module, PopArtHead]:
    """The same critic with PopArt in its last layer, and that layer. What it says stays as it is.

    Args:
        critic: a linear layer, or a sequence that ends with one.
        beta: of `PopArtHead`.

    Example:
        >>> critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        >>> features, (changed, head) = torch.ones(1, 4), install(critic, beta=0.1)
        >>> torch.equal(changed(features), critic(features)), head.std.item()
        (True, 1.0)
    """
    layers = list(critic) if isinstance(critic, nn.Sequential) else [critic]
    last = layers.pop()
    if not isinstance(last, nn.Linear):
        raise ConfigError(f"PopArt takes the place of a linear layer, but the critic ends with {last}.")
    head = PopArtHead(last.in_features, last.out_features, beta=beta).to(last.weight.device)
    head.load_state_dict({**head.state_dict(), **last.state_dict()})
    return nn.Sequential(*layers, head) if layers else head, head
