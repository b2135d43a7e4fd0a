"""The head's view of the observations: rows of the arena, or the objects themselves where no array can hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gymnasium.vector.utils import concatenate, create_empty_array

from clusterenv import spaces

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt
    from gymnasium import Space

    from clusterenv.transport.arena import Arena
    from clusterenv.worker.report import Report


class Observations:
    """The newest observation of every slot."""

    def __init__(self, space: Space[Any], arena: Arena) -> None:
        self._space = space
        self._arrays = arena.observation
        self._in_arrays = spaces.leaves_of(space) is not None
        self._objects: list[Any] = [None] * arena.spec.num_envs

    def update(self, report: Report) -> None:
        """Take the observations that came beside the arena."""
        for slot, observation in report.observations:
            self._objects[slot] = observation

    def batch(self, *, copy: bool) -> Any:
        """All slots, as `SyncVectorEnv` batches them."""
        if not self._in_arrays:
            return self._concatenated(self._objects)
        arrays = [array.copy() for array in self._arrays] if copy else self._arrays
        return spaces.assemble(self._space, arrays)

    def of(self, slots: npt.NDArray[np.intp]) -> Any:
        """Some slots, in this order. Always a copy."""
        if not self._in_arrays:
            return self._concatenated([self._objects[slot] for slot in slots.tolist()])
        return spaces.assemble(self._space, [array[slots] for array in self._arrays])

    def one(self, slot: int) -> Any:
        """The observation of one slot."""
        if not self._in_arrays:
            return self._objects[slot]
        return spaces.assemble(self._space, [array[slot].copy() for array in self._arrays])

    def blank(self, slots: range) -> None:
        """Set rows to zero that may be half old and half new."""
        for array in self._arrays:
            array[slots.start : slots.stop] = 0

    def _concatenated(self, items: Sequence[Any]) -> Any:
        empty: Any = create_empty_array(self._space, n=len(items))
        return concatenate(self._space, items, empty)
