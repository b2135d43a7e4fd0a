"""From an observation to features: through dense layers, or an image through convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from clusterenv.errors import ConfigError
from clusterenv.learners.common.networks.encoding import Encoder, Normalizer
from clusterenv.learners.common.networks.layers import GAIN, convolution, relu_layers, tanh_layers
from clusterenv.spaces import array_spaces, leaves_of, take_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gymnasium import Space

    Layers = Callable[[int, Sequence[int]], list[nn.Module]]

Convolutions = Literal["shallow", "deep", "nature"]
Layout = Literal["plain", "channels first", "channels last"]


class VectorBody(nn.Module):
    """All of the observation as one row of numbers, then dense layers.

    Args:
        space: of one observation.
        hidden: sizes of the layers.
        normalize: whether the row is normalised by its running mean and variance.
        layers: makes the layers: with tanh, or others.

    Attributes:
        size: how many features come out.
    """

    def __init__(
        self, space: Space[Any], hidden: Sequence[int], *, normalize: bool, layers: Layers = tanh_layers
    ) -> None:
        super().__init__()
        self.encoder = Encoder(space)
        self.normalizer = Normalizer(self.encoder.size) if normalize else None
        self.layers = nn.Sequential(*layers(self.encoder.size, hidden))
        self.size = [self.encoder.size, *hidden][-1]

    def forward(self, obs: Any) -> Tensor:
        """Observations with n rows -> [n, size]."""
        rows = self.encoder(obs)
        features: Tensor = self.layers(rows if self.normalizer is None else self.normalizer(rows))
        return features

    def learn_scale(self, obs: Any) -> None:
        """Take observations with n rows into the running mean and variance."""
        if self.normalizer is not None:
            self.normalizer.learn(self.encoder(obs))


class ImageBody(nn.Module):
    """The image of an observation through convolutions and layers with ReLU; all the rest of it beside the result.

    An image has the shape [channels, height, width], [height, width, channels] or [height, width]. Two equal neighbours
    are height and width; if that does not decide, the smaller end counts the channels. Bytes are divided by 255.

    Args:
        space: of one observation; one of its leaves is an image.
        kind: which convolutions.
        hidden: sizes of the layers after the convolutions.
        normalize: whether what is no image is normalised by its running mean and variance.

    Attributes:
        size: how many features come out.

    Example:
        >>> space = spaces.Dict(obs=spaces.Box(0, 255, (4, 84, 84), np.uint8), last_action=spaces.Discrete(6))
        >>> ImageBody(space, "deep", (256,), normalize=False).size
        262
    """

    def __init__(self, space: Space[Any], kind: Convolutions, hidden: Sequence[int], *, normalize: bool) -> None:
        super().__init__()
        self.space = space
        leaves = array_spaces(space)
        self.place = _image_of(space, leaves, kind)
        image = leaves.pop(self.place)
        self.shape, self.bytes = image.shape or (), image.dtype == np.uint8
        self.layout = _layout_of(self.shape)
        channels, *size = self._channels_first(torch.zeros(1, *self.shape)).shape[1:]
        self.convolutions = _KINDS[kind](channels)
        features = _features_of(self.convolutions, channels, size, kind)
        self.layers = nn.Sequential(*relu_layers(features, hidden, gain=GAIN))
        self.encoder = Encoder(spaces.Tuple(leaves)) if leaves else None
        beside = 0 if self.encoder is None else self.encoder.size
        self.normalizer = Normalizer(beside) if normalize and beside else None
        self.size = [features, *hidden][-1] + beside

    def forward(self, obs: Any) -> Tensor:
        """Observations with n rows -> [n, size]."""
        leaves = take_apart(self.space, obs)
        image = self._channels_first(leaves.pop(self.place)).float()
        features: Tensor = self.layers(self.convolutions(image / 255.0 if self.bytes else image))
        if self.encoder is None:
            return features
        beside = self.encoder(tuple(leaves))
        return torch.cat([features, beside if self.normalizer is None else self.normalizer(beside)], -1)

    def _channels_first(self, images: Tensor) -> Tensor:
        if self.layout == "plain":
            return images.unsqueeze(1)
        return images.permute(0, 3, 1, 2) if self.layout == "channels last" else images

    def learn_scale(self, obs: Any) -> None:
        """Take observations with n rows into the running mean and variance."""
        if self.normalizer is not None and self.encoder is not None:
            leaves = take_apart(self.space, obs)
            leaves.pop(self.place)
            self.normalizer.learn(self.encoder(tuple(leaves)))


def _image_of(space: Space[Any], leaves: list[Space[Any]], kind: str) -> int:
    """Which leaf is the image."""
    if leaves_of(space) is None:
        Encoder(space)  # it says why not
    images = [i for i, leaf in enumerate(leaves) if isinstance(leaf, spaces.Box) and len(leaf.shape) in (2, 3)]
    if len(images) != 1:
        raise ConfigError(
            f"body={kind!r} needs one image (a Box of two or three dimensions), but the observation space {space} has "
            f"{len(images)}. body='mlp' takes any observation as a row of numbers."
        )
    return images[0]


def _layout_of(shape: Sequence[int]) -> Layout:
    """How an image lies. From its space, once: a decision on a tensor would keep the network from being traced."""
    if len(shape) == 2:
        return "plain"
    first, middle, last = shape
    square = (first == middle) != (middle == last)  # height and width are equal; a board may have more planes than rows
    channels_last = first == middle if square else last < first
    return "channels last" if channels_last else "channels first"


def _features_of(convolutions: nn.Module, channels: int, size: Sequence[int], kind: str) -> int:
    """How many numbers the convolutions make of one image."""
    try:
        with torch.no_grad():
            return int(convolutions(torch.zeros(1, channels, *size)).shape[1])
    except RuntimeError as error:
        raise ConfigError(
            f"body={kind!r} cannot take images of {size[0]} x {size[1]}: its kernels are larger than that. "
            "body='deep' takes any size."
        ) from error


def _shallow(channels: int) -> nn.Sequential:
    """The small network of IMPALA."""
    return nn.Sequential(
        convolution(channels, 16, 8, stride=4), nn.ReLU(), convolution(16, 32, 4, stride=2), nn.ReLU(), nn.Flatten()
    )


def _nature(channels: int) -> nn.Sequential:
    """The network of DQN."""
    return nn.Sequential(
        *(convolution(channels, 32, 8, stride=4), nn.ReLU()),
        *(convolution(32, 64, 4, stride=2), nn.ReLU()),
        *(convolution(64, 64, 3), nn.ReLU()),
        nn.Flatten(),
    )


def _deep(channels: int) -> nn.Sequential:
    """The residual network of IMPALA: 15 convolutions in three sections, each of which halves the image."""
    sections: list[nn.Module] = []
    for filters in (16, 32, 32):
        sections += [
            convolution(channels, filters, 3, padding=1),
            nn.MaxPool2d(3, stride=2, padding=1),
            Residual(filters),
            Residual(filters),
        ]
        channels = filters
    return nn.Sequential(*sections, nn.ReLU(), nn.Flatten())


class Residual(nn.Module):
    """Two convolutions whose result is added to what came in.

    Args:
        channels: how many, in and out.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        # No ReLU in place: the first would change what the result is added to. Torch's own weights: small ones let a
        # branch add little at first, where six orthogonal ones in a row would make the signal 15 times as large.
        self.branch = nn.Sequential(
            *(nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1)),
            *(nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1)),
        )

    def forward(self, images: Tensor) -> Tensor:
        """[n, channels, height, width], in and out."""
        added: Tensor = images + self.branch(images)
        return added


_KINDS = {"shallow": _shallow, "deep": _deep, "nature": _nature}
