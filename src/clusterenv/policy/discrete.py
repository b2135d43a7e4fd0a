"""Switches from logits, and the greedy choice from Q-values with some exploration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from clusterenv.errors import ConfigError
from clusterenv.policy.base import DistributionBase, dtype_of, row_sums, shape_of, whole_number
from clusterenv.policy.categorical import MASKED, choose, indices_of, values_at
from clusterenv.spaces import Leaf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterenv.policy.protocol import Array


@dataclass(frozen=True)
class Bernoulli(DistributionBase):
    """Independent switches, from one logit each. The usual distribution for a MultiBinary space.

    A logit of -1e8 or lower (or -inf) keeps its switch off, one of 1e8 or higher keeps it on.

    Attributes:
        n: how many switches there are.
        shape: the shape of one action, if it is not flat.
        dtype: of the actions, which are 0 and 1.

    Example:
        >>> import numpy as np
        >>> distribution = Bernoulli(2)
        >>> logits = np.array([[0.0, -np.inf]], np.float32)
        >>> distribution.sample(logits, np.array([[0.3, 0.0]], np.float32))
        array([[1, 0]], dtype=int8)
        >>> distribution.entropy(logits).round(3)
        array([0.693], dtype=float32)
    """

    noise: ClassVar[str] = "uniform"
    unit: ClassVar[str] = "nats"

    n: int
    shape: tuple[int, ...] | None = None
    dtype: Any = "int8"

    def __post_init__(self) -> None:
        n = whole_number("n", self.n)
        dtype = dtype_of(self.dtype, "iu", "an integer type, such as int8")
        self._set(n=n, shape=shape_of(self.shape, n, f"n={n}"), dtype=dtype)

    @property
    def size(self) -> int:
        """One logit per switch."""
        return self.n

    @property
    def draws(self) -> int:
        """One random number per switch."""
        return self.n

    @cached_property
    def action(self) -> Leaf:
        """Shape and dtype of one sampled action."""
        return Leaf(self.shape or (), self.dtype)

    def sample(self, params: Array, noise: Array) -> Array:
        """Switches [n, ...], from params [n, P] and uniform noise [n, P]."""
        params = self._params(params)
        return self._shaped((self._noise(params, noise) < _sigmoid(_limited(params))).astype(self.dtype))

    def mode(self, params: Array) -> Array:
        """On where that is the likelier."""
        return self._shaped((self._params(params) > 0).astype(self.dtype))

    def log_prob(self, params: Array, actions: Array) -> Array:
        """The log-probability of these switches, float32."""
        logits = _limited(self._params(params))
        on = self._actions(params, actions) != 0
        return -row_sums(_softplus(np.where(on, -logits, logits))).astype(np.float32)

    def entropy(self, params: Array) -> Array:
        """The entropy in nats, float32."""
        logits = _limited(self._params(params))
        parts = _sigmoid(logits) * _softplus(-logits) + _sigmoid(-logits) * _softplus(logits)
        return row_sums(parts).astype(np.float32)

    def divergence(self, old: Array, new: Array) -> Array:
        """KL(old || new) in nats, float64."""
        before, after = _limited(self._params(old)), _limited(self._params(new))
        on = _sigmoid(before) * (_softplus(-after) - _softplus(-before))
        off = _sigmoid(-before) * (_softplus(after) - _softplus(before))
        # Rounding may leave a KL of nearly nothing just below 0.
        return np.maximum(row_sums(on + off), 0.0)


@dataclass(frozen=True)
class EpsilonGreedy(DistributionBase):
    """The best of n choices by Q-value, or with probability epsilon any of them.

    A Q-value of -1e8 or lower (or -inf) masks its choice, also for exploration; a row in which everything is masked
    counts as one in which nothing is.

    Attributes:
        n: how many choices there are.
        epsilon: the share of actions chosen evenly from all (the best among them), from 0 to 1; or one such number for
            each slot, so that some explore more than others. Rows then belong to slots: params are [..., slots, P],
            and `at` gives the distribution of some slots alone.
        start: the environment's number for choice 0 (`Discrete.start`). Learners always count from 0.
        dtype: what the environment gets.

    Example:
        >>> import numpy as np
        >>> distribution = EpsilonGreedy(2, epsilon=0.1)
        >>> values = np.array([[1.5, 1.0]], np.float32)
        >>> np.exp(distribution.log_prob(values, np.array([0]))).round(3)
        array([0.95], dtype=float32)
        >>> distribution.divergence(values, values[:, ::-1])
        array([1.])
        >>> EpsilonGreedy(2, epsilon=(0.4, 0.1, 0.0)).at([2, 0]).epsilon
        (0.0, 0.4)
    """

    noise: ClassVar[str] = "uniform"
    unit: ClassVar[str] = "share"
    draws: ClassVar[int] = 1
    action: ClassVar[Leaf] = Leaf((), np.dtype(np.int64))

    n: int
    epsilon: float | Sequence[float]
    start: int = 0
    dtype: Any = "int64"

    def __post_init__(self) -> None:
        dtype = dtype_of(self.dtype, "iu", "an integer type, such as int64")
        start = whole_number("start", self.start, least=None)
        self._set(n=whole_number("n", self.n), epsilon=_epsilon_of(self.epsilon), start=start, dtype=dtype)

    @property
    def size(self) -> int:
        """The number of Q-values."""
        return self.n

    @property
    def slots(self) -> int | None:
        """How many slots have an epsilon of their own; None if there is one for all."""
        return len(self.epsilon) if isinstance(self.epsilon, tuple) else None

    def at(self, slots: Sequence[int] | Array) -> EpsilonGreedy:
        """The distribution of rows that belong to these slots, in this order.

        Raises:
            ConfigError: there is no such slot.
        """
        if not isinstance(self.epsilon, tuple):
            return self
        if len(slots) == 0 or not 0 <= min(slots) <= max(slots) < len(self.epsilon):
            raise ConfigError(
                f"slots={list(slots)!r} must be at least one of 0 to {len(self.epsilon) - 1}: there are "
                f"{len(self.epsilon)} epsilons, one for each slot."
            )
        return replace(self, epsilon=tuple(self.epsilon[slot] for slot in slots))

    def sample(self, params: Array, noise: Array) -> Array:
        """Choices [n] counted from 0, from Q-values [n, P] and uniform noise [n, 1]."""
        params = self._params(params)
        return choose(self._probabilities(params), self._noise(params, noise))

    def mode(self, params: Array) -> Array:
        """The greedy choice; the first of several equals."""
        best: Array = self._params(params).argmax(-1)
        return best

    def log_prob(self, params: Array, actions: Array) -> Array:
        """The log-probability of these choices (counted from 0), float32; about -1e8 for what is never chosen."""
        params = self._params(params)
        chosen = indices_of(self._actions(params, actions)[..., 0], self.n, self)
        return _log(values_at(self._probabilities(params), chosen)).astype(np.float32)

    def entropy(self, params: Array) -> Array:
        """The entropy in nats, float32."""
        probabilities = self._probabilities(self._params(params))
        return -row_sums(probabilities * _log(probabilities)).astype(np.float32)

    def divergence(self, old: Array, new: Array) -> Array:
        """1 where the greedy choice differs and 0 where it does not, so that its mean is a share of states."""
        differs: Array = self.mode(old) != self.mode(new)
        return differs.astype(np.float64)

    def to_env(self, actions: Array) -> Array:
        """The actions counted from `start`."""
        return (actions + self.start if self.start else actions).astype(self.dtype, copy=False)

    def _probabilities(self, params: Array) -> Array:
        allowed = ~(params <= MASKED)
        counts = allowed.sum(-1, keepdims=True)
        epsilon = self._epsilons
        if self.slots is not None and (params.ndim < 2 or params.shape[-2] != self.slots):
            raise ConfigError(
                f"params have shape {params.shape}, but there are {self.slots} epsilons, one for each slot. "
                f"Make the axis before the last {self.slots} long, or take `at(slots)` of the slots that these are."
            )
        # With nothing allowed everything is: the row must choose something.
        probabilities = np.where(counts == 0, epsilon / self.n, epsilon / np.maximum(counts, 1) * allowed)
        best = params.argmax(-1)[..., None]
        greedy: Array = np.arange(self.n) == best
        mixed: Array = probabilities + (1 - epsilon) * greedy
        return mixed

    @cached_property
    def _epsilons(self) -> Array:
        """[slots, 1], or a single number."""
        epsilons: Array = np.array(self.epsilon, np.float64)
        return epsilons.reshape(-1, 1) if self.slots else epsilons


def _epsilon_of(epsilon: Any) -> float | tuple[float, ...]:
    """One number, or a tuple of them; ConfigError if one of them is no share."""
    several = isinstance(epsilon, (tuple, list, np.ndarray)) and np.ndim(epsilon) > 0
    try:
        numbers = tuple(float(number) for number in (epsilon if several else (epsilon,)))
    except (TypeError, ValueError):
        numbers = (-1.0,)
    if not numbers:
        raise ConfigError(f"epsilon={epsilon!r} is empty. Give one number for all slots, or one for each.")
    wrong = [place for place, number in enumerate(numbers) if not 0 <= number <= 1]
    if wrong:
        where = f" (slot {wrong[0]})" if several else ""
        raise ConfigError(f"epsilon={epsilon!r}{where} must lie in [0, 1]; 0 is greedy, 1 is random.")
    return numbers if several else numbers[0]


def _limited(params: Array) -> Array:
    """Logits in float64, none so large that its products are infinite."""
    return np.clip(params.astype(np.float64), MASKED, -MASKED)


def _sigmoid(logits: Array) -> Array:
    # By tanh, which reaches its ends exactly: a masked switch has a probability of 0, not of nearly 0.
    return 0.5 + 0.5 * np.tanh(0.5 * logits)


def _softplus(logits: Array) -> Array:
    return np.logaddexp(0.0, logits)


def _log(probabilities: Array) -> Array:
    """The logarithm, with a finite number in place of minus infinity."""
    return np.log(np.where(probabilities > 0, probabilities, 1.0)) + np.where(probabilities > 0, 0.0, MASKED)
