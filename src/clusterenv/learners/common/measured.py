"""What a gradient step measures: numbers that stay on the device until somebody looks at all of them at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from clusterenv.metrics import keys


def measured(values: Mapping[keys.Metric, Tensor]) -> dict[str, Tensor]:
    """Single numbers by name, without what they were computed from, which would stay in memory with them.

    Example:
        >>> from clusterenv.metrics import keys
        >>> measured({keys.GRAD_NORM: torch.ones((), requires_grad=True)})
        {'losses/grad_norm': tensor(1.)}
    """
    return {metric.name: value.detach() for metric, value in values.items()}


def together(told: Mapping[str, Tensor]) -> Tensor:
    """All of them in one tensor, [n]. A copy: what a step tells may hold only until the next."""
    return torch.stack(list(told.values()))


def numbers(told: Mapping[str, Tensor]) -> dict[str, float]:
    """The same as floats. All together, since each look at a GPU waits for it.

    Example:
        >>> numbers({"losses/grad_norm": torch.tensor(0.5), "losses/entropy": torch.tensor(2.0)})
        {'losses/grad_norm': 0.5, 'losses/entropy': 2.0}
    """
    return dict(zip(told, together(told).tolist(), strict=True))
