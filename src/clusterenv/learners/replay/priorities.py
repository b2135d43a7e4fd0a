"""Which items are drawn how often, and what each draw weighs for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from clusterenv.errors import ConfigError
from clusterenv.learners.replay.sumtree import SumTree

if TYPE_CHECKING:
    import numpy.typing as npt

    from clusterenv.learners.replay.disk import Saved

    Array = npt.NDArray[Any]

Data = TypeVar("Data")

_LEAST = 1e-6  # added to every priority: what has an error of 0 now may have another later


@dataclass(frozen=True)
class Sample(Generic[Data]):
    """What was drawn.

    Attributes:
        ids: [B] int64, to give new priorities to these later.
        weights: [B] float32, the importance of each, at most 1.
        data: the transitions or sequences.
    """

    ids: Array
    weights: Array
    data: Data


class Priorities:
    """Draws places by their priority: P(i) is in proportion to p_i^alpha.

    Args:
        places: how many there are. All are empty at first, and what is empty is never drawn.
        alpha: 0 for all alike, 1 for in proportion.
        beta: how much of the bias is corrected by the weights (1 / (N P(i)))^beta: 0 for none, 1 for all.

    Attributes:
        largest: the largest priority that was ever set, at first 1: for those whose own is not known.

    Example:
        >>> priorities = Priorities(4, alpha=1.0, beta=1.0)
        >>> priorities.set(np.array([0, 2]), np.array([1.0, 3.0]))
        >>> places, chances = priorities.draw(4, np.random.default_rng(0))
        >>> places.tolist(), chances.round(2).tolist()
        ([0, 2, 2, 2], [0.25, 0.75, 0.75, 0.75])
    """

    def __init__(self, places: int, *, alpha: float, beta: float) -> None:
        for name, value in (("alpha", alpha), ("beta", beta)):
            if not 0.0 <= value <= 1.0:
                raise ConfigError(f"{name}={value} of a replay must be from 0 to 1.")
        self._tree, self.alpha, self.beta = SumTree(places), alpha, beta
        self.largest = 1.0

    @staticmethod
    def bytes_of(places: int) -> int:
        """The memory that so many places take: two numbers each, for the next power of two."""
        return 16 << max(0, places - 1).bit_length()

    @property
    def nbytes(self) -> int:
        """The memory of its arrays."""
        return self._tree.nbytes

    def holds(self, places: Array) -> Array:
        """Which of these places are not empty."""
        held: Array = self._tree[places] > 0
        return held

    def set(self, places: Array, priorities: Array) -> None:
        """Give these places a priority; NaN for those whose own is not known."""
        self.largest = max(self.largest, float(np.nanmax(priorities, initial=0.0)))
        known = np.where(np.isnan(priorities), self.largest, priorities)
        self._tree.set(places, (known + _LEAST) ** self.alpha)

    def set_largest(self, places: Array) -> None:
        """Give these places the largest priority so far, since their own is not known."""
        self.set(places, np.full(len(places), np.nan))

    def clear(self, places: Array) -> None:
        """Empty these places."""
        self._tree.set(places, 0.0)

    def saved(self) -> dict[str, Array]:
        """Everything, to be saved."""
        return {"leaves": self._tree.leaves, "largest": np.array([self.largest])}

    def restore(self, saved: Saved, prefix: str) -> None:
        """Take what was saved."""
        leaves = saved.read(f"{prefix}.leaves")
        self._tree.set(np.arange(len(leaves)), leaves)
        self.largest = float(saved.read(f"{prefix}.largest")[0])

    def draw(self, count: int, source: np.random.Generator) -> tuple[Array, Array]:
        """So many places, one from each of `count` equal parts of the sum, and the chance P(i) of each."""
        total = self._tree.total
        places = self._tree.find((np.arange(count) + source.random(count)) * (total / count))
        return places, self._tree[places] / total


def importance(chances: Array, items: int, beta: float) -> Array:
    """The weight of each draw, by the largest in the batch.

    Args:
        chances: [B], P(i) of what was drawn.
        items: N, how many could have been drawn.
        beta: the exponent.

    Example:
        >>> importance(np.array([0.5, 0.25]), items=4, beta=1.0).tolist()
        [0.5, 1.0]
    """
    weights = (items * chances) ** -beta
    normalised: Array = (weights / weights.max()).astype(np.float32)
    return normalised


def refuse_no_count(**named: Any) -> None:
    """Raise if one of these is not a whole number.

    Example:
        >>> refuse_no_count(capacity=100.0)
        Traceback (most recent call last):
        clusterenv.errors.ConfigError: capacity=100.0 of a replay must be a whole number.
    """
    for name, value in named.items():
        if not isinstance(value, (int, np.integer)):
            raise ConfigError(f"{name}={value!r} of a replay must be a whole number.")


def refuse_no_draw(count: int) -> None:
    """Raise if so many cannot be drawn."""
    refuse_no_count(count=count)
    if count < 1:
        raise ConfigError(f"count={count}: at least 1 must be drawn.")


def refuse_bad(ids: Array, priorities: Array) -> None:
    """Raise if there is not one priority for each, or one is not a number, or below 0."""
    if np.shape(ids) != np.shape(priorities):
        raise ConfigError(
            f"ids have the shape {np.shape(ids)}, and priorities {np.shape(priorities)}. Give one priority for each id."
        )
    bad = ~(np.isfinite(priorities) & (priorities >= 0))
    if bad.any():
        at = int(bad.argmax())
        raise ConfigError(
            f"the priority at index {at} is {priorities[at]}, but must be a finite number of at least 0. "
            "Look at the loss: it has probably diverged, or an absolute value is missing."
        )
