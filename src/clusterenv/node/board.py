"""The control words of all workers, as the head uses them: a column at a time, whatever the number of workers.

Columns are compared as bytes: for a few dozen words that takes a third of a microsecond, and a reduction of NumPy ten
times as long, several times in every step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from clusterenv.transport.arena import Command, Word
from clusterenv.transport.wake import fence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterenv.transport.arena import Arena


class Board:
    """Asks workers, and sees who has answered.

    Args:
        arena: where the words are.
        spare_core: whether there is a core that no worker needs.
    """

    def __init__(self, arena: Arena, *, spare_core: bool) -> None:
        self._go, self._command = arena.column(Word.GO), arena.column(Word.COMMAND)
        self._done, self._frames = arena.column(Word.DONE), arena.column(Word.FRAMES)
        self._sleeps = arena.column(Word.SLEEPS)
        self._slot, self._writing = arena.column(Word.SLOT), arena.column(Word.WRITING)
        self._memory = arena.column(Word.MEMORY)
        count = arena.spec.num_workers
        # Request numbers and counts of messages wrap around after 2**31; only whether they are equal matters.
        self._asked = np.zeros(count, dtype=np.int32)
        self._read = np.zeros(count, dtype=np.int32)
        self._excused = np.zeros(count, dtype=np.bool_)
        self._any_excused = False
        self._everybody = slice(None)
        workers = range(count)
        self._wake_up = [arena.signal(w, Word.GO, Word.SLEEPS, spare_core=spare_core) for w in workers]

    def welcome(self, worker: int) -> None:
        """A fresh worker starts where the last one stopped: nothing asked, nothing answered, nothing to read."""
        self._go[worker] = self._done[worker] = self._asked[worker]
        self._frames[worker] = self._read[worker]
        self._sleeps[worker] = 0
        self._slot[worker] = self._writing[worker] = -1
        self._memory[worker] = 0
        self._excused[worker] = False
        self._any_excused = bool(self._excused.any())

    def excuse(self, worker: int) -> None:
        """Nobody waits for a lost worker."""
        self._excused[worker] = self._any_excused = True
        self._done[worker] = self._asked[worker]

    def ask(self, workers: Sequence[int], command: Command) -> None:
        """Ask these workers for something and wake those that sleep."""
        which = self._everybody if len(workers) == len(self._asked) else workers
        self._asked[which] += 1
        self._command[which] = command
        if self._any_excused:
            # The last worker to answer wakes the head: a lost one must not seem to be still at work.
            self._done[self._excused] = self._asked[self._excused]
        self._go[which] = self._asked[which]
        fence()
        if np.count_nonzero(self._sleeps):
            for worker in workers:
                self._wake_up[worker].wake()

    def wake_again(self, worker: int) -> None:
        """Wake a worker that sleeps although it was asked: an interrupt has come between the two."""
        if self._done[worker] != self._asked[worker]:
            self._wake_up[worker].wake()

    def asked(self, worker: int) -> int:
        """The number of the last request to a worker."""
        return int(self._asked[worker])

    def unanswered(self, workers: Sequence[int]) -> int | None:
        """The first of these workers that still owes an answer."""
        if self._done.tobytes() == self._asked.tobytes():
            return None
        answered = self._done == self._asked
        for worker in workers:
            if not answered[worker] and not self._excused[worker]:
                return worker
        return None

    def announced(self) -> list[int]:
        """The workers that have announced messages which we have not read."""
        if self._frames.tobytes() == self._read.tobytes():
            return []
        workers: list[int] = np.flatnonzero((self._frames != self._read) & ~self._excused).tolist()
        return workers

    def unread(self, worker: int) -> bool:
        """Whether a worker has announced a message that we have not read."""
        return bool(self._frames[worker] != self._read[worker])

    def note_read(self, worker: int) -> None:
        """One message of this worker has been read."""
        self._read[worker : worker + 1] += 1  # as an array, which wraps around without a warning

    def outgrown(self, worker: int) -> int:
        """The MiB to which the memory of a worker has grown, if it ends because of that; 0 otherwise."""
        return int(self._memory[worker])

    def position(self, worker: int) -> tuple[int | None, range | None]:
        """The slot that a worker is stepping, and those whose rows it may be writing."""
        slot, writing = int(self._slot[worker]), int(self._writing[worker])
        return (None if slot < 0 else slot), (range(slot, writing + 1) if 0 <= slot <= writing else None)
