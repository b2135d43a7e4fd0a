"""The node of this host: worker processes, reached through the arena and a channel each."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import TYPE_CHECKING, Any

from clusterenv.errors import LaunchError
from clusterenv.node.base import Message
from clusterenv.node.board import Board
from clusterenv.node.exchange import FRAME_S, Exchange
from clusterenv.node.here import Here
from clusterenv.node.starting import raise_start_errors
from clusterenv.node.workers import Workers
from clusterenv.transport.channel import ChannelClosed, ChannelTimeout, pack_by_value
from clusterenv.worker.loop import Binding

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gymnasium import Space

    from clusterenv.config import Local
    from clusterenv.node.base import Incarnation, Loss
    from clusterenv.node.handle import WorkerHandle
    from clusterenv.transport.arena import Arena, Command
    from clusterenv.transport.shared import SharedArrays
    from clusterenv.worker.base import Block
    from clusterenv.worker.describe import BlockDescription
    from clusterenv.worker.loop import Reply
    from clusterenv.worker.report import Report

# A waiting head looks this often whether the workers it waits for still live.
_LOOK_S = 0.05


class LocalNode(Here):
    """The words of `node.base` for worker processes: arena, processes (`Workers`) and messages (`Exchange`) together.

    Args:
        builders: what builds the block of each worker.
        blocks: the slots of each worker.
        cluster: how the workers are set up.
        spared: whether workers ignore the signals by which an engine ends a node, because the node ends them itself.
    """

    def __init__(
        self,
        builders: Sequence[Callable[[], Block]],
        blocks: Sequence[range],
        cluster: Local,
        *,
        spared: bool = False,
    ) -> None:
        self.blocks = blocks
        self.closed = False
        self._owner = os.getpid()
        self._built: dict[int, Reply] = {}  # what the first workers of all have said of their environments
        self._arena: Arena | None = None
        self._bell_seen = 0
        self._workers = Workers(builders, blocks, cluster, spared=spared)
        self._handles = self._workers.handles
        self._exchange = Exchange(self._workers)

    def start(self, limit_s: float | None) -> list[BlockDescription]:
        """Start every worker and wait until its environments are built."""
        self.launch(limit_s)
        return self._described(self.replies([handle.worker for handle in self._handles], limit_s))

    def launch(self, limit_s: float | None) -> None:
        """Start every worker; `started` tells what has become of them."""
        self._start_s, self._launched_s = limit_s, time.monotonic()
        for handle in self._handles:
            self._workers.launch(handle)

    def started(self) -> list[BlockDescription] | None:
        """As `start`, of workers that were launched: None while one of them still builds. Waits for nobody."""
        waiting = [handle.worker for handle in self._handles if handle.worker not in self._built and not handle.lost]
        self._built.update(self.replies(waiting, 0.0))
        for worker in self._built:
            # Learn of its end if it has ended since: its channel would wake us again and again.
            self._workers.look(self._handles[worker])
        over = self._start_s is not None and time.monotonic() - self._launched_s > self._start_s
        over = over or any(reply.failure or reply.error for reply in self._built.values())
        if not over and any(worker not in self._built and self.alive(worker) for worker in waiting):
            return None
        return self._described(self._built)

    def _described(self, replies: Mapping[int, Reply]) -> list[BlockDescription]:
        for handle in self._handles:
            if handle.worker not in replies:
                self._workers.look(handle)
        ended = self.losses()
        for handle in self._handles:
            if handle.worker not in replies:
                self.lose(handle.worker, f"no answer within {self._start_s} s")
        raise_start_errors(replies, ended, self.losses(), self.blocks, self._start_s)
        return [replies[handle.worker].value for handle in self._handles]

    def bind(
        self,
        arena: Arena,
        observation_space: Space[Any],
        action_space: Space[Any],
        seeds: Mapping[int, Sequence[int | None]] | None = None,
    ) -> None:
        """Give the workers the arena; `seeds` if they take the place of workers that were lost with their host."""
        self._arena = arena
        self._board = self._workers.board = Board(arena, spare_core=self._workers.spare_core)
        self._bell = arena.bell_signal(spare_core=self._workers.spare_core)
        self._binding = Binding(arena.spec, observation_space, action_space, None)
        for handle in self._handles:
            fresh = None if seeds is None else tuple(seeds[handle.worker])
            self._give_arena(handle, dataclasses.replace(self._binding, fresh_seeds=fresh))

    def _give_arena(self, handle: WorkerHandle, binding: Binding) -> None:
        self._board.welcome(handle.worker)
        handle.bound = True
        try:
            handle.channel.send(binding, FRAME_S)
        except (ChannelClosed, ChannelTimeout) as error:
            self._workers.channel_failed(handle, f"it did not take the arena: {error}")
        self._exchange.send_fd(handle, self._bound().fd, "arena")

    # Steps.

    def request(
        self, command: Command, workers: Sequence[int], actions: Mapping[int, Mapping[int, Any]] | None
    ) -> None:
        """Wake these workers."""
        if actions is not None:
            # A worker whose slots are all lost has no action: it would take an empty message for the next one.
            workers = [
                worker
                for worker in workers
                if not actions[worker] or self._exchange.deliver(worker, pack_by_value(actions[worker]), command)
            ]
        self._board.ask(workers, command)

    def check_sendable(self, actions: Sequence[Any]) -> None:
        """Raise ResultError if actions that travel as messages cannot be pickled, before anything is asked for."""
        pack_by_value(actions)

    def wait(self, workers: Sequence[int], limit_s: float | None) -> list[int]:
        """Wait until these workers have answered or are lost; return those that are late."""
        end = None if limit_s is None else time.monotonic() + limit_s
        self.listen()  # before looking, so that a ring in between is heard
        while self._board.unanswered(workers) is not None:
            left = _LOOK_S if end is None else end - time.monotonic()
            rang = self.wait_any(max(0.0, left))
            self.listen()
            if not rang:
                # All of them: who has ended keeps the others from being the last to answer. One that has is not late.
                late = [w for w in workers if self._board.unanswered([w]) is not None]
                late = [w for w in late if not self._workers.look(self._handles[w])]
                if late and left <= 0:
                    return late
        return []

    def wait_any(self, limit_s: float) -> bool:
        """Wait until the bell has rung since `listen`."""
        self._go_on_waiting()
        return self._bell.wait_while(self._bell_seen, min(limit_s, _LOOK_S), spin=self._workers.spare_core)

    def listen(self) -> None:
        """Note how the bell stands."""
        self._bell_seen = self._bound().bell[0]

    @property
    def reported(self) -> Report:
        """What the workers have reported, until it is handed over."""
        return self._exchange.reported

    @reported.setter
    def reported(self, report: Report) -> None:
        self._exchange.reported = report

    def reports(self) -> Report:
        """Read every message that was announced; returns `reported`."""
        return self._exchange.reports()

    # Messages.

    def post(self, messages: Mapping[int, Message]) -> None:
        """Send each worker its message; each answers with one reply."""
        self._exchange.post(messages)

    def lend(self, messages: Mapping[int, Message], memory: SharedArrays) -> None:
        """As `post`, with memory that the worker maps: its layout is added to the arguments, its descriptor follows."""
        self._exchange.lend(messages, memory)

    def tell(self, worker: int, order: tuple[Any, ...] | None) -> None:
        """Give a streaming worker its next order, or None to end its stream."""
        self._exchange.tell(worker, order)

    def played(self, limit_s: float) -> list[tuple[int, Reply]]:
        """The fragments of streaming workers that have arrived; wait for the first at most `limit_s`."""
        self._go_on_waiting()
        return self._exchange.played(limit_s)

    def replies(self, workers: Sequence[int], limit_s: float | None) -> dict[int, Reply]:
        """The replies of these workers that arrive within the limit; a lost worker has none."""
        return self._exchange.replies(workers, limit_s, self._go_on_waiting)

    def descriptors(self) -> list[int]:
        """What becomes readable when a worker has sent something, or has ended."""
        return [handle.channel.fileno() for handle in self._handles if not handle.lost]

    # Losses and replacements.

    def look(self) -> None:
        """See whether the workers still live."""
        self._workers.look_at_all()

    @property
    def has_losses(self) -> bool:
        """Whether a worker was lost since they were last asked for."""
        return self._workers.has_losses

    def losses(self) -> list[Loss]:
        """The workers lost since they were last asked for."""
        return self._workers.losses()

    def lose(self, worker: int, cause: str) -> None:
        """Kill a worker and count it as lost."""
        self._workers.lose(worker, cause)

    def replace(self, worker: int, seeds: Sequence[int | None], *, patient: bool = False) -> None:
        """Start a fresh worker in the place of a lost one; do not wait for it."""
        self._workers.relaunch(worker, seeds)

    def ready(self, workers: Sequence[int], limit_s: float | None) -> dict[int, Reply]:
        """Wait for replacements to be built; return what went wrong with those that could not be."""
        waiting = [worker for worker in workers if self._handles[worker].started_s is not None]
        found = self._begin(self.replies(waiting, limit_s)) if waiting else {}
        for worker in waiting:
            if worker not in found:
                self._lose_unbuilt(worker, limit_s)
        return {worker: problem for worker, problem in found.items() if problem is not None}

    def built(self, workers: Sequence[int]) -> dict[int, Reply | None]:
        """The replacements that are there by now, each with what went wrong, or None. Waits for nobody."""
        waiting = [worker for worker in workers if self._handles[worker].started_s is not None]
        found = self._begin(self.replies(waiting, 0.0)) if waiting else {}
        for worker in waiting:
            since, limit_s = self._handles[worker].started_s, self._start_s
            late = since is not None and limit_s is not None and time.monotonic() - since > limit_s
            if worker not in found and (late or self._workers.look(self._handles[worker])):
                self._lose_unbuilt(worker, limit_s)
        return found

    def _begin(self, replies: Mapping[int, Reply]) -> dict[int, Reply | None]:
        """Give those that have built their environments the arena."""
        found: dict[int, Reply | None] = {}
        for worker, reply in replies.items():
            handle = self._handles[worker]
            handle.started_s = None
            found[worker] = reply if reply.failure or reply.error else None
            if found[worker] is not None:
                self._workers.count_as_lost(handle, "its environments could not be built")
            else:
                self._give_arena(handle, dataclasses.replace(self._binding, fresh_seeds=handle.fresh_seeds))
        return found

    def _lose_unbuilt(self, worker: int, limit_s: float | None) -> None:
        self._handles[worker].started_s = None
        self.lose(worker, f"its environments were not built within {limit_s} s")

    def alive(self, worker: int) -> bool:
        """Whether a worker is not lost."""
        return not self._handles[worker].lost

    def incarnation(self, worker: int) -> Incarnation:
        """Another one for every process that takes this worker's place."""
        return 0, self._handles[worker].token

    def pids(self) -> list[int | None]:
        """The process of each worker, or None where there is none."""
        return self._workers.pids()

    def close(self, limit_s: float | None) -> None:
        """Ask the workers to close, wait within the limit, then end everything."""
        if self.closed:
            return
        try:
            # After a fork of the head the workers are still the parent's: only our copies of the descriptors go.
            if os.getpid() == self._owner and (limit_s is None or limit_s > 0):
                self._close_gently(limit_s)
        finally:  # also after Ctrl-C
            self.closed = True
            self._workers.close()
            if self._arena is not None:
                self._arena.close()

    def _close_gently(self, limit_s: float | None) -> None:
        end = None if limit_s is None else time.monotonic() + limit_s
        busy = [handle.worker for handle in self._handles if handle.bound and not handle.lost]
        closing: list[int] = []
        # Who has nothing to do closes while the others are waited for, and has the whole limit for it.
        for patience_s in (0.0, limit_s):
            late = self.wait(busy, patience_s) if busy else []
            free = [worker for worker in busy if worker not in late and not self._handles[worker].lost]
            self.post({worker: Message("close", ()) for worker in free})
            busy, closing = late, closing + free
        self.replies(closing, None if end is None else max(0.05, end - time.monotonic()))

    def _bound(self) -> Arena:
        if self._arena is None:
            raise LaunchError("the node has no arena yet; call bind() first")
        return self._arena
