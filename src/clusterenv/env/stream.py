"""A stream: workers play fragment after fragment and never wait for the learner, unless it is too far behind.

The loss of a worker costs its own slots only: the others go on playing while another takes its place.

Every worker has a few buffers. It is told which to fill; the next order usually waits for it already when it has
finished one. A buffer goes back to its worker when its fragment has been copied into a batch. So a worker is at most
that many fragments ahead of the learner, and no fragment is lost or seen twice. Only where all buffers together hold
too little for a batch, because one is read in part or because workers are missing, they are emptied early.
"""

from __future__ import annotations

import collections
import logging
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError

from clusterenv.env.batch import assemble
from clusterenv.env.checks import check_flags
from clusterenv.env.turns import Pending
from clusterenv.errors import ConfigError, WorkersMissing
from clusterenv.node.base import Message

if TYPE_CHECKING:
    from types import TracebackType

    from clusterenv.env.batch import Batch, Piece
    from clusterenv.env.detached import Detached
    from clusterenv.env.turns import Turns
    from clusterenv.worker.loop import Reply

# How long one look for fragments may take before the workers are looked after.
_LOOK_S = 0.05
_TELL_EVERY_S = 10.0

_logger = logging.getLogger(__name__)


class Stream:
    """An iterator over batches. Close it, or let it go, before anything else is asked of the batch of environments.

    Args:
        detached: the attached policy.
        turns: guards the batch of environments, which is busy while the stream is open.
        owner: the batch of environments, which must live as long as the stream.
        steps: T, the length of a fragment.
        slots: how many slots make a batch.
        buffers: how many fragments a worker may be ahead.
        drop_oldest: when a worker is that far ahead, drop its oldest fragment instead of letting it wait.
        min_nodes: with fewer nodes nothing is handed over.
    """

    def __init__(
        self,
        detached: Detached,
        turns: Turns,
        *,
        owner: Any,
        steps: int,
        slots: int,
        buffers: int,
        drop_oldest: bool,
        min_nodes: int = 1,
    ) -> None:
        self._detached, self._turns, self._owner = detached, turns, owner
        self._min_nodes, self._told_s = min_nodes, 0.0
        self._short_since: float | None = None  # since when there are too few nodes
        self._steps, self._slots = steps, slots
        self._drop = drop_oldest and detached.engine.node.plays_ahead
        # So many fragments of a worker may have arrived. One that plays faster than we look has more all the time.
        self._looks = buffers if self._drop else 0
        self._queue: collections.deque[tuple[Piece, int | None]] = collections.deque()  # fragments with their buffers
        self._unread: collections.Counter[tuple[int, int]] = collections.Counter()  # slots left in (worker, buffer)
        self._orders: dict[int, list[int]] = {}  # the buffers that each worker has been told to fill
        self._playing: set[int] = set()  # workers that wait for orders, or carry one out
        self._closed = True  # until somebody plays: there is nothing to end before
        players = detached.players
        players.prepare(detached.fragment_spec(steps, buffers=buffers))
        players.begin()
        recovery = detached.engine.recovery
        recovery.allow_shrinking()
        try:
            if players.equip():
                detached.catch_up()
        except BaseException:
            recovery.elastic = False
            raise
        try:
            self._closed, turns.pending = False, Pending.STREAM
            self._start([worker for worker in players.everybody if recovery.is_here(worker)])
        except BaseException:
            self._end()
            raise

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Batch:
        try:
            batch = None if self._closed else self._next()
        except ClosedEnvironmentError:  # by another thread, whatever we met on the way
            batch = None
        if batch is None:
            raise StopIteration
        return batch

    def _next(self) -> Batch | None:
        """The next batch; None if the stream was closed meanwhile."""
        with self._turns:
            try:
                with self._detached.tally.time("wait"):
                    for _ in range(self._looks):  # what is too old is known once all that has arrived was seen
                        if not self._receive(0.0):
                            break
                    while (self._slots_ready() < self._slots or self._short_since is not None) and not self._closed:
                        self._receive(_LOOK_S)
                if not self._closed:
                    return self._batch()
            except BaseException as error:
                if not self._closed or not isinstance(error, Exception):
                    self._end()
                    raise
        return None

    @property
    def ready(self) -> bool:
        """Whether the next batch is there already, so that `next` would not wait. It looks, and waits for nobody."""
        if self._closed:
            return False
        with self._turns:
            try:
                self._receive(0.0)
            except BaseException:
                self._end()
                raise
        return not self._closed and self._short_since is None and self._slots_ready() >= self._slots

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or self._turns.closed or not self._turns.ours:
            return
        if not self._detached.engine.node.closed:  # by the end of the interpreter
            self._turns.when_free(self._end)

    def close(self) -> None:
        """Stop the workers in the middle of what they play. Fragments that were not read are gone."""
        if self._closed:
            return
        if self._turns.closed:
            self._closed = True
            return
        with self._turns:
            self._end()

    def abandon(self) -> None:
        """Tell the workers to stop, and wait for nobody."""
        if self._closed:
            return
        self._closed = True
        self._turns.stream_ended()
        self._detached.players.stop()
        for worker in sorted(self._playing):
            self._detached.engine.node.tell(worker, None)
            self._playing.discard(worker)

    def _end(self) -> None:
        if self._closed:
            return
        players, node = self._detached.players, self._detached.engine.node
        playing = sorted(self._playing)
        self._detached.engine.recovery.elastic = False
        try:
            self.abandon()
            for worker in players.wait(playing):
                # Who took the place of a lost one has begun its episodes: they go on, like those of all others.
                self._detached.engine.gather.mend(node.blocks[worker])
            players.forget_replacements()
        except BaseException:  # Ctrl-C, again
            self._turns.stream_ended(cut_short=not self._turns.closed)  # who closes the batch ends the workers
            for worker in self._playing:  # who was not told of the end would wait for orders for ever
                node.lose(worker, "the end of its stream was interrupted")
            raise
        node.played(0.0)  # what arrived too late
        self._queue.clear()

    def _start(self, workers: list[int]) -> None:
        """Send these workers on their way, with an order for each of their buffers."""
        for worker in workers:
            self._playing.add(worker)
            self._detached.engine.node.post({worker: Message("stream", ())})
            self._orders[worker] = []
            held = {buffer for owner, buffer in self._unread if owner == worker}
            for buffer in range(self._detached.players.fragments.spec.buffers):
                if buffer not in held:
                    self._order(worker, buffer)

    def _order(self, worker: int, buffer: int) -> None:
        self._detached.before_request()
        afresh = not self._orders[worker] and self._detached.players.begins_afresh(worker)
        self._orders[worker].append(buffer)
        self._detached.engine.node.tell(worker, (buffer, True, afresh))

    def _slots_ready(self) -> int:
        return sum(len(piece.slots) for piece, _ in self._queue)

    def _receive(self, limit_s: float) -> bool:
        """Take what arrives within the limit, and look after the workers. Returns whether anything did."""
        players, node = self._detached.players, self._detached.engine.node
        arrived = node.played(limit_s)
        for worker, reply in arrived:
            self._take(worker, reply)
        busy = [worker for worker, orders in self._orders.items() if orders]
        for worker in set(players.everybody) - set(busy):
            players.watch.forget(worker)
        players.lose_stuck(busy)
        for worker in players.replace_lost():
            self._orders[worker] = []
            self._playing.discard(worker)
        self._start(players.equip_replacements())
        self._make_room()
        self._check_nodes()
        return bool(arrived)

    def _make_room(self) -> None:
        """Nobody plays, since every buffer waits to be read, and yet that is too little for a batch: empty one."""
        players = self._detached.players
        waited_for = players.replacement_pending and not self._detached.engine.recovery.elastic
        if waited_for or self._slots_ready() >= self._slots or any(self._orders[worker] for worker in self._playing):
            return
        for index, (piece, buffer) in enumerate(self._queue):
            if buffer is not None and piece.worker in self._playing:
                self._queue[index] = piece.copied(), None
                self._mark_read(piece, buffer)
                return

    def _check_nodes(self) -> None:
        """With too few nodes nothing is handed over; after a while somebody has to know."""
        if not self._detached.engine.recovery.missing:
            self._short_since = None
            return
        self._detached.engine.recovery.raise_if_nobody_is_left()
        node, now = self._detached.engine.node, time.monotonic()
        here = sum(1 for workers in node.hosts if any(node.alive(worker) for worker in workers))
        self._short_since = (self._short_since or now) if here < self._min_nodes else None
        if self._short_since is None:
            return
        if now - self._told_s > _TELL_EVERY_S:
            self._told_s = now
            _logger.warning("%d of %d nodes are here; the stream waits for %d", here, len(node.hosts), self._min_nodes)
        limit_s = node.come_back_s
        if limit_s is not None and now - self._short_since > limit_s:
            hint = f"The stream needs min_nodes={self._min_nodes}."
            raise WorkersMissing(here, self._min_nodes, limit_s, hint, what="nodes")

    def _take(self, worker: int, reply: Reply) -> None:
        players = self._detached.players
        piece, fragment = players.piece(worker, reply)
        if fragment.steps < self._steps:
            return  # it was stopped on the way: the stream ends
        players.watch.forget(worker)
        self._orders[worker].remove(fragment.buffer)
        self._detached.engine.gather.count_block(piece.slots, fragment.steps)
        self._detached.arrived(piece, fragment)
        self._queue.append((piece, fragment.buffer))
        self._unread[worker, fragment.buffer] = len(piece.slots)
        if self._drop and not self._orders[worker]:
            self._drop_oldest(worker)

    def _drop_oldest(self, worker: int) -> None:
        for index, (piece, buffer) in enumerate(self._queue):
            if piece.worker == worker:
                del self._queue[index]
                self._detached.tally.dropped_steps += self._steps * len(piece.slots)
                self._mark_read(piece, buffer)
                return

    def _batch(self) -> Batch:
        """The fragments that arrived first, as many as make a batch; the last one may be split."""
        pieces: list[tuple[Piece, int | None]] = []
        missing = self._slots
        while missing:
            piece, buffer = self._queue.popleft()
            if len(piece.slots) > missing:
                piece, rest = piece.split(missing)
                self._queue.appendleft((rest, buffer))
            pieces.append((piece, buffer))
            missing -= len(piece.slots)
        detached = self._detached
        batch = assemble(
            [piece for piece, _ in pieces],
            None,
            detached.observation_space,
            epoch=detached.newest.epoch,
            newest=detached.newest.number,
            divergence=detached.divergence,
        )
        for piece, buffer in pieces:
            self._mark_read(piece, buffer)
        detached.handed_over(batch)
        return batch

    def _mark_read(self, piece: Piece, buffer: int | None) -> None:
        """These slots of a buffer have been read, or dropped; once all have, it can be filled again."""
        if buffer is None:
            return
        key = piece.worker, buffer
        self._unread[key] -= len(piece.slots)
        if self._unread[key] == 0:
            del self._unread[key]
            if piece.worker in self._playing:  # who takes the place of a lost one is told of all its buffers at once
                self._order(piece.worker, buffer)


def check_min_nodes(min_nodes: Any, nodes: int) -> None:
    """Refuse a number of nodes that can never be there."""
    if isinstance(min_nodes, bool) or not isinstance(min_nodes, (int, np.integer)) or not 1 <= min_nodes <= nodes:
        raise ConfigError(f"min_nodes={min_nodes!r} must be a whole number from 1 to the {nodes} nodes of the cluster.")


def check_stream(steps: Any, slots: Any, buffers: Any, num_envs: int, *, drop_oldest: Any = False) -> None:
    """Refuse what makes no stream."""
    for name, value, most in (("steps", steps, None), ("slots", slots, num_envs), ("buffers", buffers, None)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise ConfigError(f"{name}={value!r} must be a whole number.")
        if value < 1 or (most is not None and value > most):
            limit = "at least 1" if most is None else f"between 1 and num_envs={most}"
            raise ConfigError(f"{name}={value} must be {limit}.")
    check_flags(drop_oldest=drop_oldest)
    if drop_oldest and buffers < 2:
        raise ConfigError(
            "drop_oldest with buffers=1 would drop every fragment for the next. Use buffers of at least 2."
        )
