"""The node of this host: worker processes, reached through the arena and a channel each."""

from __future__ import annotations

import dataclasses
import logging
import multiprocessing
import os
import pickle
import select
import time
from typing import TYPE_CHECKING, Any

from clusterenv.amounts import parse_bytes
from clusterenv.cluster.restart import Fault
from clusterenv.config import usable_cores
from clusterenv.errors import LaunchError, ResultError
from clusterenv.node.base import Loss, Message
from clusterenv.node.board import Board
from clusterenv.node.handle import WorkerHandle
from clusterenv.node.here import Here
from clusterenv.node.starting import check_descriptors, pickled, raise_start_errors
from clusterenv.node.supervisor import LISTEN_S, Supervisor, search_path
from clusterenv.transport.arena import Command
from clusterenv.transport.channel import Channel, ChannelClosed, ChannelTimeout, pack, pack_by_value
from clusterenv.transport.wake import check_supported
from clusterenv.worker.loop import PLAYED, SETUP, Binding, Reply, Setup
from clusterenv.worker.report import Report, failure_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gymnasium import Space

    from clusterenv.config import Local
    from clusterenv.transport.arena import Arena
    from clusterenv.transport.shared import SharedArrays
    from clusterenv.worker.base import Block
    from clusterenv.worker.describe import BlockDescription

_logger = logging.getLogger(__name__)

# A waiting head looks this often whether the workers it waits for still live.
_LOOK_S = 0.05
# How long we wait to learn why a channel closed, and for a message that has been announced. A worker that reads nothing
# for as long is stuck.
_EXIT_S = 1.0
_FRAME_S = 30.0
# Beside one channel per worker: the control socket, the arena, and what starting a process takes for a moment.
_SPARE_DESCRIPTORS = 12


