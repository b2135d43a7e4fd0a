"""Fully connected layers with the first weights that suit them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence


def mlp(inputs: int, hidden: Sequence[int], outputs: int, *, last_gain: float) -> nn.Sequential:
    """Tanh layers with orthogonal weights; the last one is linear with a gain of its own."""
    return nn.Sequential(*tanh_layers(inputs, hidden), linear([inputs, *hidden][-1], outputs, last_gain))


def tanh_layers(inputs: int, hidden: Sequence[int]) -> list[nn.Module]:
    """Tanh layers with orthogonal weights."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise([inputs, *hidden]):
        layers += [linear(before, after, 2**0.5), nn.Tanh()]
    return layers


def relu_layers(inputs: int, hidden: Sequence[int]) -> list[nn.Module]:
    """Layers with ReLU, and torch's own first weights."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise([inputs, *hidden]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return layers


def linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """One layer with orthogonal weights of this gain, and no bias at first."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
