"""Where steps lie: a ring for every slot, each observation once.

The k-th step of a slot has the number `id = k * slots + slot`, which is never used again; its place follows from it.
What the environment showed after the last step of a fragment is kept in the place of the step that will come next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv import spaces
from clusterenv.errors import ConfigError
from clusterenv.learners.replay.side import SideTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    from gymnasium import Space

    from clusterenv.env.batch import Batch
    from clusterenv.spaces import Leaf

    Array = npt.NDArray[Any]

# What is noted of a step. FIRST: its observation is the first of an episode. BEGINS: what lies before it in its lane is
# not of the same episode, or not known. STATE: the recurrent state before it is kept.
TERMINATED, TRUNCATED, FIRST, BEGINS, STATE = 1, 2, 4, 8, 16
ENDED = TERMINATED | TRUNCATED


class Lanes:
    """The last steps of every slot.

    Args:
        observation_space: of one slot.
        action: one action.
        slots: how many lanes.
        steps: of a lane.
        state: the leaves of a recurrent state.

    Attributes:
        heads: [slots] int64, how many steps each slot has had.
    """

    def __init__(
        self, observation_space: Space[Any], action: Leaf, *, slots: int, steps: int, state: Sequence[Leaf] = ()
    ) -> None:
        leaves = spaces.leaves_of(observation_space)
        if leaves is None:
            raise ConfigError(f"a replay holds arrays, and observations of {observation_space} are none.")
        self._space, self._leaves = observation_space, leaves
        self.slots, self.steps = slots, steps
        self.heads = np.zeros(slots, np.int64)
        self._ring = steps + 1  # one more for what was seen last
        places = slots * self._ring
        self._obs = [np.zeros((places, *leaf.shape), leaf.dtype) for leaf in leaves]
        self._action = np.zeros((places, *action.shape), action.dtype)
        self._reward = np.zeros(places, np.float32)
        self._flags = np.zeros(places, np.uint8)
        self._finals, self._states = SideTable(leaves), SideTable(state)

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
        columns = [*self._obs, self._action, self._reward, self._flags]
        return sum(column.nbytes for column in columns) + self._finals.nbytes + self._states.nbytes

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

    def write(self, batch: Batch, columns: Array) -> None:
        """Put fragments at the ends of their lanes.

        Args:
            batch: the fragments.
            columns: which of them; no slot twice.
        """
        if self.steps < batch.T:
            raise ConfigError(
                f"fragments of {batch.T} steps do not fit into lanes of {self.steps}. Raise the capacity to at least "
                f"{batch.T * self.slots}: it is shared by {self.slots} slots."
            )
        slot = batch.slot[columns]
        start = self.heads[slot]
        begins = self._cut(batch, columns)
        where = self.place(slot, start + np.arange(batch.T + 1)[:, None])  # [T + 1, n]
        self._evict(where, start + np.arange(batch.T + 1)[:, None], slot)
        for column, values in zip(self._obs, spaces.take_apart(self._space, batch.obs), strict=True):
            column[where] = values[:, columns]
        self._action[where[:-1]] = batch.action[:, columns]
        self._reward[where[:-1]] = batch.reward[:, columns]
        first = batch.first[:, columns]
        flags = batch.terminated[:, columns] * TERMINATED + batch.truncated[:, columns] * TRUNCATED
        flags += first[:-1] * (FIRST | BEGINS)
        flags[0] |= begins * BEGINS
        self._flags[where[:-1]], self._flags[where[-1]] = flags, 0
        self._keep_finals(batch, columns, start)
        self.heads[slot] += batch.T

    def observations(self, slot: Array, k: Array) -> list[Array]:
        """The leaves of what was seen before these steps; for a head, of what was seen last."""
        where = self.place(slot, k)
        return [column[where] for column in self._obs]

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

    def _cut(self, batch: Batch, columns: Array) -> Array:
        """Where a fragment does not go on with what its lane ends with, end that. Returns which fragments begin anew.

        What was seen last was the last of an episode that nobody will finish: truncated, with its last observation.
        """
        slot = batch.slot[columns]
        last = self.heads[slot] - 1
        ended = (self.flags(slot, last) & ENDED != 0) | (last < 0)
        anew = batch.worker_lost[columns] | batch.first[0, columns]
        torn, at = slot[anew & ~ended], last[anew & ~ended]
        if len(torn):
            self._finals.put(self.ids(torn, at), self.observations(torn, at + 1))
            self._flags[self.place(torn, at)] |= TRUNCATED
        begins: Array = anew | ended
        return begins

    def _evict(self, where: Array, k: Array, slot: Array) -> None:
        """Forget what lies beside the steps that are about to be overwritten."""
        flags = self._flags[where]
        for flag, table in ((TRUNCATED, self._finals), (STATE, self._states)):
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
