"""A small table beside the lanes: arrays that only few steps have, found by the number of the step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from clusterenv.learners.replay.disk import Saved
    from clusterenv.spaces import Leaf

    Array = npt.NDArray[Any]


class SideTable:
    """Rows of some leaves by the id of a step. It grows when it must, and uses the places of dropped rows again.

    Args:
        leaves: what a row holds.

    Example:
        >>> from clusterenv.spaces import Leaf
        >>> table = SideTable([Leaf((), np.dtype(np.float32))])
        >>> table.put(np.array([7, 9]), [np.array([0.5, 1.5])])
        >>> table.drop([7])
        >>> table.get(np.array([9]))[0].tolist(), len(table)
        ([1.5], 1)
    """

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self._arrays = [np.zeros((0, *leaf.shape), leaf.dtype) for leaf in leaves]
        self._rows: dict[int, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """The memory of its arrays."""
        return sum(array.nbytes for array in self._arrays)

    def put(self, ids: Array, leaves: Sequence[Array]) -> None:
        """Store a row for each of these; one that has a row already gets another."""
        while len(self._free) < len(ids):
            self._grow()
        for number in ids.tolist():
            if number not in self._rows:
                self._rows[number] = self._free.pop()
        rows = self._find(ids)
        for array, values in zip(self._arrays, leaves, strict=True):
            array[rows] = values

    def get(self, ids: Array) -> list[Array]:
        """The rows of these, [len(ids), ...] for each leaf."""
        rows = self._find(ids)
        return [array[rows] for array in self._arrays]

    def drop(self, ids: Sequence[int]) -> None:
        """Forget the rows of these; who has none is passed over."""
        for number in ids:
            if (row := self._rows.pop(number, None)) is not None:
                self._free.append(row)

    def saved(self) -> dict[str, Array]:
        """All rows, to be saved."""
        ids = np.fromiter(self._rows, np.int64, len(self._rows))
        return {"ids": ids, **{str(number): array for number, array in enumerate(self.get(ids))}}

    def restore(self, saved: Saved, prefix: str) -> None:
        """Take what was saved, and nothing else."""
        self.drop(list(self._rows))
        leaves = [saved.read(f"{prefix}.{number}") for number in range(len(self._arrays))]
        self.put(saved.read(f"{prefix}.ids"), leaves)

    def _find(self, ids: Array) -> Array:
        return np.fromiter((self._rows[number] for number in ids.tolist()), np.int64, len(ids))

    def _grow(self) -> None:
        size = len(self._rows) + len(self._free)
        more = max(8, size // 2)
        self._arrays = [
            np.concatenate([array, np.zeros((more, *array.shape[1:]), array.dtype)]) for array in self._arrays
        ]
        self._free.extend(range(size + more - 1, size - 1, -1))
