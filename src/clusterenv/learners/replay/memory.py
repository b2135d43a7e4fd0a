"""What memories share: drawing, new priorities, saving and loading. What an item is, each says for itself."""

from __future__ import annotations

import abc
import contextlib
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np

from clusterenv.errors import ConfigError
from clusterenv.learners.replay import disk
from clusterenv.learners.replay.priorities import Sample, importance, refuse_bad, refuse_no_draw

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from clusterenv.learners.replay.acting_values import ActingValues
    from clusterenv.learners.replay.disk import Saved
    from clusterenv.learners.replay.lanes import Lanes
    from clusterenv.learners.replay.priorities import Priorities

    Array = npt.NDArray[Any]

Data = TypeVar("Data")


class Replay(abc.ABC, Generic[Data]):
    """The last steps of every slot, drawn as items of one kind. An item has the number of its first step.

    Args:
        lanes: where the steps lie.
        priorities: by which items are drawn, of the places of the lanes; None draws all alike.
        acting_values: of the policy that played the steps; None if nobody asks.
        prioritized: whether new priorities count.
        seed: of the drawing.
        about: what else a memory must have in common with another to take over what that saved, such as what became of
            rewards before they came here; anything that JSON holds.

    Attributes:
        kind: what an item is called.
    """

    kind: ClassVar[str]

    def __init__(
        self,
        lanes: Lanes,
        priorities: Priorities | None,
        acting_values: ActingValues | None,
        *,
        prioritized: bool,
        seed: int,
        about: Mapping[str, Any] | None,
    ) -> None:
        self._lanes, self._priorities, self._acting_values = lanes, priorities, acting_values
        self._prioritized, self._about = prioritized, dict(about or {})
        self._random = np.random.default_rng(seed)
        self._is_whole = True

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many items can be drawn."""

    @property
    def nbytes(self) -> int:
        """The memory of its arrays."""
        return sum(part.nbytes for part in self._parts.values())

    def sample(self, count: int) -> Sample[Data]:
        """Draw items, each independent of whether it was drawn before.

        Raises:
            ConfigError: `count` is less than 1.
            LookupError: none is complete.
        """
        refuse_no_draw(count)
        if not len(self):
            raise LookupError(f"no {self.kind} is complete, so none can be drawn. Add batches first.")
        slot, k, weights = self._draw(count)
        return Sample(self._lanes.ids(slot, k), weights, self._cut(slot, k))

    def update(self, ids: Array, priorities: Array) -> None:
        """Give new priorities to what was drawn. What is there no more is passed over; the last of several wins."""
        priorities = np.asarray(priorities, np.float64)
        refuse_bad(ids, priorities)
        if not self._prioritized or self._priorities is None:
            return
        slot, k = self._lanes.find(ids)
        leaf = self._lanes.leaf(slot, k)
        here = (k >= self._lanes.oldest[slot]) & (k < self._lanes.heads[slot]) & self._priorities.holds(leaf)
        self._priorities.set(leaf[here], priorities[here])

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write everything into a folder, with a hash. What was saved there before goes when this is in place.

        Raises:
            ConfigError: an `add` or `load` was interrupted, so that it is not known what is there.
        """
        if not self._is_whole:
            raise ConfigError("this memory was interrupted while it took something in: it cannot be saved any more.")
        arrays = {f"{name}.{each}": array for name, part in self._parts.items() for each, array in part.saved().items()}
        arrays |= {f"items.{name}": array for name, array in self._saved().items()}
        disk.save(folder, self._settings(), self._random.bit_generator.state, arrays)

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Take what was saved. Episodes that were under way count as cut off, since their environments are no more.

        Raises:
            ConfigError: nothing was saved there, or by a memory with other settings. This one is as it was.
            WeightsCorrupt: it is damaged. This one is as it was.
        """
        saved = disk.Saved(folder, self._settings())
        self._is_whole = False
        for name, part in self._parts.items():
            part.restore(saved, name)
        self._restore(saved, "items")
        self._random.bit_generator.state = saved.facts
        self._is_whole = True

    @abc.abstractmethod
    def _cut(self, slot: Array, k: Array) -> Data:
        """The items that start with these steps."""

    @abc.abstractmethod
    def _saved(self) -> dict[str, Array]:
        """What tells which items there are, to be saved."""

    @abc.abstractmethod
    def _restore(self, saved: Saved, prefix: str) -> None:
        """Take what was saved."""

    def _settings(self) -> dict[str, Any]:
        """What a memory must have in common with another to take over what that saved."""
        alpha = self._priorities.alpha if self._prioritized and self._priorities is not None else None
        return {
            "kind": self.kind,
            "prioritized": self._prioritized,
            "alpha": alpha,
            **self._about,
            **self._lanes.settings(),
        }

    def _draw(self, count: int) -> tuple[Array, Array, Array]:
        """Slot, step and weight of items, by their priorities."""
        if self._priorities is None:
            raise TypeError(f"a memory of {self.kind}s without priorities must draw in a way of its own.")
        places, chances = self._priorities.draw(count, self._random)
        return *self._lanes.step_of(places), importance(chances, len(self), self._priorities.beta)

    @contextlib.contextmanager
    def _adding(self) -> Iterator[None]:
        """Around what writes a batch: an interrupt in the middle of it leaves steps without what belongs to them."""
        before, self._is_whole = self._is_whole, False
        yield
        self._is_whole = before

    @property
    def _parts(self) -> dict[str, Any]:
        """What can be saved; the lanes first, by which the others find their way."""
        # Memories that were saved earlier have these names.
        parts = {"lanes": self._lanes, "priorities": self._priorities, "thoughts": self._acting_values}
        return {name: part for name, part in parts.items() if part is not None}
