"""Layers with the first weights that suit them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, TypeVar

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence

Weighted = TypeVar("Weighted", nn.Linear, nn.Conv2d)

# What comes out of a layer before a tanh or a ReLU is then about as large as what came in.
GAIN = 2**0.5


def mlp(inputs: int, hidden: Sequence[int], outputs: int, *, last_gain: float) -> nn.Sequential:
    """Tanh layers with orthogonal weights; the last one is linear with a gain of its own."""
    return nn.Sequential(*tanh_layers(inputs, hidden), linear([inputs, *hidden][-1], outputs, last_gain))


def tanh_layers(inputs: int, hidden: Sequence[int]) -> list[nn.Module]:
    """Tanh layers with orthogonal weights."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise([inputs, *hidden]):
        layers += [linear(before, after, GAIN), nn.Tanh()]
    return layers


def relu_layers(inputs: int, hidden: Sequence[int], *, gain: float | None = None) -> list[nn.Module]:
    """Layers with ReLU and orthogonal weights of this gain, or with torch's own first weights."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise([inputs, *hidden]):
        layers += [nn.Linear(before, after) if gain is None else linear(before, after, gain), nn.ReLU()]
    return layers


def linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """One layer with orthogonal weights of this gain, and no bias at first."""
    return orthogonal(nn.Linear(inputs, outputs), gain)


def convolution(channels: int, filters: int, kernel: int, *, stride: int = 1, padding: int = 0) -> nn.Conv2d:
    """One convolution with orthogonal weights, and no bias at first.

    With torch's own weights each layer hands on less of what sets one image apart from another: behind three of them a
    ball that moves over a still screen is as good as gone, and Pong is not learned.
    """
    return orthogonal(nn.Conv2d(channels, filters, kernel, stride=stride, padding=padding), GAIN)


def orthogonal(layer: Weighted, gain: float) -> Weighted:
    """The layer itself, with orthogonal weights of this gain and no bias."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
