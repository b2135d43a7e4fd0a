"""What the distributions over a Box share: its bounds, its shape and its dtype."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from clusterenv.errors import ConfigError
from clusterenv.policy.base import DistributionBase, dtype_of, shape_of
from clusterenv.spaces import Leaf

if TYPE_CHECKING:
    from clusterenv.policy.protocol import Array


class BoxDistribution(DistributionBase):
    """Actions of real numbers that the environment gets within bounds.

    The subclasses are frozen dataclasses with these four fields. Params and noise are flat, [n, numbers]; actions have
    the shape of the Box.
    """

    noise: ClassVar[str] = "normal"
    low: Any
    high: Any
    shape: Any
    dtype: Any

    @cached_property
    def dims(self) -> int:
        """How many numbers an action has."""
        return math.prod(self.shape)

    @property
    def draws(self) -> int:
        """One random number per dimension."""
        return self.dims

    @cached_property
    def action(self) -> Leaf:
        """Shape and dtype of one sampled action."""
        return Leaf(self.shape, np.dtype(np.float32))

    def to_env(self, actions: Array) -> Array:
        """The actions clipped to the bounds, in the dtype of the space."""
        actions = actions.astype(self.dtype, copy=False)
        low, high = self._env_bounds
        if low is not None:
            actions = np.maximum(actions, low)
        return actions if high is None else np.minimum(actions, high)

    @cached_property
    def _env_bounds(self) -> tuple[Array | None, Array | None]:
        low, high = (
            None if bound is None else np.array(bound, self.dtype).reshape(self.shape)
            for bound in (self.low, self.high)
        )
        return low, high

    # The following are for bounds that are finite.

    @cached_property
    def _low(self) -> Array:
        return np.array(self.low, np.float64)

    @cached_property
    def _high(self) -> Array:
        return np.array(self.high, np.float64)

    @cached_property
    def _middle(self) -> Array:
        return self._low + self._half

    @cached_property
    def _half(self) -> Array:
        return self._high / 2 - self._low / 2

    def _clipped(self, flat: Array) -> Array:
        """Flat actions within the bounds, float32."""
        # Rounded last: a bound that float32 does not have is met as nearly as it can be; to_env sees to the rest.
        return np.minimum(np.maximum(flat, self._low), self._high).astype(np.float32)

    # Checks, for __post_init__.

    def _settle_bounds(self, shape: tuple[int, ...]) -> None:
        """Check the bounds and the dtype, and keep them in their plain form; a bound that is nowhere finite is None."""
        low = _bound("low", -math.inf if self.low is None else self.low, shape)
        high = _bound("high", math.inf if self.high is None else self.high, shape)
        wrong = ~(low < high)
        if wrong.any():
            place = int(wrong.argmax())
            raise ConfigError(
                f"low={low[place]}, high={high[place]} (dimension {place}): low must be below high. "
                "Swap them, or leave the dimension out of the action space if its value is fixed."
            )
        self._set(
            low=None if (low == -math.inf).all() else tuple(low.tolist()),
            high=None if (high == math.inf).all() else tuple(high.tolist()),
            shape=shape,
            dtype=dtype_of(self.dtype, "f", "a float type, such as float32"),
        )

    def _settle_finite_bounds(self) -> None:
        """The same for bounds that must be there; the shape is theirs if it is not given."""
        low, high = self.low, self.high
        try:
            shape = np.broadcast_shapes(np.shape(low), np.shape(high)) or (1,)
        except ValueError:
            raise ConfigError(f"low={low!r} and high={high!r} must have the same shape.") from None
        if self.shape is not None:
            shape = shape_of(self.shape, math.prod(self.shape), "shape")
        self._settle_bounds(shape)
        if self.low is None or self.high is None or not np.isfinite([self.low, self.high]).all():
            raise ConfigError(
                f"low={low!r}, high={high!r}: {type(self).__name__} needs finite bounds in every dimension. "
                "Bound the action space (gymnasium.wrappers.RescaleAction), or use DiagGaussian."
            )
        # Sampled actions are float32. Bounds a hair apart around a large number would all be one action there.
        if not (self._low.astype(np.float32) < self._high.astype(np.float32)).all():
            raise ConfigError(f"low={low!r} and high={high!r} are the same in float32. Rescale the action space.")


def _bound(name: str, bound: Any, shape: tuple[int, ...]) -> Array:
    """A bound as a flat float64 array, one number per dimension."""
    try:
        given = np.asarray(bound, np.float64)
        full: Array = (given if given.size == math.prod(shape) else np.broadcast_to(given, shape)).reshape(-1)
    except (TypeError, ValueError):
        raise ConfigError(f"{name}={bound!r} must be one number, or one per dimension of shape {shape}.") from None
    if np.isnan(full).any():
        raise ConfigError(f"{name}={bound!r} must hold no NaN. Use None or an infinity where there is no bound.")
    return full
