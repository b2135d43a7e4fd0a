"""One choice, or several at once, from logits.

A logit of -1e8 or lower (or -inf) masks its choice: it is never sampled, has no part in entropy or divergence, and its
log-probability is a very low, finite number, so that no arithmetic on it gives NaN. A row in which everything is masked
counts as one in which nothing is.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from clusterenv.errors import ConfigError
from clusterenv.policy.base import DistributionBase, dtype_of, row_sums, shape_of, whole_number
from clusterenv.spaces import Leaf

if TYPE_CHECKING:
    from clusterenv.policy.protocol import Array

# Logits up to here are masked. Masked ones are all set to the floor, so far below any other that exp gives exactly 0;
# the filling of short rows lies below even that, so that it stays out of a row in which everything is masked.
MASKED = -1e8
_FLOOR = -2e8
_FILLING = -4e8
# The largest float32 below 1. A uniform number that was rounded up to 1 would point behind the last choice.
_ALMOST_ONE = np.float32(1 - 2.0**-24)


class _Softmax(DistributionBase):
    """The arithmetic of one choice or several, on scores [..., choices] that are logits less their largest.

    Actions and their log-probabilities are worked out in float32, which is faster and exact enough (1e-6); entropy and
    divergence in float64.
    """

    noise: ClassVar[str] = "uniform"
    unit: ClassVar[str] = "nats"

    @abc.abstractmethod
    def _scores(self, params: Array, dtype: type[np.floating[Any]] = np.float32) -> Array:
        """Logits less the largest of their row, at most 0; the leading axes are those of `_uniform` and `_indices`."""

    @abc.abstractmethod
    def _uniform(self, noise: Array) -> Array:
        """The noise with an axis of 1 beside the choices."""

    @abc.abstractmethod
    def _indices(self, params: Array, actions: Array) -> Array:
        """The actions as one index per choice made."""

    @abc.abstractmethod
    def _as_actions(self, indices: Array) -> Array:
        """Undo `_indices`."""

    @abc.abstractmethod
    def _join(self, parts: Array) -> Array:
        """One number per action, from one per choice made."""

    def sample(self, params: Array, noise: Array) -> Array:
        """Actions counted from 0, from params [n, P] and uniform noise [n, draws]."""
        params = self._params(params)
        return self._as_actions(choose(np.exp(self._scores(params)), self._uniform(self._noise(params, noise))))

    def mode(self, params: Array) -> Array:
        """The likeliest actions; the first of several equals."""
        return self._as_actions(self._scores(self._params(params)).argmax(-1))

    def log_prob(self, params: Array, actions: Array) -> Array:
        """The log-probability of these actions (counted from 0), float32."""
        params = self._params(params)
        chosen, scores = self._indices(params, actions), self._scores(params)
        return self._join(values_at(scores, chosen) - np.log(row_sums(np.exp(scores))))

    def entropy(self, params: Array) -> Array:
        """The entropy in nats, float32."""
        log_probs = _log_softmax(self._scores(self._params(params), np.float64))
        return -self._join(row_sums(np.exp(log_probs) * log_probs)).astype(np.float32)

    def divergence(self, old: Array, new: Array) -> Array:
        """KL(old || new) in nats over what `old` allows, float64. What only `new` masks makes it very large."""
        before = _log_softmax(self._scores(self._params(old), np.float64))
        after = _log_softmax(self._scores(self._params(new), np.float64))
        # Rounding may leave a KL of nearly nothing just below 0.
        return np.maximum(self._join(row_sums(np.exp(before) * (before - after))), 0.0)


@dataclass(frozen=True)
class Categorical(_Softmax):
    """One choice of n, from n logits. The usual distribution for a Discrete space.

    Attributes:
        n: how many choices there are.
        start: the environment's number for choice 0 (`Discrete.start`). Learners always count from 0.
        dtype: what the environment gets.

    Example:
        >>> import numpy as np
        >>> distribution = Categorical(3, start=1)
        >>> logits = np.array([[0.0, 2.0, -np.inf]], np.float32)
        >>> actions = distribution.sample(logits, np.array([[0.5]], np.float32))
        >>> actions, distribution.to_env(actions), distribution.log_prob(logits, actions).round(3)
        (array([1]), array([2]), array([-0.127], dtype=float32))
    """

    draws: ClassVar[int] = 1
    action: ClassVar[Leaf] = Leaf((), np.dtype(np.int64))

    n: int
    start: int = 0
    dtype: Any = "int64"

    def __post_init__(self) -> None:
        dtype = dtype_of(self.dtype, "iu", "an integer type, such as int64")
        self._set(n=whole_number("n", self.n), start=whole_number("start", self.start, least=None), dtype=dtype)

    @property
    def size(self) -> int:
        """The number of logits."""
        return self.n

    def to_env(self, actions: Array) -> Array:
        """The actions counted from `start`."""
        return (actions + self.start if self.start else actions).astype(self.dtype, copy=False)

    def _scores(self, params: Array, dtype: type[np.floating[Any]] = np.float32) -> Array:
        return _shifted(_floored(params, dtype))

    def _uniform(self, noise: Array) -> Array:
        return noise

    def _indices(self, params: Array, actions: Array) -> Array:
        return indices_of(self._actions(params, actions)[..., 0], self.n, self)

    def _as_actions(self, indices: Array) -> Array:
        return indices

    def _join(self, parts: Array) -> Array:
        return parts


@dataclass(frozen=True)
class MultiCategorical(_Softmax):
    """Several independent choices, from their logits one after the other. The usual one for a MultiDiscrete space.

    Attributes:
        nvec: how many choices there are in each place.
        start: the environment's number for choice 0, one for all places or one for each.
        shape: the shape of one action, if it is not flat.
        dtype: what the environment gets.

    Example:
        >>> import numpy as np
        >>> distribution = MultiCategorical((2, 3))
        >>> logits = np.zeros((1, 5), np.float32)
        >>> distribution.sample(logits, np.array([[0.6, 0.9]], np.float32))
        array([[1, 2]])
        >>> distribution.log_prob(logits, np.array([[1, 2]])).round(3)
        array([-1.792], dtype=float32)
    """

    nvec: tuple[int, ...]
    start: int | tuple[int, ...] = 0
    shape: tuple[int, ...] | None = None
    dtype: Any = "int64"

    def __post_init__(self) -> None:
        counts = np.asarray(self.nvec).reshape(-1).tolist()
        if not counts:
            raise ConfigError(f"nvec={self.nvec!r} is empty: an action needs at least one choice, such as nvec=(3,).")
        starts = np.asarray(self.start).reshape(-1).tolist()
        if len(starts) not in (1, len(counts)):
            raise ConfigError(f"start={self.start!r} must be one whole number, or {len(counts)}, as many as nvec has.")
        self._set(
            nvec=tuple(whole_number("nvec", count) for count in counts),
            start=tuple(whole_number("start", start, least=None) for start in starts) * (len(counts) // len(starts)),
            shape=shape_of(self.shape, len(counts), "nvec"),
            dtype=dtype_of(self.dtype, "iu", "an integer type, such as int64"),
        )

    @cached_property
    def size(self) -> int:
        """The number of logits."""
        return sum(self.nvec)

    @property
    def draws(self) -> int:
        """One random number per choice."""
        return len(self.nvec)

    @cached_property
    def action(self) -> Leaf:
        """Shape and dtype of one sampled action."""
        return Leaf(self.shape or (), np.dtype(np.int64))

    def to_env(self, actions: Array) -> Array:
        """The actions counted from `start`."""
        return (actions if self._starts is None else actions + self._starts).astype(self.dtype, copy=False)

    @cached_property
    def _starts(self) -> Array | None:
        starts = np.array(self.start, np.int64)
        return starts.reshape(self.action.shape) if starts.any() else None

    @cached_property
    def _counts(self) -> Array:
        return np.array(self.nvec)

    @cached_property
    def _columns(self) -> Array | None:
        """Where the logits lie in rows that are all as wide as the widest; None if they are."""
        if min(self.nvec) == max(self.nvec):
            return None
        return np.flatnonzero(np.arange(max(self.nvec)) < self._counts[:, None])

    def _scores(self, params: Array, dtype: type[np.floating[Any]] = np.float32) -> Array:
        logits = _floored(params, dtype)
        if self._columns is not None:
            filled = np.full((*params.shape[:-1], self.draws * max(self.nvec)), _FILLING, dtype)
            filled[..., self._columns] = logits
            logits = filled
        return _shifted(logits.reshape(*params.shape[:-1], self.draws, -1))

    def _uniform(self, noise: Array) -> Array:
        return noise[..., None]

    def _indices(self, params: Array, actions: Array) -> Array:
        return indices_of(self._actions(params, actions), self._counts, self)

    def _as_actions(self, indices: Array) -> Array:
        return self._shaped(indices)

    def _join(self, parts: Array) -> Array:
        return row_sums(parts)


def choose(weights: Array, uniform: Array) -> Array:
    """One index per row in proportion to these weights, which need not add up to 1.

    The index is the first whose running sum is above u * total. The running sum has just grown there, so a weight of 0
    is never chosen; the last running sum is the total, above u * total as u < 1, so there is always one to choose.
    """
    sums = np.add.accumulate(weights, -1)
    chosen: Array = (sums > np.minimum(uniform, _ALMOST_ONE) * sums[..., -1:]).argmax(-1)
    return chosen


def values_at(rows: Array, indices: Array) -> Array:
    """One number from each row."""
    # What take_along_axis does, in a tenth of its time for small arrays.
    first = np.arange(0, rows.size, rows.shape[-1]).reshape(indices.shape)
    return rows.reshape(-1).take(first + indices)


def indices_of(actions: Array, counts: int | Array, distribution: object) -> Array:
    """The actions as indices, if all lie in [0, count)."""
    indices = actions.astype(np.int64, copy=False)
    wrong = (indices < 0) | (indices >= counts)
    if wrong.any():
        raise ConfigError(
            f"the actions hold a {indices[wrong][0]}, which {distribution!r} does not have. "
            "Pass actions as `sample` gave them, counted from 0, not what `to_env` made of them."
        )
    return indices


def _floored(params: Array, dtype: type[np.floating[Any]]) -> Array:
    """A copy of the logits with everything masked at the floor."""
    logits = params.astype(dtype)
    np.putmask(logits, logits <= MASKED, _FLOOR)
    return logits


def _shifted(logits: Array) -> Array:
    logits -= np.maximum.reduce(logits, -1, keepdims=True)
    return logits


def _log_softmax(scores: Array) -> Array:
    scores -= np.log(np.exp(scores).sum(-1, keepdims=True))
    return scores
