"""A sum tree: numbers that change, and which of them a point of their running sum falls into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


class SumTree:
    """`leaves` numbers, none below 0, all 0 at first.

    A node is always summed anew from its two children, so rounding does not add up over the updates.

    Args:
        leaves: how many.

    Example:
        >>> tree = SumTree(4)
        >>> tree.set(np.array([0, 1, 3]), np.array([3.0, 10.0, 2.0]))
        >>> tree.total, tree.find(np.array([2.9, 3.0, 13.5])).tolist()
        (15.0, [0, 1, 3])
    """

    def __init__(self, leaves: int) -> None:
        self._depth = max(0, leaves - 1).bit_length()
        self._leaves = 1 << self._depth
        self._nodes = np.zeros(2 * self._leaves)  # the children of i are 2 i and 2 i + 1; the root is 1

    @property
    def total(self) -> float:
        """The sum of all."""
        return float(self._nodes[1])

    @property
    def nbytes(self) -> int:
        """The memory of its array."""
        return self._nodes.nbytes

    def __getitem__(self, leaves: Array) -> Array:
        """The numbers of these leaves."""
        values: Array = self._nodes[leaves + self._leaves]
        return values

    @property
    def leaves(self) -> Array:
        """The numbers of all leaves, and as many zeros as make their count a power of two."""
        return self._nodes[self._leaves :]

    def set(self, leaves: Array, values: Array | float) -> None:
        """Change these leaves; of a leaf that comes twice the last value stays."""
        nodes, at = self._nodes, leaves + self._leaves
        nodes[at] = values
        for _ in range(self._depth):
            at = at >> 1
            nodes[at] = nodes[2 * at] + nodes[2 * at + 1]

    def find(self, points: Array) -> Array:
        """For each point in [0, total) the first leaf up to which, itself included, the sum is more than the point.

        Never a leaf that is 0, whatever rounding did to the point, unless all are.
        """
        nodes, at = self._nodes, np.ones(len(points), np.int64)
        for _ in range(self._depth):
            at = 2 * at
            left = nodes[at]
            # A point that rounding has put beyond the sum belongs to the last leaf that is not 0.
            right = (points >= left) & (nodes[at + 1] > 0)
            points = np.where(right, points - left, points)
            at += right
        return at - self._leaves
