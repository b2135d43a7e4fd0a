"""A node without processes: the blocks live in the head. For debugging, tests and cheap environments."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.node.base import Message
from clusterenv.node.here import Here
from clusterenv.transport.arena import Word
from clusterenv.worker.loop import Reply, answered
from clusterenv.worker.report import Report
from clusterenv.worker.station import Station

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gymnasium import Space

    from clusterenv.node.base import Incarnation, Loss
    from clusterenv.transport.arena import Arena, Command
    from clusterenv.transport.shared import SharedArrays
    from clusterenv.worker.base import Block
    from clusterenv.worker.describe import BlockDescription

# In place of a slot, until a block has begun its step; afterwards it is -1.
_NOT_BEGUN = -2


class InprocNode(Here):
    """Runs each block where it is called. No limit can be kept: there is nobody else to keep it."""

    plays_ahead = False

    def __init__(self, builders: Sequence[Callable[[], Block]], blocks: Sequence[range]) -> None:
        self.blocks = blocks
        self._builders = builders
        self._running: list[Block] = []
        self._arena: Arena | None = None
        self._stations: list[Station] = []
        self.reported = Report()
        self._replies: dict[int, Reply] = {}
        self.closed = False
        self._orders: list[tuple[int, tuple[Any, ...]]] = []  # of streaming blocks, first come, first served

    def start(self, limit_s: float | None) -> list[BlockDescription]:
        """Build every block and say what it is."""
        for build in self._builders:
            self._running.append(build())
        return [block.describe() for block in self._running]

    def bind(self, arena: Arena, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Give the blocks the arena."""
        self._arena = arena
        self._wants = [arena.want[slots.start : slots.stop] for slots in self.blocks]
        self._words, self._slot_words = arena.words, [arena.word(w, Word.SLOT) for w in range(len(self.blocks))]
        self._haves = [arena.have[slots.start : slots.stop] for slots in self.blocks]
        for worker, block in enumerate(self._running):
            block.bind(arena, worker, observation_space, action_space)
        self._stations = [Station(block, arena, worker) for worker, block in enumerate(self._running)]

    def request(
        self, command: Command, workers: Sequence[int], actions: Mapping[int, Mapping[int, Any]] | None
    ) -> None:
        """Step the slots that are asked for, now."""
        words = self._words
        for worker in workers:
            block = self._running[worker]
            want, have = self._wants[worker], self._haves[worker]
            rows = np.flatnonzero(want != have).tolist()
            self._stations[worker].note_step(rows)
            values = block.actions(rows) if actions is None else [actions[worker][row][1] for row in rows]
            words[self._slot_words[worker]] = _NOT_BEGUN
            try:
                if rows:
                    self.reported.extend(block.step(rows, values))
                have[rows] = want[rows]
            except BaseException:
                self._note_finished(worker, rows)
                raise

    def _note_finished(self, worker: int, rows: Sequence[int]) -> None:
        """A step was interrupted: asked again, no environment that has come to the end of it may step twice."""
        block, slot = self._running[worker], self._words[self._slot_words[worker]]
        if slot == _NOT_BEGUN or block.whole:
            return
        at = len(rows) if slot < 0 else rows.index(slot - block.slots.start)
        self._haves[worker][rows[:at]] = self._wants[worker][rows[:at]]

    def check_sendable(self, actions: Sequence[Any]) -> None:
        """Anything can be handed over within a process."""

    def wait(self, workers: Sequence[int], limit_s: float | None) -> list[int]:
        """Nothing is ever late here: `request` did the work."""
        return []

    def wait_any(self, limit_s: float) -> bool:
        """Nothing to wait for: `request` did the work."""
        return True

    def listen(self) -> None:
        """Nothing to hear: `request` did the work."""

    def reports(self) -> Report:
        """What the blocks have reported, until it is handed over."""
        return self.reported

    def post(self, messages: Mapping[int, Message]) -> None:
        """Call the blocks, now."""
        for worker, message in messages.items():
            self._replies[worker] = self._answer(worker, message.name, message.arguments)

    def lend(self, messages: Mapping[int, Message], memory: SharedArrays) -> None:
        """Call the stations with the memory itself: it is this process's own."""
        self.post({w: Message(m.name, (*m.arguments, memory)) for w, m in messages.items()})

    def tell(self, worker: int, order: tuple[Any, ...] | None) -> None:
        """Note an order; `played` carries it out."""
        if order is None:
            self._forget_orders(worker)
            self._replies[worker] = Reply()
        else:
            self._orders.append((worker, order))

    def played(self, limit_s: float) -> list[tuple[int, Reply]]:
        """Play the fragment that was ordered first."""
        if not self._orders:
            return []
        worker, order = self._orders.pop(0)
        return [(worker, self._answer(worker, "play", order))]

    def incarnation(self, worker: int) -> Incarnation:
        """There is never another."""
        return 0, 0

    def _answer(self, worker: int, name: str, arguments: tuple[Any, ...]) -> Reply:
        if name == "stream":
            self._forget_orders(worker)  # of a stream whose end was interrupted
            return Reply()
        return answered(self._stations[worker], name, arguments)

    def _forget_orders(self, worker: int) -> None:
        self._orders = [entry for entry in self._orders if entry[0] != worker]

    def replies(self, workers: Sequence[int], limit_s: float | None) -> dict[int, Reply]:
        """What the blocks answered; an interrupt may have taken some answers away."""
        return {worker: self._replies.pop(worker) for worker in workers if worker in self._replies}

    def look(self) -> None:
        """Nothing can be lost here."""

    @property
    def has_losses(self) -> bool:
        """Never: see `losses`."""
        return False

    def losses(self) -> list[Loss]:
        """A block in this process cannot be lost without the head."""
        return []

    def lose(self, worker: int, cause: str) -> None:
        """Never called: nothing is late here."""

    def replace(self, worker: int, seeds: Sequence[int | None], *, patient: bool = False) -> None:
        """Never called: nothing is lost here."""

    def ready(self, workers: Sequence[int], limit_s: float | None) -> dict[int, Reply]:
        """Everything is ready."""
        return {}

    def built(self, workers: Sequence[int]) -> dict[int, Reply | None]:
        """Never called: nothing is lost here."""
        return {}

    def alive(self, worker: int) -> bool:
        """Whether a worker is not lost."""
        return True

    def pids(self) -> list[int | None]:
        """The head's own process, for each block."""
        return [None if self.closed else os.getpid() for _ in self.blocks]

    def close(self, limit_s: float | None) -> None:
        """Close the environments."""
        running, self._running = self._running, []
        self.closed = True
        for station in self._stations:
            station.detach()
        for block in running:
            block.close()
        if self._arena is not None:
            self._arena.close()
