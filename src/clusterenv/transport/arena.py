"""The arena: shared memory where head and workers meet.

One block of memory holds, for every slot, a row of observation, action, reward and flags, and for every worker three
lines of control words. It has no name: it is an anonymous memory file that workers receive as a descriptor, so nothing
can be left behind in the file system, whatever dies.

Who writes what, so that no lock is needed:

* the head writes actions, `want` and the control words GO and COMMAND;
* a worker writes the rows of its own slots, `have`, and its own control words.

A slot is asked for when `want != have`: the head puts a new request number in `want`; the worker stores the row first
and the number in `have` last. The processors we run on (x86-64) make stores visible in the order of the program.
"""

from __future__ import annotations

import ctypes
import enum
import mmap
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.errors import ConfigError
from clusterenv.transport.shared import anonymous_memory, host_memory, padded
from clusterenv.transport.wake import Signal

if TYPE_CHECKING:
    import numpy.typing as npt

    from clusterenv.spaces import Leaf

_LINE = 64  # bytes; words of different writers lie on different cache lines
_WORDS = _LINE // 4


_LINES = 3  # of control words per worker


class Word(enum.IntEnum):
    """Control words of one worker: a line of the head's, a line of answers, a line for the story of its progress.

    Answers and progress are apart because the head may watch the answers closely, and every look of another processor
    at a line makes the next store to it slow; the progress is stored twice per environment step.
    """

    GO = 0  # grows with every request; the worker waits for it
    COMMAND = 1  # what the request is, a Command
    DONE = _WORDS  # the value of GO that has been answered; who is the last to do so rings the bell
    FRAMES = _WORDS + 1  # how many messages the worker has announced on its channel
    SLEEPS = _WORDS + 2  # the worker sleeps until GO changes
    SLOT = 2 * _WORDS  # the slot being stepped, for "it hung in slot 5"
    WRITING = 2 * _WORDS + 1  # the last slot being written: if killed there, rows from SLOT to it may be half old
    MEMORY = 2 * _WORDS + 2  # set by a worker that ends because it has outgrown its memory: to how many MiB


class Command(enum.IntEnum):
    """What a worker is asked to do."""

    STEP = 1  # step the whole block, then answer by DONE
    STEP_SOME = 2  # the same with the slots that have want != have
    SEND = 3  # step the slots that have want != have, and ring the bell as they finish
    MESSAGE = 4  # read a message from the channel and answer there


@dataclass(frozen=True, slots=True)
class ArenaSpec:
    """The sizes from which head and worker compute the same layout.

    `first_slot` is the slot of the first row: 0 for the head, another for the arena of a node on another host.
    """

    num_envs: int
    num_workers: int
    observation: tuple[Leaf, ...]
    action: tuple[Leaf, ...]
    first_slot: int = 0

    def rows(self, slots: range) -> slice:
        """Where these slots lie in the arrays."""
        return slice(slots.start - self.first_slot, slots.stop - self.first_slot)


class Arena:
    """Views into the shared memory. Build one with `create` on the head, `attach` in a worker."""

    def __init__(self, spec: ArenaSpec, memory: mmap.mmap, fd: int) -> None:
        self.spec, self.fd = spec, fd
        self._memory = memory
        self._offset = 0
        n, workers = spec.num_envs, spec.num_workers

        self._control = control = self._take((workers * _LINES * _WORDS,), np.int32)
        bell = self._take((2 * _WORDS,), np.int32)
        self.want = self._take((n,), np.uint32)
        self.have = self._take((n,), np.uint32)
        self.reward = self._take((n,), np.float64)
        self.terminated = self._take((n,), np.bool_)
        self.truncated = self._take((n,), np.bool_)
        self.observation = [self._take((n, *leaf.shape), leaf.dtype) for leaf in spec.observation]
        self.action = [self._take((n, *leaf.shape), leaf.dtype) for leaf in spec.action]

        # A memoryview reads a word in 35 ns where an array takes 60: these are read in spin loops.
        self.words = memoryview(control.data)
        self.bell = memoryview(bell.data)
        self.words_address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.bell_address = self.words_address + control.nbytes

    @classmethod
    def create(cls, spec: ArenaSpec) -> Arena:
        """Make the memory. Every byte starts as zero."""
        return cls(spec, *anonymous_memory(check_size(spec)))

    @classmethod
    def attach(cls, spec: ArenaSpec, fd: int) -> Arena:
        """Map the memory that the head made. The arena owns the descriptor from here on."""
        return cls(spec, mmap.mmap(fd, layout_size(spec)), fd)

    def close(self) -> None:
        """Give the descriptor back. The memory lives until the last view of it is gone."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def word(self, worker: int, word: Word) -> int:
        """The index of a control word in `words`."""
        return worker * _LINES * _WORDS + word

    def column(self, word: Word) -> npt.NDArray[np.int32]:
        """One control word of every worker, as a view."""
        return self._control.reshape(self.spec.num_workers, _LINES * _WORDS)[:, word]

    def signal(self, worker: int, word: Word, sleeper: Word, *, spare_core: bool) -> Signal:
        """The control word as something to wait for; `sleeper` is where the waiting side says that it sleeps."""
        index, flag = self.word(worker, word), self.word(worker, sleeper)
        return Signal(self.words, index, flag, self.words_address, spare_core=spare_core)

    def bell_signal(self, *, spare_core: bool) -> Signal:
        """What workers ring: in lock step the last one that is ready, otherwise whoever has slots that are.

        The head sleeps on it, and says so on the next line.
        """
        return Signal(self.bell, 0, _WORDS, self.bell_address, spare_core=spare_core)

    def _take(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        # By its text, which gives NumPy's one object for the dtype; a pickled one is only equal to it, and the block
        # compares by identity, which is cheaper.
        kind = np.dtype(np.dtype(dtype).str)
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(self._memory, dtype=kind, count=count, offset=self._offset).reshape(shape)
        self._offset += padded(array.nbytes)
        return array


def check_size(spec: ArenaSpec) -> int:
    """The bytes that an arena of this spec takes; ConfigError if this host cannot give them."""
    size = layout_size(spec)
    limit = host_memory()
    if size > limit:
        raise ConfigError(
            f"{spec.num_envs} slots need {size / 2**30:.1f} GiB for observations and actions, but this host has "
            f"{limit / 2**30:.1f} GiB left for this process. Use fewer environments or smaller observations."
        )
    return size


def next_count(count: int) -> int:
    """The number after `count` in a control word, which runs over as 32-bit numbers do."""
    return count + 1 if count < 2**31 - 1 else -(2**31)


def layout_size(spec: ArenaSpec) -> int:
    """The bytes that an arena of this spec takes."""
    n = spec.num_envs
    size = spec.num_workers * _LINES * _LINE + 2 * _LINE
    size += 2 * padded(4 * n) + padded(8 * n) + 2 * padded(n)
    for leaf in (*spec.observation, *spec.action):
        # Python integers, so that a space of 10**10 elements gives a large number and not a negative one.
        row = leaf.dtype.itemsize
        for length in leaf.shape:
            row *= int(length)
        size += padded(n * row)
    return size
