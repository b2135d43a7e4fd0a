"""The values that the policy gave while it acted, beside the steps: first priorities are made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.errors import ConfigError

if TYPE_CHECKING:
    import numpy.typing as npt

    from clusterenv.env.batch import Batch
    from clusterenv.learners.replay.disk import Saved
    from clusterenv.learners.replay.lanes import Lanes

    Array = npt.NDArray[Any]


class ActingValues:
    """Two values of every step: of the action that was taken, and of the best one; NaN where nobody told.

    Args:
        lanes: where the steps lie.
    """

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._taken, self._best = np.full((2, lanes.places), np.nan, np.float32)

    @staticmethod
    def bytes_of(steps: int) -> int:
        """The memory that the values of so many steps take."""
        return 8 * steps

    @property
    def nbytes(self) -> int:
        """The memory of its arrays."""
        return self._taken.nbytes + self._best.nbytes

    def write(self, batch: Batch, columns: Array, start: Array, taken: Array | None, best: Array | None) -> None:
        """Keep the values of the steps of a batch. Of what follows them nothing is known yet.

        Args:
            batch: the fragments.
            columns: [n], which of them.
            start: [n], the first step of each in its lane.
            taken: [T, N], or None if nobody told.
            best: the same.
        """
        where = self._lanes.place(batch.slot[columns], start + np.arange(batch.T + 1)[:, None])
        for column, values in ((self._taken, taken), (self._best, best)):
            column[where[:-1]] = np.nan if values is None else values[:, columns]
            column[where[-1]] = np.nan

    def taken(self, slot: Array, k: Array) -> Array:
        """The values of the actions that were taken in these steps."""
        values: Array = self._taken[self._lanes.place(slot, k)]
        return values

    def best(self, slot: Array, k: Array) -> Array:
        """The largest values of an action before these steps."""
        values: Array = self._best[self._lanes.place(slot, k)]
        return values

    def saved(self) -> dict[str, Array]:
        """Everything, to be saved."""
        return {"taken": self._lanes.used(self._taken), "best": self._lanes.used(self._best)}

    def restore(self, saved: Saved, prefix: str) -> None:
        """Take what was saved, after the lanes have."""
        self._taken[:] = self._best[:] = np.nan
        saved.read_into(f"{prefix}.taken", self._lanes.used(self._taken))
        saved.read_into(f"{prefix}.best", self._lanes.used(self._best))


def refuse_bad_values(name: str, values: Array | None, shape: tuple[int, ...], each: str) -> None:
    """Raise if there is not a finite value for each of what a batch has.

    Example:
        >>> refuse_bad_values("taken", np.zeros((5, 2)), (5, 3), "step")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        clusterenv.errors.ConfigError: taken has the shape (5, 2), but must have (5, 3): one value for each step ...
    """
    if values is None:
        return
    if np.shape(values) != shape:
        raise ConfigError(
            f"{name} has the shape {np.shape(values)}, but must have {shape}: one value for each {each} of the batch."
        )
    if not np.isfinite(values).all():
        raise ConfigError(f"{name} is not finite everywhere, so it makes no priority. Look at the policy's values.")


def refuse_half(taken: Array | None, best: Array | None) -> None:
    """Raise if only one of the two is told."""
    if (taken is None) != (best is None):
        raise ConfigError("taken and best make a first priority together: give both of them, or none.")
