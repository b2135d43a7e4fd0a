"""Steps that a head on another host has asked for: from rows in a message to the arena, and back.

A row goes back with the number that its slot was asked with, so the head knows which rows are new, whatever comes
twice. Rows of single slots are kept track of until the slot is asked for again, and can be shown once more. A head that
has waited long enough asks for the rows that a lock step has by then; its answer brings them again, with all the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.errors import ProtocolError
from clusterenv.node.records import pack_report
from clusterenv.node.rows import WholeNode, results
from clusterenv.transport.arena import Command
from clusterenv.wire import messages as m
from clusterenv.wire.frames import array_of, expect, fill, frame_of
from clusterenv.worker.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from clusterenv.node.local import LocalNode
    from clusterenv.transport.arena import Arena

    Array = npt.NDArray[Any]
    RowIndex = npt.NDArray[np.int32]

# How long one look at the workers may take, in lock step and for single slots: the socket has to wait for its end.
_LOCK_STEP_S, _SINGLE_S = 0.02, 0.001


class Steps:
    """The steps of one node.

    Args:
        node: whose workers take them.
        arena: of the node.
        done: takes the number of a lock-step request and the frames of its answer.
        send: takes the frames of rows that are ready before the rest.
    """

    def __init__(
        self, node: LocalNode, arena: Arena, done: Callable[[int, list[Any]], None], send: Callable[[list[Any]], None]
    ) -> None:
        self._node, self._arena, self._done, self._send = node, arena, done, send
        self._whole = WholeNode(arena, range(node.blocks[0].start, node.blocks[-1].stop))
        self._everybody = list(range(len(node.blocks)))
        self._lock_step: tuple[int, bool, RowIndex | None] | None = None  # request number, all rows?, which rows
        self._flying = np.zeros(arena.spec.num_envs, dtype=np.bool_)
        self._shown: list[tuple[RowIndex, bytes]] = []  # single rows that were sent, with their reports
        self._held = Report()  # reports about rows that have not been sent yet

    @property
    def busy(self) -> bool:
        """Whether something is under way."""
        return self._lock_step is not None or bool(self._flying.any())

    def begin(self, request: m.Step, frames: Sequence[Any], objects: Mapping[int, Mapping[int, Any]] | None) -> None:
        """Put actions into the arena and wake the workers. Frames: [rows], numbers, actions."""
        if self._lock_step is not None:  # the head has given it up and goes on: whoever is late was ended
            self._finish_lock_step(*self._lock_step)
        if request.whole and request.lock_step and not self._shown:
            self._whole.take_request(frames)
            rows = None
        else:
            rows, new = self._store(frames, whole=request.whole)
            self._forget_shown(new)
        if request.lock_step:
            command = Command.STEP if request.whole else Command.STEP_SOME
            self._lock_step = (request.number, request.whole, rows)
            self._node.request(command, self._everybody, objects)
        else:
            self._flying[new] = True
            workers = self._workers_of(new)
            self._node.request(Command.SEND, workers, None if objects is None else {w: objects[w] for w in workers})

    def _store(self, frames: Sequence[Any], *, whole: bool) -> tuple[RowIndex | None, Array]:
        """Store the actions and numbers of a request. Returns its rows, None for all, and those that are new."""
        arena = self._arena
        expect(frames, (0 if whole else 1) + 1 + len(arena.action), "a step")
        rows = None if whole else self._rows(frames[0])
        numbers, *actions = frames if whole else frames[1:]
        new = self._new(rows, numbers)
        # Actions first: a worker that is at work looks at the numbers, and takes every row that is asked for.
        for array, frame in zip(arena.action, actions, strict=True):
            fill(array, frame, "actions", rows)
        fill(arena.want, numbers, "request numbers", rows)
        return rows, new

    def progress(self) -> None:
        """Look for a short while whether something is ready, and send it."""
        if self._lock_step is not None:
            if not self._node.wait(self._everybody, _LOCK_STEP_S):
                self._finish_lock_step(*self._lock_step)
            return
        self._node.listen()
        if not self._show_ready():
            self._node.wait_any(_SINGLE_S)
            self._node.look()
            self._show_ready()

    def _finish_lock_step(self, number: int, whole: bool, rows: RowIndex | None) -> None:
        self._lock_step = None
        # Also what was sent early (`show_again`), since that may have been lost. The head ignores rows that it has.
        self._take_reports()
        report, self._held = self._held, Report()
        header = m.encode(m.Rows(number=number, report=pack_report(report), whole=whole))
        self._done(number, [header, *self._frames(rows)])

    def _show_ready(self) -> bool:
        arena = self._arena
        ready: RowIndex = np.flatnonzero(self._awaited() & (arena.have == arena.want)).astype(np.int32)
        if not len(ready):
            return False
        report = self._report_about(ready)
        self._flying[ready] = False
        self._shown.append((ready, report))
        self._show(ready, report)
        return True

    def _report_about(self, ready: RowIndex) -> bytes:
        """What was reported of these rows, packed. Reports of other rows are held until those are sent."""
        self._take_reports()
        if not self._held:
            return b""
        slots = set((ready + self._arena.spec.first_slot).tolist())
        report = pack_report(self._held.about(slots))
        if self._lock_step is None:
            self._held.forget(slots)
        return report

    def _take_reports(self) -> None:
        self._held.extend(self._node.reports())
        self._node.reported = Report()

    def _awaited(self) -> npt.NDArray[np.bool_]:
        """The rows that were asked for and have not been shown."""
        if self._lock_step is None:
            return self._flying
        awaited = self._flying.copy()
        _, _, rows = self._lock_step
        awaited[slice(None) if rows is None else rows] = True
        for shown, _ in self._shown:
            awaited[shown] = False
        return awaited

    def _show(self, rows: RowIndex, report: bytes) -> None:
        self._send([m.encode(m.Rows(report=report, whole=False)), *self._frames(rows)])

    def show_again(self) -> None:
        """Send what is ready, also of a lock step, and single rows once more that the head may not have.

        There is always something to send: a head that waits for this knows then that it has all there is.
        """
        before = list(self._shown)
        if not self._show_ready():
            self._show(np.empty(0, np.int32), b"")
        for rows, report in before:
            self._show(rows, report)

    def lose(self, worker: int) -> None:
        """A worker has ended: nothing more comes of its slots."""
        block = self._node.blocks[worker]
        if self._lock_step is None:
            self._show_ready()
            self._held.forget(block)
        self._flying[self._arena.spec.rows(block)] = False

    def forget(self, worker: int) -> None:
        """Another worker takes the place of a lost one: it owes no step."""
        rows = self._arena.spec.rows(self._node.blocks[worker])
        self._arena.have[rows] = self._arena.want[rows]
        self._flying[rows] = False

    def block_frames(self, block: range) -> list[memoryview]:
        """The rows of a block, after a reset."""
        rows = self._arena.spec.rows(block)
        return [frame_of(array[rows]) for array in results(self._arena)]

    def _frames(self, rows: RowIndex | None) -> list[memoryview]:
        if rows is None:
            return self._whole.answered
        return [frame_of(rows), *(frame_of(array[rows]) for array in (self._arena.have, *results(self._arena)))]

    def _rows(self, frame: Any) -> RowIndex:
        rows: RowIndex = array_of(frame, np.int32, (memoryview(frame).nbytes // 4,), "rows")
        if len(rows) and (rows.min() < 0 or rows.max() >= len(self._flying)):
            raise ProtocolError(f"rows up to {rows.max()} were asked for, but there are {len(self._flying)} here.")
        return rows

    def _new(self, rows: RowIndex | None, numbers: Any) -> Array:
        """The rows of a request that were not asked for with the same number before."""
        chosen = np.arange(len(self._flying)) if rows is None else rows
        asked = array_of(numbers, self._arena.want.dtype, (len(chosen),), "request numbers")
        new: Array = chosen[asked != self._arena.want[chosen]]
        return new

    def _workers_of(self, rows: Array) -> list[int]:
        first = self._arena.spec.first_slot
        starts = np.array([block.start - first for block in self._node.blocks])
        found: list[int] = np.unique(np.searchsorted(starts, rows, side="right") - 1).tolist()
        return found

    def _forget_shown(self, rows: Array) -> None:
        """Forget sent rows that are asked for again, with all that were sent together with them: the head has those."""
        if self._shown:
            asked = set(rows.tolist())
            self._shown = [(shown, report) for shown, report in self._shown if asked.isdisjoint(shown.tolist())]
