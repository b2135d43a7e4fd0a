"""Actions that are real numbers: a Gaussian, a Gaussian squashed into bounds, and none at all but added noise.

All sums in float64, so that a log-probability comes out the same with its action and later for a whole batch; actions
are float32. A log-probability is always that of the action after it was rounded to float32, which is all that a
learner will ever see of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from clusterenv.errors import ConfigError
from clusterenv.policy.base import row_sums, shape_of, whole_number
from clusterenv.policy.box import BoxDistribution

if TYPE_CHECKING:
    import numpy.typing as npt

    from clusterenv.policy.protocol import Array

_LOG_2 = math.log(2)
_LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class DiagGaussian(BoxDistribution):
    """A normal distribution per dimension. The usual distribution for a Box space.

    The parameters are the means, then the logarithms of the standard deviations. Learners see the actions as they were
    sampled; the environment gets them clipped to the bounds.

    Attributes:
        dim: how many dimensions an action has.
        low: the lower bound, one number or one per dimension; None if there is none.
        high: the upper bound, likewise.
        shape: the shape of one action, if it is not flat.
        dtype: what the environment gets.

    Example:
        >>> import numpy as np
        >>> distribution = DiagGaussian(1, low=-1, high=1)
        >>> params = np.array([[0.9, np.log(0.5)]], np.float32)
        >>> actions = distribution.sample(params, np.array([[1.0]], np.float32))
        >>> actions, distribution.to_env(actions)
        (array([[1.4]], dtype=float32), array([[1.]], dtype=float32))
    """

    unit: ClassVar[str] = "nats"

    dim: int
    low: npt.ArrayLike | None = None
    high: npt.ArrayLike | None = None
    shape: Any = None
    dtype: Any = "float32"

    def __post_init__(self) -> None:
        self._set(dim=whole_number("dim", self.dim))
        self._settle_bounds(shape_of(self.shape, self.dim, f"dim={self.dim}"))

    @property
    def size(self) -> int:
        """A mean and a log_std per dimension."""
        return 2 * self.dims

    def sample(self, params: Array, noise: Array) -> Array:
        """Actions [n, ...], not clipped, from params [n, P] and normal noise [n, P / 2]."""
        params = self._params(params)
        return self._shaped(_drawn(params, self._noise(params, noise)).astype(np.float32, copy=False))

    def mode(self, params: Array) -> Array:
        """The means."""
        return self._shaped(_halves(self._params(params))[0].astype(np.float32))

    def log_prob(self, params: Array, actions: Array) -> Array:
        """The log-density of these actions (not clipped), float32."""
        params = self._params(params)
        return row_sums(_log_density(params, self._actions(params, actions))).astype(np.float32)

    def entropy(self, params: Array) -> Array:
        """The entropy in nats, float32."""
        return _entropy(self._params(params)).astype(np.float32)

    def divergence(self, old: Array, new: Array) -> Array:
        """KL(old || new) in nats, float64."""
        return _divergence(self._params(old), self._params(new))


@dataclass(frozen=True)
class TanhGaussian(BoxDistribution):
    """A normal distribution squashed into bounds: middle + half * tanh(x), x normal.

    The parameters are the means and the logarithms of the standard deviations of x. The log-density is that of the
    squashed action, with the scale to the bounds.

    Only the action is kept, so x is recovered from it: half the logarithm of (action - low) / (high - action). An
    action may have been rounded onto its bound, where x would be infinite; it is taken to lie half a step of float32
    inside (x of about 8.7 for bounds of -1 and 1). The log-density is therefore finite everywhere, and the same for an
    action just sampled and one read back.

    Attributes:
        low: the lower bound, one number or one per dimension.
        high: the upper bound, likewise.
        shape: the shape of one action; that of the bounds if it is not given.
        dtype: what the environment gets.

    Example:
        >>> import numpy as np
        >>> distribution = TanhGaussian(low=0, high=4)
        >>> params = np.array([[0.0, 0.0]], np.float32)
        >>> distribution.sample(params, np.array([[20.0]], np.float32)), distribution.mode(params)
        (array([[4.]], dtype=float32), array([[2.]], dtype=float32))
        >>> distribution.log_prob(params, np.array([[2.0]], np.float32)).round(3)
        array([-1.612], dtype=float32)
    """

    unit: ClassVar[str] = "nats"

    low: npt.ArrayLike
    high: npt.ArrayLike
    shape: Any = None
    dtype: Any = "float32"

    def __post_init__(self) -> None:
        self._settle_finite_bounds()

    @property
    def size(self) -> int:
        """A mean and a log_std per dimension."""
        return 2 * self.dims

    def sample(self, params: Array, noise: Array) -> Array:
        """Actions [n, ...] within the bounds, from params [n, P] and normal noise [n, P / 2]."""
        params = self._params(params)
        return self._shaped(self.squash(_drawn(params, self._noise(params, noise))))

    def mode(self, params: Array) -> Array:
        """The squashed means."""
        return self._shaped(self.squash(_halves(self._params(params))[0]))

    def squash(self, values: Array) -> Array:
        """The actions, middle + half * tanh(values), float32 and flat: [..., dims]."""
        return self._clipped(self._middle + self._half * np.tanh(values.astype(np.float64)))

    def unsquash(self, flat_actions: Array) -> Array:
        """What `squash` was given (see the class for actions on their bounds), float64."""
        above, below = self._log_distances(flat_actions)
        values: Array = 0.5 * (above - below)
        return values

    def log_prob(self, params: Array, actions: Array) -> Array:
        """The log-density of these actions, float32."""
        params = self._params(params)
        above, below = self._log_distances(self._actions(params, actions))
        # The slope half * (1 - tanh(x)^2) is also (action - low) * (high - action) / half.
        log_slope = above + below - self._log_half
        return row_sums(_log_density(params, 0.5 * (above - below)) - log_slope).astype(np.float32)

    def entropy(self, params: Array) -> Array:
        """The entropy in nats, float32: that of x in closed form, and the mean of log |da/dx| by a sum over x.

        There is no closed form for the second. The sum (a trapezoid rule over 7 standard deviations to each side) is
        right to 1e-4 for a log_std of up to 2.
        """
        mean, log_std = _halves(self._params(params).astype(np.float64))
        std, slope = np.exp(log_std), np.zeros(mean.shape)
        points = np.linspace(-7, 7, 113)
        weights = np.exp(-(points**2) / 2)
        for point, weight in zip(points, weights / weights.sum(), strict=True):
            slope += weight * self._log_slope(mean + std * point)
        return (_entropy(params) + row_sums(slope)).astype(np.float32)

    def divergence(self, old: Array, new: Array) -> Array:
        """KL(old || new) in nats, float64. Squashing both alike does not change it."""
        return _divergence(self._params(old), self._params(new))

    def _log_distances(self, flat_actions: Array) -> tuple[Array, Array]:
        """The logarithms of action - low and of high - action: these lose no digits, where 1 - tanh(x) would."""
        flat_actions = flat_actions.astype(np.float64)
        above = np.maximum(flat_actions - self._low, self._low_step)
        below = np.maximum(self._high - flat_actions, self._high_step)
        return np.log(above), np.log(below)

    def _log_slope(self, values: Array) -> Array:
        """The logarithm of the slope of `squash`; half * (1 - tanh^2) would be 0 long before its logarithm ends."""
        slope: Array = self._log_half + 2 * (_LOG_2 - values - np.logaddexp(0.0, -2 * values))
        return slope

    @cached_property
    def _log_half(self) -> Array:
        return np.log(self._half)

    @cached_property
    def _low_step(self) -> Array:
        return self._step(self._low)

    @cached_property
    def _high_step(self) -> Array:
        return self._step(self._high)

    def _step(self, bound: Array) -> Array:
        """The least distance to a bound that an action can show: in float32, or (at a bound of 0) in tanh."""
        return np.maximum(np.spacing(np.abs(bound.astype(np.float32))).astype(np.float64) / 2, self._half * 2.0**-53)


@dataclass(frozen=True)
class Deterministic(BoxDistribution):
    """The parameters are the action; exploration adds normal noise to it, and the sum is clipped to the bounds.

    Attributes:
        low: the lower bound, one number or one per dimension.
        high: the upper bound, likewise.
        noise_std: the standard deviation of the noise in halves of the range, so that 0.1 means the same for every
            dimension; 0 for none.
        shape: the shape of one action; that of the bounds if it is not given.
        dtype: what the environment gets.

    Example:
        >>> import numpy as np
        >>> distribution = Deterministic(low=0, high=2, noise_std=0.5)
        >>> distribution.sample(np.array([[1.0]], np.float32), np.array([[-1.0]], np.float32))
        array([[0.5]], dtype=float32)
        >>> distribution.divergence(np.array([[0.0]]), np.array([[1.0]]))
        array([0.5])
    """

    unit: ClassVar[str] = "distance"

    low: npt.ArrayLike
    high: npt.ArrayLike
    noise_std: float = 0.0
    shape: Any = None
    dtype: Any = "float32"

    def __post_init__(self) -> None:
        self._settle_finite_bounds()
        try:
            noise_std = float(self.noise_std)
        except (TypeError, ValueError):
            noise_std = -1.0
        if not 0 <= noise_std < math.inf:
            raise ConfigError(f"noise_std={self.noise_std!r} must be a finite number of at least 0.")
        self._set(noise_std=noise_std)

    @property
    def size(self) -> int:
        """One number per dimension."""
        return self.dims

    def sample(self, params: Array, noise: Array) -> Array:
        """Actions [n, ...] within the bounds, from params [n, P] and normal noise [n, P]."""
        params = self._params(params)
        return self._shaped(self._clipped(params + self._std * self._noise(params, noise)))

    def mode(self, params: Array) -> Array:
        """The parameters, clipped to the bounds."""
        return self._shaped(self._clipped(self._params(params)))

    def log_prob(self, params: Array, actions: Array) -> Array:
        """The log-density of the noise, as if nothing were clipped, float32; 0 without noise."""
        params = self._params(params)
        flat = self._actions(params, actions)
        if self.noise_std == 0:
            return np.zeros(params.shape[:-1], np.float32)
        parts = -(((flat - params.astype(np.float64)) / self._std) ** 2) / 2 - np.log(self._std) - _LOG_2PI / 2
        return row_sums(parts).astype(np.float32)

    def entropy(self, params: Array) -> Array:
        """The entropy of the noise in nats, as if nothing were clipped, float32; 0 without noise."""
        entropy = 0.0 if self.noise_std == 0 else (np.log(self._std) + 0.5 + _LOG_2PI / 2).sum()
        return np.full(self._params(params).shape[:-1], entropy, np.float32)

    def divergence(self, old: Array, new: Array) -> Array:
        """The distance of the clipped actions, float64: 0 for equal ones, 1 from corner to opposite corner."""
        before, after = (np.clip(self._params(params), self._low, self._high) for params in (old, new))
        distance: Array = np.sqrt((((before - after) / (2 * self._half)) ** 2).mean(-1))
        return distance

    @cached_property
    def _std(self) -> Array:
        return self.noise_std * self._half


def _halves(params: Array) -> tuple[Array, Array]:
    """Means and log_stds."""
    dims = params.shape[-1] // 2
    return params[..., :dims], params[..., dims:]


def _drawn(params: Array, noise: Array) -> Array:
    mean, log_std = _halves(params)
    drawn: Array = mean + np.exp(log_std) * noise
    return drawn


def _log_density(params: Array, values: Array) -> Array:
    """The normal log-density in each dimension, float64."""
    mean, log_std = _halves(params.astype(np.float64))
    density: Array = -0.5 * ((values - mean) * np.exp(-log_std)) ** 2 - log_std - _LOG_2PI / 2
    return density


def _entropy(params: Array) -> Array:
    log_std = _halves(params.astype(np.float64))[1]
    return row_sums(log_std + 0.5 + _LOG_2PI / 2)


def _divergence(old: Array, new: Array) -> Array:
    """KL of two diagonal Gaussians; each term is at least 0, and exactly 0 for equal parameters."""
    (mean, log_std), (new_mean, new_log_std) = _halves(old.astype(np.float64)), _halves(new.astype(np.float64))
    log_ratio = 2 * (log_std - new_log_std)
    shift = (mean - new_mean) * np.exp(-new_log_std)
    # Rounding may leave a KL of nearly nothing just below 0.
    return np.maximum(0.5 * row_sums(np.expm1(log_ratio) - log_ratio + shift**2), 0.0)
