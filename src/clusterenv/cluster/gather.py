"""Which slots are asked for, answered, lost: the bookkeeping of requests, without any I/O.

A slot is *pending* from the moment it is asked for until its answer is handed to the user. A slot is *broken* when its
environment was lost while nobody had asked for it: the next request for it is answered as a loss, without a step, so
that the break is seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Slots = npt.NDArray[np.intp]


class Gather:
    """The state of every slot.

    Args:
        blocks: the slots of each worker.
        want: the request number that each slot was last asked with (in the arena).
        have: the request number that each slot has answered (in the arena).
    """

    def __init__(self, blocks: Sequence[range], want: npt.NDArray[np.uint32], have: npt.NDArray[np.uint32]) -> None:
        self._want, self._have = want, have
        count = len(want)
        self._number = 0
        self._pending = np.zeros(count, dtype=np.bool_)
        self._broken = np.zeros(count, dtype=np.bool_)
        self.any_broken = False
        self.in_flight = 0
        self._sent_at = np.zeros(count, dtype=np.float64)
        # Steps are counted in two parts, so that asking for every slot counts up one number and not one per slot.
        self._rounds = 0
        self._sent = np.zeros(count, dtype=np.int64)
        self._at_reset = np.zeros(count, dtype=np.int64)
        self._num_workers = len(blocks)
        self.worker_of = np.empty(count, dtype=np.intp)
        for worker, slots in enumerate(blocks):
            self.worker_of[slots.start : slots.stop] = worker

    def ask_all(self) -> Slots | None:
        """Ask for every slot. Returns the broken ones, which are answered as lost, or None if there are none."""
        self._want[:] = self._next()
        self._rounds += 1
        self._pending[:] = True
        self.in_flight = len(self._want)
        if not self.any_broken:
            return None
        lost = np.flatnonzero(self._broken)
        self._answer_lost(lost)
        return lost

    def ask(self, slots: Slots, now: float) -> tuple[list[int], Slots]:
        """Ask for some slots. Returns the workers to wake, and the slots that are answered as lost at once."""
        self._want[slots] = self._next()
        self._sent[slots] += 1
        self._sent_at[slots] = now
        self._pending[slots] = True
        self.in_flight += len(slots)
        if not self.any_broken:
            return self._workers(slots), slots[:0]
        lost = slots[self._broken[slots]]
        self._answer_lost(lost)
        return self._workers(slots[self._have[slots] != self._want[slots]]), lost

    def pending(self, slots: Slots) -> Slots:
        """Those of `slots` that are asked for and not yet handed over."""
        return slots[self._pending[slots]]

    def all_pending(self) -> set[int]:
        """All slots that are asked for and not yet handed over."""
        return set(self._pending.nonzero()[0].tolist())

    def ready(self) -> Slots:
        """Pending slots that are answered, those asked for first in front, so that none waits for ever."""
        slots: Slots = (self._pending & (self._have == self._want)).nonzero()[0]
        return slots[np.argsort(self._sent_at[slots], kind="stable")]

    def count_ready(self) -> int:
        """How many slots are ready; cheaper than `ready`, for a wait that looks often."""
        return int(np.count_nonzero(self._pending & (self._have == self._want)))

    def hand_over(self, slots: Slots) -> None:
        """These slots go to the user."""
        self._pending[slots] = False
        self.in_flight -= len(slots)

    def hand_over_all(self) -> None:
        """Every slot goes to the user."""
        self._pending[:] = False
        self.in_flight = 0

    def lose(self, slots: range, *, reported: bool) -> list[int]:
        """A worker is lost. Returns its slots that are answered as lost now.

        `reported` tells whether all that it had announced has arrived. If not, an answer whose infos are missing is
        only half an answer, and the slot is lost too.
        """
        rows = np.arange(slots.start, slots.stop)
        answered = self._have[rows] == self._want[rows]
        whole = answered & (np.bool_(reported) | ~self._pending[rows])
        self._have[rows] = self._want[rows]
        # Idle slots, and those answered but not yet handed over: their break comes with the next request.
        self._broken[rows[whole]] = True
        self.any_broken = bool(self._broken.any())
        lost: list[int] = rows[~whole].tolist()
        return lost

    def overdue(self, now: float, limit_s: float) -> list[int]:
        """The workers that have not answered a slot within the limit."""
        waiting = self._pending & (self._have != self._want)
        late = np.flatnonzero(waiting & (self._sent_at < now - limit_s))
        return self._workers(late)

    def any_broken_of(self, slots: range) -> bool:
        """Whether the environment of one of these slots was lost, and nobody has been told yet."""
        return self.any_broken and bool(self._broken[slots.start : slots.stop].any())

    def mend(self, slots: Sequence[int] | npt.NDArray[Any]) -> None:
        """These slots have been reset: nothing is broken or asked for."""
        self._broken[slots] = False
        self.any_broken = bool(self._broken.any())

    def steps(self, slot: int) -> int:
        """How many steps a slot has been asked for since it was last reset by name."""
        return self.steps_ever(slot) - int(self._at_reset[slot])

    def steps_ever(self, slot: int) -> int:
        """How many steps a slot has been asked for since the start."""
        return self._rounds + int(self._sent[slot])

    def count_from_here(self, slots: Sequence[int]) -> None:
        """These slots are reset by name: their steps count from zero."""
        self._at_reset[slots] = self._rounds + self._sent[slots]

    def count_steps(self, steps: int) -> None:
        """A policy on the workers has taken this many steps in every slot."""
        self._rounds += steps

    def count_block(self, slots: Slots, steps: int) -> None:
        """The same in some slots."""
        self._sent[slots] += steps

    def count_again(self) -> None:
        """After an interrupt, which may have come between any two lines: what is not pending was not asked for."""
        idle = ~self._pending
        self._have[idle] = self._want[idle]
        self.in_flight = int(np.count_nonzero(self._pending))

    def forget_requests(self) -> None:
        """Nothing is asked for any more."""
        self._have[:] = self._want
        self._pending[:] = False
        self.in_flight = 0

    def _workers(self, slots: Slots) -> list[int]:
        named = np.zeros(self._num_workers, dtype=np.bool_)
        named[self.worker_of[slots]] = True
        workers: list[int] = named.nonzero()[0].tolist()
        return workers

    def _answer_lost(self, slots: Slots) -> None:
        self._have[slots] = self._want[slots]
        self._broken[slots] = False
        self.any_broken = bool(self._broken.any())

    def _next(self) -> int:
        self._number = (self._number + 1) & 0xFFFFFFFF
        return self._number
