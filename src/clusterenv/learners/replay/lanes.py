"""Where steps lie: a ring for every slot, each observation once.

The k-th step of a slot has the number `id = k * slots + slot`, which is never used again; its place follows from it.
What the environment showed after the last step of a fragment is kept in the place of the step that will come next.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv import spaces
from clusterenv.cgroups import free_memory
from clusterenv.errors import ConfigError
from clusterenv.learners.common.finite import refuse_bad_rewards
from clusterenv.learners.replay import disk, frames
from clusterenv.learners.replay.side import SideTable

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt
    from gymnasium import Space

    from clusterenv.env.batch import Batch
    from clusterenv.learners.replay.disk import Saved
    from clusterenv.spaces import Leaf

    Array = npt.NDArray[Any]

# What is noted of a step. FIRST: its observation is the first of an episode. BEGINS: what lies before it in its lane is
# not of the same episode, or not known. STATE: the recurrent state before it is kept. WHOLE: its stack of frames is.
TERMINATED, TRUNCATED, FIRST, BEGINS, STATE, WHOLE = 1, 2, 4, 8, 16, 32
ENDED = TERMINATED | TRUNCATED
_NONE = np.zeros(0, np.int64)


class Lanes:
    """The last steps of every slot.

    Args:
        observation_space: of one slot.
        action: one action.
        slots: how many lanes.
        steps: of a lane.
        state: the leaves of a recurrent state.
        stacked: images are stacks of frames, the newest last: keep each frame once.
        folder: keep observations in a file there, and not in memory.
        beside: the bytes that whoever made the lanes keeps beside so many steps of all slots.

    Attributes:
        heads: [slots] int64, how many steps each slot has had.
    """

    def __init__(
        self,
        observation_space: Space[Any],
        action: Leaf,
        *,
        slots: int,
        steps: int,
        state: Sequence[Leaf] = (),
        stacked: bool = False,
        folder: str | os.PathLike[str] | None = None,
        beside: Callable[[int], int] = lambda steps: 0,
    ) -> None:
        leaves = spaces.leaves_of(observation_space)
        if leaves is None:
            raise ConfigError(f"a replay holds arrays, and observations of {observation_space} are none.")
        self._space, self._depths = observation_space, frames.depths(leaves, stacked)
        self.slots, self.steps = slots, steps
        self.heads = np.zeros(slots, np.int64)
        # More places than steps: one for what was seen last, and for the older frames in the stack of the oldest step.
        self._ring = steps + max(self._depths)
        places = slots * self._ring
        rows = [
            (leaf.shape if depth == 1 else leaf.shape[1:], leaf.dtype)
            for leaf, depth in zip(leaves, self._depths, strict=True)
        ]
        others = [(action.shape, action.dtype), ((), np.dtype(np.float32)), ((), np.dtype(np.uint8))]
        if folder is None:
            row, spare = sum(math.prod(shape) * dtype.itemsize for shape, dtype in rows + others), max(self._depths)
            disk.refuse_too_large(
                lambda steps: slots * (steps + spare) * row + beside(slots * steps),
                slots=slots,
                steps=steps,
                free=free_memory(),
            )
        self._obs = [disk.zeros((places, *shape), dtype, folder) for shape, dtype in rows]
        self._action, self._reward, self._flags = (disk.zeros((places, *shape), dtype, None) for shape, dtype in others)
        self._finals, self._states = SideTable(leaves), SideTable(state)
        self._wholes = SideTable([leaf for leaf, depth in zip(leaves, self._depths, strict=True) if depth > 1])

    @property
    def places(self) -> int:
        """How many steps there is room for, with those that were only seen."""
        return len(self._flags)

    @property
    def oldest(self) -> Array:
        """[slots], the first step of each that is still there."""
        return np.maximum(self.heads - self.steps, 0)

    @property
    def nbytes(self) -> int:
        """The memory of its arrays."""
        return sum(column.nbytes for column in self._columns) + sum(table.nbytes for table in self._tables.values())

    def ids(self, slot: Array, k: Array) -> Array:
        """The numbers of these steps."""
        numbers: Array = k * self.slots + slot
        return numbers

    def find(self, ids: Array) -> tuple[Array, Array]:
        """Slot and k of these steps."""
        k, slot = np.divmod(ids, self.slots)
        return slot, k

    def place(self, slot: Array, k: Array) -> Array:
        """Where these steps lie."""
        where: Array = slot * self._ring + k % self._ring
        return where

    def leaf(self, slot: Array, k: Array) -> Array:
        """Where these steps are among all that can be drawn: from 0 to slots * steps - 1."""
        leaf: Array = slot * self.steps + k % self.steps
        return leaf

    def step_of(self, leaf: Array) -> tuple[Array, Array]:
        """Slot and k of the newest steps that are there."""
        slot, at = np.divmod(leaf, self.steps)
        last = self.heads[slot] - 1
        return slot, last - (last - at) % self.steps

    def refuse_bad(self, batch: Batch) -> None:
        """Raise if a batch cannot be taken in: to be asked before any of it is written."""
        if self.steps < batch.T:
            raise ConfigError(
                f"fragments of {batch.T} steps do not fit into lanes of {self.steps}. Raise the capacity to at least "
                f"{batch.T * self.slots}: it is shared by {self.slots} slots."
            )
        absent = (batch.slot < 0) | (batch.slot >= self.slots)
        if absent.any():
            raise ConfigError(
                f"the batch has steps of slot {batch.slot[absent.argmax()]}, but this replay was made for the slots 0 "
                f"to {self.slots - 1}. Make it with as many slots as there are environments."
            )
        refuse_bad_rewards(batch)
        self._refuse_jumps(spaces.take_apart(self._space, batch.obs), batch.first)

    def write(self, batch: Batch, columns: Array) -> None:
        """Put fragments at the ends of their lanes.

        Args:
            batch: the fragments, which `refuse_bad` has let pass.
            columns: which of them; no slot twice.
        """
        slot, steps = batch.slot[columns], np.arange(batch.T + 1)[:, None]
        start = self.heads[slot]
        seen = spaces.take_apart(self._space, batch.obs)  # [T + 1, n, ...]
        if len(columns) < batch.N:
            seen = [leaf[:, columns] for leaf in seen]
        first = batch.first[:, columns]
        begins = first[:-1].copy()
        begins[0] = self._begin(slot, batch.worker_lost[columns] | first[0], [leaf[0] for leaf in seen])
        where = self.place(slot, start + steps)  # [T + 1, n]
        self._evict(where, start + steps, slot)
        for column, depth, leaf in zip(self._obs, self._depths, seen, strict=True):
            column[where] = leaf if depth == 1 else leaf[:, :, -1]
        self._action[where[:-1]] = batch.action[:, columns]
        self._reward[where[:-1]] = batch.reward[:, columns]
        flags = batch.terminated[:, columns] * TERMINATED + batch.truncated[:, columns] * TRUNCATED
        self._flags[where[:-1]] = flags + first[:-1] * FIRST + begins * BEGINS
        self._flags[where[-1]] = 0
        self._keep_finals(batch, columns, start)
        self._keep_wholes(seen, begins, slot, start)
        self.heads[slot] += batch.T

    def observations(self, slot: Array, k: Array) -> list[Array]:
        """The leaves of what was seen before these steps; for a head, of what was seen last."""
        where = self.place(slot, k)
        return [
            self._obs[at][where] if depth == 1 else self._stacks(at, slot, k) for at, depth in enumerate(self._depths)
        ]

    def finals(self, slot: Array, k: Array) -> list[Array]:
        """The leaves of what was seen after these steps, each of which was truncated."""
        return self._finals.get(self.ids(slot, k))

    def keep_states(self, slot: Array, k: Array, leaves: Sequence[Array]) -> None:
        """Keep the recurrent states before these steps."""
        self._states.put(self.ids(slot, k), leaves)
        self._flags[self.place(slot, k)] |= STATE

    def states(self, slot: Array, k: Array) -> list[Array]:
        """The leaves of the states before these steps, each of which was kept."""
        return self._states.get(self.ids(slot, k))

    def tree(self, leaves: list[Array]) -> Any:
        """Observations as the space has them."""
        return spaces.assemble(self._space, leaves)

    def actions(self, slot: Array, k: Array) -> Array:
        """The actions of these steps."""
        actions: Array = self._action[self.place(slot, k)]
        return actions

    def rewards(self, slot: Array, k: Array) -> Array:
        """The rewards of these steps."""
        rewards: Array = self._reward[self.place(slot, k)]
        return rewards

    def flags(self, slot: Array, k: Array) -> Array:
        """What was noted of these steps."""
        flags: Array = self._flags[self.place(slot, k)]
        return flags

    def used(self, column: Array) -> Array:
        """The part that was ever written to of what has a row for every place, [slots, places, ...]."""
        places = min(self._ring, int(self.heads.max(initial=0)) + 1)
        return column.reshape(self.slots, self._ring, *column.shape[1:])[:, :places]

    def settings(self) -> dict[str, Any]:
        """What lanes must have in common to take over what others saved."""
        rows = [*self._obs, self._action, *self._states.get(_NONE)]
        layout = [[list(row.shape[1:]), row.dtype.str] for row in rows]
        return {"slots": self.slots, "steps": self.steps, "frames": self._depths, "layout": layout}

    def saved(self) -> dict[str, Array]:
        """Everything that is there, to be saved; of the columns only what was ever used."""
        arrays = {f"column.{number}": self.used(column) for number, column in enumerate(self._columns)}
        for name, table in self._tables.items():
            arrays |= {f"{name}.{part}": array for part, array in table.saved().items()}
        return {"heads": self.heads, **arrays}

    def restore(self, saved: Saved, prefix: str) -> None:
        """Take what was saved."""
        self._flags[:] = 0
        saved.read_into(f"{prefix}.heads", self.heads)
        for number, column in enumerate(self._columns):
            saved.read_into(f"{prefix}.column.{number}", self.used(column))
        for name, table in self._tables.items():
            table.restore(saved, f"{prefix}.{name}")

    @property
    def _columns(self) -> list[Array]:
        return [*self._obs, self._action, self._reward, self._flags]

    @property
    def _tables(self) -> dict[str, SideTable]:
        return {"finals": self._finals, "states": self._states, "wholes": self._wholes}

    def _stacks(self, at: int, slot: Array, k: Array) -> Array:
        """The stacks of frames of a leaf."""
        depth = self._depths[at]
        slot = np.broadcast_to(slot, k.shape)
        window = k[..., None] - np.arange(depth)[::-1]
        steps, since = frames.sources(k, self.flags(slot[..., None], window) & BEGINS != 0)
        stacks: Array = self._obs[at][self.place(slot[..., None], steps)]
        # An episode that did not begin with the same frame again and again has the older ones of its first step kept.
        whole = (since < depth - 1) & (self.flags(slot, k - since) & WHOLE != 0)
        if whole.any():
            kept = self._wholes.get(self.ids(slot, k - since)[whole])[sum(d > 1 for d in self._depths[:at])]
            rows = stacks.reshape(-1, *stacks.shape[k.ndim :])
            for row, stack, age in zip(np.flatnonzero(whole), kept, since[whole], strict=True):
                rows[row, : depth - 1 - age] = stack[age:-1]
        return stacks

    def _begin(self, slot: Array, anew: Array, shown: list[Array]) -> Array:
        """Which fragments do not go on with what their lanes end with; there, end that.

        What was seen last was the last of an episode that nobody will finish: truncated, with its last observation.

        Args:
            slot: [n].
            anew: [n], the fragment begins with a new episode.
            shown: the leaves of what it begins with, [n, ...].
        """
        last = self.heads[slot] - 1
        ended = (self.flags(slot, last) & ENDED != 0) | (last < 0)
        # A fragment that begins with something else than what was seen last comes after steps that nobody told of.
        for leaf, seen in zip(shown, self.observations(slot, last + 1), strict=True):
            anew = anew | (_bytes(leaf.astype(seen.dtype, copy=False)) != _bytes(seen)).any(axis=1)
        torn, at = slot[anew & ~ended], last[anew & ~ended]
        if len(torn):
            self._finals.put(self.ids(torn, at), self.observations(torn, at + 1))
            self._flags[self.place(torn, at)] |= TRUNCATED
        begins: Array = anew | ended
        return begins

    def _refuse_jumps(self, seen: list[Array], first: Array) -> None:
        """Raise if stacks of frames are none."""
        for leaf, depth in zip(seen, self._depths, strict=True):
            if depth > 1 and len(leaf) > 1:
                frames.refuse_jumps(leaf[:-1], leaf[1:], ~first[1:])

    def _keep_wholes(self, seen: list[Array], begins: Array, slot: Array, start: Array) -> None:
        """Keep the stacks with which an episode begins where they are more than the first frame, repeated."""
        stacks = [leaf[:-1][begins] for leaf, depth in zip(seen, self._depths, strict=True) if depth > 1]
        if not stacks:
            return
        odd = ~np.logical_and.reduce([frames.is_repeated(stack) for stack in stacks])
        t, n = (index[odd] for index in begins.nonzero())
        if len(t):
            self._wholes.put(self.ids(slot[n], start[n] + t), [stack[odd] for stack in stacks])
            self._flags[self.place(slot[n], start[n] + t)] |= WHOLE

    def _evict(self, where: Array, k: Array, slot: Array) -> None:
        """Forget what lies beside the steps that are about to be overwritten."""
        flags = self._flags[where]
        for flag, table in ((TRUNCATED, self._finals), (STATE, self._states), (WHOLE, self._wholes)):
            old = (flags & flag).nonzero()
            if len(old[0]):
                table.drop(self.ids(slot[old[1]], k[old] - self._ring).tolist())

    def _keep_finals(self, batch: Batch, columns: Array, start: Array) -> None:
        """Store the last observations of truncated episodes; after a termination nobody asks for them."""
        t, n = batch.final_at
        at, counts = final_rows(batch, columns)
        if len(at):
            leaves = [leaf[at] for leaf in spaces.take_apart(self._space, batch.final_obs)]
            self._finals.put(self.ids(batch.slot[n[at]], start[counts] + t[at]), leaves)


def final_rows(batch: Batch, columns: Array) -> tuple[Array, Array]:
    """Which last observations are those of truncated episodes in these columns, and in which of the columns each is."""
    t, n = batch.final_at
    place = np.full(batch.N, -1)
    place[columns] = np.arange(len(columns))
    at = ((place[n] >= 0) & batch.truncated[t, n] & ~batch.terminated[t, n]).nonzero()[0]
    return at, place[n[at]]


def _bytes(rows: Array) -> Array:
    """[n, ...] as [n, bytes]: what is the same is the same bytes, also if it is not a number."""
    return np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)


def rounds(slot: Array) -> Iterator[Array]:
    """The columns of a batch in parts without the same slot twice; of one slot in their order.

    Example:
        >>> [part.tolist() for part in rounds(np.array([4, 5, 4, 6]))]
        [[0, 1, 3], [2]]
    """
    left = np.arange(len(slot))
    while len(left):
        _, at = np.unique(slot[left], return_index=True)
        at.sort()
        yield left[at]
        left = np.delete(left, at)