class LocalNode(Here):
    """Supervises the workers of this host; `spared` as in the supervisor."""

    def __init__(
        self,
        builders: Sequence[Callable[[], Block]],
        blocks: Sequence[range],
        cluster: Local,
        *,
        spared: bool = False,
    ) -> None:
        check_supported()
        check_descriptors(len(blocks), "workers", len(blocks) + _SPARE_DESCRIPTORS)
        self.blocks = blocks
        self._owner = os.getpid()
        self._cluster = cluster
        self._builds = [pickled(build) for build in builders]
        self._memory = parse_bytes("worker_memory", cluster.worker_memory) if cluster.worker_memory else None
        self._cores = sorted(os.sched_getaffinity(0))
        # Spinning takes a core from somebody, unless there is one that none of our workers needs.
        self._spare_core = usable_cores() > len(blocks)
        self._handles = [WorkerHandle(worker, slots) for worker, slots in enumerate(blocks)]
        self._built: dict[int, Reply] = {}  # what the first workers of all have said of their environments
        self._losses: list[Loss] = []
        self._arena: Arena | None = None
        self.closed = False
        self._bell_seen = 0
        self._report = Report()
        self._supervisor = Supervisor(cluster.threads, spared=spared)

    def start(self, limit_s: float | None) -> list[BlockDescription]:
        """Start every worker and wait until its environments are built."""
        self.launch(limit_s)
        return self._described(self.replies([handle.worker for handle in self._handles], limit_s))

    def launch(self, limit_s: float | None) -> None:
        """Start every worker; `started` tells what has become of them."""
        self._start_s, self._launched_s = limit_s, time.monotonic()
        for handle in self._handles:
            self._launch(handle)

    def started(self) -> list[BlockDescription] | None:
        """As `start`, of workers that were launched: None while one of them still builds. Waits for nobody."""
        waiting = [handle.worker for handle in self._handles if handle.worker not in self._built and not handle.lost]
        self._built.update(self.replies(waiting, 0.0))
        for worker in self._built:
            self._look(self._handles[worker])  # the channel of one that has ended since would wake us again and again
        over = self._start_s is not None and time.monotonic() - self._launched_s > self._start_s
        over = over or any(reply.failure or reply.error for reply in self._built.values())
        if not over and any(worker not in self._built and self.alive(worker) for worker in waiting):
            return None
        return self._described(self._built)

    def _described(self, replies: Mapping[int, Reply]) -> list[BlockDescription]:
        for handle in self._handles:
            if handle.worker not in replies:
                self.lose(handle.worker, f"no answer within {self._start_s} s")
        raise_start_errors(replies, self.losses(), len(self._handles), self._start_s)
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
        self._board = Board(arena, spare_core=self._spare_core)
        self._bell = arena.bell_signal(spare_core=self._spare_core)
        self._binding = Binding(arena.spec, observation_space, action_space, None)
        for handle in self._handles:
            fresh = None if seeds is None else tuple(seeds[handle.worker])
            self._give_arena(handle, dataclasses.replace(self._binding, fresh_seeds=fresh))

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
                if not actions[worker] or self._deliver(worker, pack_by_value(actions[worker]), command)
            ]
        self._board.ask(workers, command)

    def check_sendable(self, actions: Sequence[Any]) -> None:
        """Raise ResultError if actions that travel as messages cannot be pickled, before anything is asked for."""
        pack_by_value(actions)

    def wait(self, workers: Sequence[int], limit_s: float | None) -> list[int]:
        """Wait until these workers have answered or are lost; return those that are late."""
        end = None if limit_s is None else time.monotonic() + limit_s
        # Waiting for one after the other costs no more than waiting for all: when the first has answered, most have.
        while (worker := self._board.unanswered(workers)) is not None:
            self._go_on_waiting()
            left = _LOOK_S if end is None else min(_LOOK_S, end - time.monotonic())
            if self._board.wait_for(worker, max(0.0, left)) or self._look(self._handles[worker]):
                continue
            if end is not None and time.monotonic() >= end:
                late = [w for w in workers if self._board.unanswered([w]) is not None]
                return [w for w in late if not self._look(self._handles[w])]  # one that has ended is not late
        return []

    def wait_any(self, limit_s: float) -> bool:
        """Wait until the bell has rung since `listen`."""
        self._go_on_waiting()
        return self._bell.wait_while(self._bell_seen, min(limit_s, _LOOK_S), spin=self._spare_core)

    def listen(self) -> None:
        """Note how the bell stands."""
        self._bell_seen = self._bound().bell[0]

    def reports(self) -> Report:
        """Read every message that was announced."""
        for worker in self._board.announced():
            handle = self._handles[worker]
            while not handle.lost and self._board.unread(worker):
                self._receive(handle)
        report, self._report = self._report, Report()
        return report

    # Messages.

    def post(self, messages: Mapping[int, Message]) -> None:
        """Send each worker its message; each answers with one reply."""
        # Pickle everything before anything is sent: an argument that cannot travel must not leave half a request.
        packed = {worker: pack_by_value((message.name, message.arguments)) for worker, message in messages.items()}
        for worker, data in packed.items():
            handle = self._handles[worker]
            handle.reply, handle.played = None, []  # of a call that was given up
            try:
                if not handle.lost and self._deliver(worker, data, Command.MESSAGE):
                    self._board.ask([worker], Command.MESSAGE)
            except BaseException:
                self.lose(worker, "a message to it was interrupted")  # it has it, and may not know
                raise

    def lend(self, messages: Mapping[int, Message], memory: SharedArrays) -> None:
        """As `post`, with memory that the worker maps: its layout is added to the arguments, its descriptor follows."""
        waiting = list(messages)  # for the descriptor
        try:
            self.post({w: Message(m.name, (*m.arguments, memory.layout)) for w, m in messages.items()})
            while waiting:
                self._send_fd(self._handles[waiting[0]], memory.fd, "memory")
                waiting.pop(0)
        except ResultError:  # before anything was sent
            raise
        except BaseException:
            for worker in waiting:  # what comes next would be taken for the descriptor
                self.lose(worker, "the memory on its way to it was interrupted")
            raise

    def tell(self, worker: int, order: tuple[Any, ...] | None) -> None:
        """Give a streaming worker its next order, or None to end its stream."""
        handle = self._handles[worker]
        if not handle.lost:
            self._send_packed(handle, pack(order))

    def played(self, limit_s: float) -> list[tuple[int, Reply]]:
        """The fragments of streaming workers that have arrived; wait for the first at most `limit_s`."""
        self._go_on_waiting()
        poll = select.poll()
        handles = {handle.channel.fileno(): handle for handle in self._handles if not handle.lost}
        for fd in handles:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(limit_s * 1000):
            self._receive(handles[fd])
        taken = [(handle.worker, reply) for handle in self._handles for reply in handle.played]
        for handle in self._handles:
            handle.played = []
        return taken

    def incarnation(self, worker: int) -> int:
        """Another number for every process that takes this worker's place."""
        return self._handles[worker].token

    def replies(self, workers: Sequence[int], limit_s: float | None) -> dict[int, Reply]:
        """The replies of these workers that arrive within the limit; a lost worker has none."""
        end = None if limit_s is None else time.monotonic() + limit_s
        poll = select.poll()
        handles = {self._handles[worker].channel.fileno(): self._handles[worker] for worker in workers}
        for fd in handles:
            poll.register(fd, select.POLLIN)
        while any(handle.reply is None and not handle.lost for handle in handles.values()):
            self._go_on_waiting()
            for handle in handles.values():
                if not handle.bound:
                    handle.push()
            left = None if end is None else end - time.monotonic()
            ready = poll.poll(1000 * (LISTEN_S if left is None else min(LISTEN_S, max(0.0, left))))
            if not ready and left is not None and left <= 0:
                break
            self._supervisor.listen()
            for fd, _ in ready:
                self._receive(handles[fd])
                if handles[fd].lost or handles[fd].reply is not None:
                    poll.unregister(fd)
        return self._take_replies(handles.values())

    def _take_replies(self, handles: Iterable[WorkerHandle]) -> dict[int, Reply]:
        # Taken only now: an interrupt while others are waited for must not lose those that have arrived.
        taken = {}
        for handle in handles:
            if handle.reply is not None:
                taken[handle.worker], handle.reply = handle.reply, None
        return taken

    def _receive(self, handle: WorkerHandle) -> None:
        """Read one message of a worker and put it where it belongs."""
        try:
            packed = handle.channel.receive_packed(_FRAME_S)
        except (ChannelClosed, ChannelTimeout) as error:
            self._gone(handle, f"its channel failed: {error}")
            return
        message = self._loaded(handle, packed)
        if isinstance(message, Report):
            self._report.extend(message)
            self._board.note_read(handle.worker)
        elif message.request == PLAYED:
            handle.played.append(message)
        elif message.request == (self._board.asked(handle.worker) if handle.bound else SETUP):
            handle.reply = message
        # Anything else answers a call that was given up.

    def _loaded(self, handle: WorkerHandle, packed: bytes) -> Report | Reply:
        """Unpickle a message. One that cannot be loaded here still counts as a report or as a reply."""
        try:
            message: Report | Reply = pickle.loads(packed)
            return message
        except Exception as error:  # classes of the user's may do anything when they are loaded
            text = f"cannot be loaded in the head: {type(error).__name__}: {error}"
            if handle.bound and self._board.unread(handle.worker):
                problem = failure_of(ResultError(f"what the worker reported {text}"), handle.slots.start, "step")
                return Report(failures=[problem])
            request = self._board.asked(handle.worker) if handle.bound else SETUP
            return Reply(error=f"the result {text}", request=request)

    # Losses and replacements.

    def look(self) -> None:
        """See whether the workers still live."""
        for handle in self._handles:
            self._look(handle)

    def losses(self) -> list[Loss]:
        """The workers lost since they were last asked for."""
        losses, self._losses = self._losses, []
        return losses

    def lose(self, worker: int, cause: str) -> None:
        """Kill a worker and count it as lost."""
        handle = self._handles[worker]
        if not handle.lost:
            self._supervisor.kill(handle.token)
            self._record(handle, cause)

    def replace(self, worker: int, seeds: Sequence[int | None], *, patient: bool = False) -> None:
        """Start a fresh worker in the place of a lost one; do not wait for it."""
        handle = self._handles[worker]
        # The old process should be gone before another writes to the same rows; one stuck in the kernel writes none.
        if self._supervisor.exited(handle.token, _EXIT_S) is None:
            _logger.warning("worker %d does not end although it was killed", worker)
        self._supervisor.forget(handle.token)
        handle.channel.close()
        self._launch(handle)
        handle.started_s = time.monotonic()
        handle.fresh_seeds = tuple(seeds)

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
            if worker not in found and (late or self._look(self._handles[worker])):
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
                self._record(handle, "its environments could not be built")
            else:
                self._give_arena(handle, dataclasses.replace(self._binding, fresh_seeds=handle.fresh_seeds))
        return found

    def _lose_unbuilt(self, worker: int, limit_s: float | None) -> None:
        self._handles[worker].started_s = None
        self.lose(worker, f"its environments were not built within {limit_s} s")

    def alive(self, worker: int) -> bool:
        """Whether a worker is not lost."""
        return not self._handles[worker].lost

    def descriptors(self) -> list[int]:
        """What becomes readable when a worker has sent something, or has ended."""
        return [handle.channel.fileno() for handle in self._handles if not handle.lost]

    def pids(self) -> list[int | None]:
        """The process of each worker, or None where there is none."""
        return [self._supervisor.pid(handle.token) for handle in self._handles]

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
            self._supervisor.close()
            for handle in self._handles:
                handle.close()
            if self._arena is not None:
                self._arena.close()

    # Inside.

    def _launch(self, handle: WorkerHandle) -> None:
        channel, theirs = Channel.pair()
        with theirs:
            try:
                token = self._supervisor.start(theirs, self._cluster.core_for(handle.worker, self._cores))
            except BaseException:
                channel.close()
                raise
        handle.renew(channel, token)
        build, authkey = self._builds[handle.worker], bytes(multiprocessing.current_process().authkey)
        setup = Setup(handle.worker, search_path(), self._spare_core, build, self._memory, authkey)
        try:
            channel.send_later(pack(setup))  # a large one goes out while we wait: it reads when it has been forked
        except ChannelClosed as error:
            self._gone(handle, f"it did not take its set-up: {error}")

    def _give_arena(self, handle: WorkerHandle, binding: Binding) -> None:
        self._board.welcome(handle.worker)
        handle.bound = True
        try:
            handle.channel.send(binding, _FRAME_S)
        except (ChannelClosed, ChannelTimeout) as error:
            self._gone(handle, f"it did not take the arena: {error}")
        self._send_fd(handle, self._bound().fd, "arena")

    def _send_fd(self, handle: WorkerHandle, fd: int, what: str) -> None:
        if not handle.lost:
            try:
                handle.channel.send_fd(fd, _FRAME_S)
            except (ChannelClosed, ChannelTimeout) as error:
                self._gone(handle, f"it did not take the {what}: {error}")

    def _deliver(self, worker: int, packed: bytes, command: Command) -> bool:
        """Send a worker a message; return whether it is still to be asked.

        It is asked on the way if the message is too large for the socket: one that sleeps reads nothing. A small one
        comes first, so that Ctrl-C in between leaves nobody awake who waits for it.
        """
        before = self._board.asked(worker)
        sent = self._send_packed(self._handles[worker], packed, lambda: self._board.ask([worker], command))
        return sent and self._board.asked(worker) == before

    def _send_packed(self, handle: WorkerHandle, packed: bytes, wake: Callable[[], None] = lambda: None) -> bool:
        try:
            # It may be sending, too, what was given up or not yet fetched, and reads when we have taken that.
            handle.channel.send_waking(packed, _FRAME_S, wake, lambda: self._receive(handle))
        except (ChannelClosed, ChannelTimeout) as error:
            self._gone(handle, str(error))
            return False
        except BaseException:
            self.lose(handle.worker, "a message to it was interrupted")  # it may have got half of it
            raise
        return not handle.lost

    def _look(self, handle: WorkerHandle) -> bool:
        """Whether a worker is lost; learn of its end if it has just ended, and see that it does not sleep over work."""
        if handle.lost:
            return True
        ended = self._supervisor.exited(handle.token)
        if ended is not None:
            self._record(handle, ended.describe())
        elif handle.bound:
            self._board.wake_again(handle.worker)
        return ended is not None

    def _gone(self, handle: WorkerHandle, cause: str) -> None:
        """A channel failed: find out why, and make sure that the process is gone."""
        ended = self._supervisor.exited(handle.token, _EXIT_S)
        if ended is None:
            self._supervisor.kill(handle.token)
        self._record(handle, cause if ended is None else ended.describe())

    def _record(self, handle: WorkerHandle, cause: str) -> None:
        if handle.lost:
            return
        handle.lost = True
        slot = torn = None
        reported, fault = True, Fault.CRASH
        if handle.bound:
            if grown := self._board.outgrown(handle.worker):
                cause = f"its memory grew to {grown:,} MiB, and worker_memory is {self._cluster.worker_memory}"
                fault = Fault.MEMORY
            slot, torn = self._board.position(handle.worker)
            reported = not self._board.unread(handle.worker)
            self._board.excuse(handle.worker)
        self._losses.append(Loss(handle.worker, cause, slot, torn, reported, fault))

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
