"""A sum tree: numbers that change, and which of them a point of their running sum falls into."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

# Children of a node. Many, because a level costs a handful of NumPy calls, whatever its width.
_WIDTH = 16


class SumTree:
    """`leaves` numbers, none below 0, all 0 at first.

    A node is always summed anew from its children, so rounding does not add up over the updates.

    Args:
        leaves: how many.

    Example:
        >>> tree = SumTree(4)
        >>> tree.set(np.array([0, 1, 3]), np.array([3.0, 10.0, 2.0]))
        >>> tree.total, tree.find(np.array([2.9, 3.0, 13.5])).tolist()
        (15.0, [0, 1, 3])
    """

    def __init__(self, leaves: int) -> None:
        self._levels: list[Array] = []  # leaves first
        nodes = leaves
        while not self._levels or nodes > 1:
            self._levels.append(np.zeros((-(-nodes // _WIDTH), _WIDTH)))
            nodes = len(self._levels[-1])
        self._flat = self._levels[0].reshape(-1)

    @property
    def total(self) -> float:
        """The sum of all."""
        return float(self._levels[-1].cumsum()[-1])

    @property
    def nbytes(self) -> int:
        """The memory of its arrays."""
        return sum(level.nbytes for level in self._levels)

    def __getitem__(self, leaves: Array) -> Array:
        """The numbers of these leaves."""
        values: Array = self._flat[leaves]
        return values

    def set(self, leaves: Array, values: Array | float) -> None:
        """Change these leaves; of a leaf that comes twice the last value stays."""
        self._flat[leaves] = values
        for lower, upper in itertools.pairwise(self._levels):
            leaves = leaves // _WIDTH
            upper.reshape(-1)[leaves] = lower[leaves].sum(axis=1)

    def find(self, points: Array) -> Array:
        """For each point in [0, total) the first leaf up to which, itself included, the sum is more than the point.

        Never a leaf that is 0, whatever rounding did to the point, unless all are.
        """
        nodes, rows = np.zeros(len(points), np.int64), np.arange(len(points))
        for level in reversed(self._levels):
            sums = level[nodes].cumsum(axis=1)  # [points, _WIDTH]
            # The second number is the last child that is not 0: a point beyond the sum belongs there.
            child = np.minimum((sums <= points[:, None]).sum(axis=1), (sums < sums[:, -1:]).sum(axis=1))
            points = points - np.where(child > 0, sums[rows, child - 1], 0.0)
            nodes = nodes * _WIDTH + child
        return nodes
