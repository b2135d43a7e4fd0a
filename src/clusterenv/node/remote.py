"""Nodes on other hosts, as the head uses them: the words of `node.base`, turned into messages and back.

Everything happens in the caller's thread. A call that waits takes messages from the socket and puts each where it
belongs: rows into the arena, fragments into their memory, replies and losses into their lists. So a message is never
handled while the user's own code runs.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

from clusterenv.errors import LaunchError, ProtocolError
from clusterenv.node.base import Loss, Message
from clusterenv.node.building import ask_to_bind, ask_to_build
from clusterenv.node.joining import Joining
from clusterenv.node.lending import Lending
from clusterenv.node.records import CODEC, attachment_to_data, pack_message, unpack_reply, unpack_report
from clusterenv.node.rows import copy_block, copy_rows, living, step_frames, unanswered
from clusterenv.node.starting import raise_remote_start_error
from clusterenv.transport.arena import Command
from clusterenv.wire import messages as m
from clusterenv.worker.actor import Attachment, Fragment
from clusterenv.worker.loop import Reply
from clusterenv.worker.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gymnasium import Space

    from clusterenv.clusters import Remote
    from clusterenv.launchers.base import Launcher
    from clusterenv.node.host import Host
    from clusterenv.sync.codec import Decoded, Encoded
    from clusterenv.transport.arena import Arena
    from clusterenv.transport.fragments import Fragments
    from clusterenv.transport.shared import SharedArrays
    from clusterenv.worker.describe import BlockDescription

_logger = logging.getLogger(__name__)

# How often a waiting head looks at the clock, and after which silence it asks whether a node is gone.
_LOOK_S, _SUSPECT_S = 0.25, 0.5
# A request that was not answered for this long goes out again: it, or its answer, may have been lost.
_AGAIN_S = 5.0
# For memory that a node makes once its environments are built, and for the last words of a worker that we end.
_MEMORY_S, _LAST_WORDS_S = 60.0, 1.0


class RemoteNode:
    """All nodes of a cluster on other hosts."""

    def __init__(self, order: Any, num_envs: int, cluster: Remote, launcher: Launcher | None = None) -> None:
        self.closed = False
        self.blocks: list[range] = []
        self._owner, self._order, self._num_envs = os.getpid(), order, num_envs
        self._joining = Joining(cluster, launcher)
        self._hosts: list[Host] = []
        self._host_of: list[Host] = []  # by worker
        self._alive: list[bool] = []
        self._pids: list[int | None] = []
        self._posted: dict[int, int] = {}  # workers that owe a reply, with the number of the request
        self._replies: dict[int, Reply] = {}
        self._played: list[tuple[int, Reply]] = []
        self._problems: dict[int, Reply | None] = {}  # of replacements
        self._losses: list[Loss] = []
        self._report = Report()
        self._stepping: set[int] = set()  # hosts in lock step
        self._lending = Lending(self._joining.forget_weights)
        self._looked_s = self._pumped_s = time.monotonic()
        self._arena: Arena | None = None

    # Start.

    def start(self, limit_s: float | None) -> list[BlockDescription]:
        """Launch the nodes, wait until all have joined, and let each build its share."""
        self._hosts, self.blocks = self._joining.gather(self._num_envs)
        self._host_of = [host for host in self._hosts for _ in host.workers]
        self._alive = [True] * len(self.blocks)
        self._pids = [None] * len(self.blocks)
        found: dict[int, Any] = {}
        for host in self._hosts:
            ask_to_build(host, self._order, limit_s, found)
        self._until(lambda: len(found) == len(self._hosts), limit_s, "build their environments")
        for host in self._hosts:
            raise_remote_start_error(host.name, found[host.index])
        return [each for host in self._hosts for each in found[host.index]]

    def bind(self, arena: Arena, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Let every node make its own arena for these spaces."""
        self._arena, self._spaces = arena, (observation_space, action_space)
        bound: dict[int, list[int | None]] = {}
        for host in self._hosts:
            ask_to_bind(host, self._spaces, None, bound)
        self._until(lambda: len(bound) == len(self._hosts), _MEMORY_S, "make their memory")
        self._pids = [pid for host in self._hosts for pid in bound[host.index]]

    # Steps.

    def request(
        self, command: Command, workers: Sequence[int], actions: Mapping[int, Mapping[int, Any]] | None
    ) -> None:
        """Send each node the rows that it shall step, in one message."""
        arena, lock_step = self._bound(), command is not Command.SEND
        for host in {id(self._host_of[worker]): self._host_of[worker] for worker in workers}.values():
            if host.lost:
                continue
            whole = command is Command.STEP and all(self._alive[worker] for worker in host.workers)
            frames = step_frames(
                arena,
                host.slots,
                whole=whole,
                alive=living(host.blocks, [self._alive[worker] for worker in host.workers]),
            )
            if not whole and not frames[0].nbytes and not lock_step:
                continue
            packed = b""
            if actions is not None:
                packed = CODEC.pack({worker - host.workers.start: dict(actions[worker]) for worker in host.workers})
            host.ask(m.Step, self._stepped, frames, lock_step=lock_step, whole=whole, objects=packed)
            if lock_step:
                self._stepping.add(host.index)

    def check_attachable(self, attachment: Attachment) -> None:
        """Raise ConfigError if this policy would have to travel as code."""
        attachment_to_data(attachment)

    def check_sendable(self, actions: Sequence[Any]) -> None:
        """Raise ResultError if actions that travel as messages are no plain data, before anything is asked for."""
        CODEC.pack(list(actions))

    def wait(self, workers: Sequence[int], limit_s: float | None) -> list[int]:
        """Wait until these workers have answered or are lost; return those that are late."""
        end = None if limit_s is None else time.monotonic() + limit_s
        while self._stepping or self._owes(workers):
            left = _LOOK_S if end is None else end - time.monotonic()
            if not self._pump(left) and left <= 0:
                return self._owes(workers)
        return []

    def _owes(self, workers: Sequence[int]) -> list[int]:
        late = set() if self._arena is None else unanswered(self._arena, self.blocks)
        return [worker for worker in workers if self._alive[worker] and (worker in self._posted or worker in late)]

    def wait_any(self, limit_s: float) -> bool:
        """Take the next message."""
        return self._pump(limit_s)

    def listen(self) -> None:
        """Take what has arrived."""
        while self._pump(0.0):
            pass

    def reports(self) -> Report:
        """What has been reported since the last look."""
        report, self._report = self._report, Report()
        return report

    # Messages.

    def post(self, messages: Mapping[int, Message]) -> None:
        """Send each worker its message; each answers with one reply."""
        packed = {worker: pack_message(message) for worker, message in messages.items()}
        for worker, data in packed.items():
            self._replies.pop(worker, None)
            host = self._host_of[worker]
            if self._alive[worker]:
                mine, replied = worker - host.workers.start, self._replied(worker, messages[worker])
                self._posted[worker] = host.ask(m.Post, replied, worker=mine, message=data)

    def _replied(self, worker: int, message: Message) -> Callable[[m.Answer, Sequence[Any]], None]:
        results = len(message.arguments[0]) if message.name == "call" else None

        def take(answer: m.Answer, frames: Sequence[Any]) -> None:
            if self._posted.get(worker) != answer.number:
                return  # a call that was given up
            if answer.error or answer.value:
                self._replies[worker] = self._reply(worker, message.name, answer, frames, results)
            del self._posted[worker]  # last: an answer that was interrupted on the way comes again

        return take

    def _reply(
        self, worker: int, name: str, answer: m.Answer, frames: Sequence[Any], results: int | None = None
    ) -> Reply:
        if answer.error:
            return Reply(error=answer.error)
        reply = unpack_reply(answer.value, self.blocks[worker], name, results)
        if isinstance(reply.value, Fragment):
            self._lending.take_fragment(self._bound(), self.blocks[worker], reply.value, frames)
        elif isinstance(reply.value, Report):
            copy_block(self._bound(), self.blocks[worker], frames)
        return reply

    def lend(self, messages: Mapping[int, Message], memory: SharedArrays) -> None:
        """As `post`; every node makes memory of its own for its workers, in the place of this."""
        number = self._lending.number_of(memory)
        by_host: dict[int, list[int]] = {}
        for worker in messages:
            if self._alive[worker]:
                by_host.setdefault(self._host_of[worker].index, []).append(worker)
        for index, workers in by_host.items():
            host, message = self._hosts[index], messages[workers[0]]
            data = CODEC.pack(self._lending.data_of(message, memory))
            mine = [worker - host.workers.start for worker in workers]
            asked = host.ask(m.Lend, self._lent(host), workers=mine, name=message.name, memory=number, message=data)
            for worker in workers:
                self._replies.pop(worker, None)
                self._posted[worker] = asked
            self._lending.lent(host, number)

    def _lent(self, host: Host) -> Callable[[m.Answer, Sequence[Any]], None]:
        def take(answer: m.Answer, frames: Sequence[Any]) -> None:
            waiting = [worker for worker in host.workers if self._posted.get(worker) == answer.number]
            replies = {} if answer.error else CODEC.unpack(answer.value)
            for worker in waiting:
                del self._posted[worker]
                mine = worker - host.workers.start
                if answer.error:
                    self._replies[worker] = Reply(error=answer.error)
                elif mine in replies:
                    self._replies[worker] = replies[mine]

        return take

    def tell(self, worker: int, order: tuple[Any, ...] | None) -> None:
        """Give a streaming worker its next order, or None to end its stream."""
        if not self._alive[worker]:
            return
        host = self._host_of[worker]

        def played(answer: m.Answer, frames: Sequence[Any]) -> None:
            if answer.error or answer.value:
                self._played.append((worker, self._reply(worker, "play", answer, frames)))

        host.ask(m.Tell, played, worker=worker - host.workers.start, order=order)

    def played(self, limit_s: float) -> list[tuple[int, Reply]]:
        """The fragments that have arrived; wait for the first at most `limit_s`."""
        if not self._played:
            self._pump(limit_s)
        while self._pump(0.0):
            pass
        played, self._played = self._played, []
        return [(worker, reply) for worker, reply in played if self._alive[worker]]

    def halt(self, fragments: Fragments) -> None:
        """Whoever plays stops after the step that it is in."""
        for host in self._hosts:
            host.tell(m.Halt())

    def replies(self, workers: Sequence[int], limit_s: float | None) -> dict[int, Reply]:
        """The replies of these workers that arrive within the limit; a lost worker has none."""
        end = None if limit_s is None else time.monotonic() + limit_s
        while any(worker not in self._replies and worker in self._posted and self._alive[worker] for worker in workers):
            left = _LOOK_S if end is None else end - time.monotonic()
            if not self._pump(left) and left <= 0:
                break
        else:
            self._pump(0.0)  # nobody owes anything: why, may be on its way
        return {worker: self._replies.pop(worker) for worker in workers if worker in self._replies}

    # Weights.

    @property
    def hosts(self) -> list[range]:
        """The workers of each host."""
        return [host.workers for host in self._hosts]

    def host_life(self, host: int) -> int:
        """Another number whenever the host may have lost the weights that it was given."""
        return self._joining.life(host)

    def may_give(self, host: int) -> bool:
        """Whether the host has taken the last weights that it was given."""
        return not self._hosts[host].giving and not self._hosts[host].lost

    def wait_taken(self, limit_s: float | None) -> None:
        """Wait until every host that is not lost has taken the last weights that it was given."""
        end = None if limit_s is None else time.monotonic() + limit_s
        while any(host.giving and not host.lost for host in self._hosts):
            left = _LOOK_S if end is None else end - time.monotonic()
            if not self._pump(left) and left <= 0:
                return

    def give(self, host: int, memory: SharedArrays, encoded: Encoded, decoded: Decoded) -> None:
        """Send weights to a host; once its policy is there, if that is still on its way."""
        self._lending.give(self._hosts[host], memory, encoded)

    # Losses and replacements.

    def look(self) -> None:
        """Take what has arrived, and see who is silent."""
        self.listen()

    def losses(self) -> list[Loss]:
        """The workers lost since the last look."""
        losses, self._losses = self._losses, []
        return losses

    def lose(self, worker: int, cause: str) -> None:
        """End a worker, and wait a moment for its last words: in which slot it was."""
        if not self._alive[worker]:
            return
        host = self._host_of[worker]
        host.tell(m.Lose(worker=worker - host.workers.start, cause=cause))
        end = time.monotonic() + _LAST_WORDS_S
        while self._alive[worker] and time.monotonic() < end:
            self._pump(end - time.monotonic())
        self._record(worker, Loss(worker, cause, None, None))

    def _record(self, worker: int, loss: Loss) -> None:
        if self._alive[worker]:
            self._alive[worker] = False
            self._pids[worker] = None
            self._posted.pop(worker, None)
            self._losses.append(loss)

    def replace(self, worker: int, seeds: Sequence[int | None]) -> None:
        """Start a fresh worker in the place of a lost one; do not wait for it."""
        host = self._host_of[worker]
        mine = worker - host.workers.start
        if host.lost:
            self._joining.replace(host, mine, seeds)
            return
        host.lives[mine] += 1

        def replaced(answer: m.Answer, frames: Sequence[Any]) -> None:
            if answer.error:
                self._problems[worker] = Reply(error=answer.error)
                return
            problem, pid = CODEC.unpack(answer.value)
            self._problems[worker] = problem
            self._pids[worker] = pid
            self._alive[worker] = problem is None

        host.ask(m.Replace, replaced, worker=mine, seeds=list(seeds), limit_s=60.0)

    def ready(self, workers: Sequence[int], limit_s: float | None) -> dict[int, Reply]:
        """Wait for replacements to be built; return what went wrong with those that could not be."""
        self._bring_back(limit_s)
        end = None if limit_s is None else time.monotonic() + limit_s
        waiting = [worker for worker in workers if not self._alive[worker] and not self._host_of[worker].lost]
        while any(worker not in self._problems for worker in waiting if not self._host_of[worker].lost):
            left = _LOOK_S if end is None else end - time.monotonic()
            if not self._pump(left) and left <= 0:
                break
        problems = {worker: self._problems.pop(worker, None) for worker in workers}
        for worker in waiting:
            if problems[worker] is None and not self._alive[worker]:
                self._losses.append(Loss(worker, f"its environments were not built within {limit_s} s", None, None))
        return {worker: problem for worker, problem in problems.items() if problem is not None}

    def _bring_back(self, limit_s: float | None) -> None:
        """Wait for nodes that take the place of lost ones, and let them build what was lost."""
        for index, seeds in self._joining.returning():
            old = self._hosts[index]
            host = self._joining.wait_for(old)
            self._hosts[index] = host
            for worker in host.workers:
                self._host_of[worker] = host
            found: dict[int, Any] = {}
            ask_to_build(host, self._order, limit_s, found)
            self._until(lambda: bool(found), limit_s, "build their environments")  # noqa: B023 (called at once)
            raise_remote_start_error(host.name, found[index])
            bound: dict[int, list[int | None]] = {}
            ask_to_bind(host, self._spaces, seeds, bound)
            self._until(lambda: bool(bound), _MEMORY_S, "make their memory")  # noqa: B023 (called at once)
            for worker, pid in zip(host.workers, bound[index], strict=True):
                self._alive[worker], self._pids[worker] = True, pid
                self._problems[worker] = None

    def alive(self, worker: int) -> bool:
        """Whether a worker is not lost."""
        return self._alive[worker]

    def incarnation(self, worker: int) -> int:
        """Another number for every process that takes this worker's place."""
        host = self._host_of[worker]
        return self._joining.life(host.index) * 1_000_000 + host.lives[worker - host.workers.start]

    def pids(self) -> list[int | None]:
        """The process of each worker, on its host."""
        return list(self._pids)

    def close(self, limit_s: float | None) -> None:
        """Close the environments within the limit, then end everything."""
        if self.closed:
            return
        self.closed = True
        if os.getpid() != self._owner:
            return  # the sockets and the nodes are still the parent's
        limit = 5.0 if limit_s is None else limit_s
        self._joining.close([host for host in self._hosts if not host.lost], limit)
        if self._arena is not None:
            self._arena.close()

    # Inside.

    def _pump(self, limit_s: float) -> bool:
        """Take one message, if one comes in time. Returns whether one did."""
        now = time.monotonic()
        if now - self._pumped_s > 1.0:  # we were away, and what they sent meanwhile is still unread
            for host in self._hosts:
                host.heard_s = now
        self._pumped_s = now
        received = self._joining.receive(min(max(limit_s, 0.0), _LOOK_S))
        if received is not None:
            self._take(*received)
        if now - self._looked_s > _LOOK_S:
            self._looked_s = now
            self._look_after_hosts(now)
        return received is not None

    def _take(self, host: Host, message: m.FromNode | ProtocolError, frames: Sequence[Any]) -> None:
        host.heard_s = time.monotonic()
        try:
            if isinstance(message, m.Rows):
                self._take_rows(host, message, frames)
            elif isinstance(message, m.Answer):
                handler = host.handler_of(message.number)
                if handler is not None:
                    handler(message, frames)
                    host.settle(message.number)
            elif isinstance(message, m.Lost):
                self._take_loss(host, message)
            elif isinstance(message, m.Beat):
                self._lending.take_progress(host.workers, message.progress)
            elif isinstance(message, m.Leave):
                self._give_up(host, f"its node {host.name} left: {message.reason}")
            elif isinstance(message, ProtocolError):
                self._give_up(host, f"its node {host.name} broke the protocol: {message}")
        except (ProtocolError, TypeError, ValueError, LookupError) as error:
            self._give_up(host, f"its node {host.name} broke the protocol: {error}")

    def _take_rows(self, host: Host, message: m.Rows, frames: Sequence[Any]) -> None:
        if message.number is not None and host.handler_of(message.number) is None:
            return
        slots = copy_rows(self._bound(), host.slots, frames, whole=message.whole)
        if message.report and (len(slots) or message.number is not None):
            self._report.extend(unpack_report(message.report, host.slots))
        if message.number is not None:
            self._stepping.discard(host.index)
            host.settle(message.number)

    def _take_loss(self, host: Host, message: m.Lost) -> None:
        if message.worker >= len(host.blocks) or message.life != host.lives[message.worker]:
            return
        worker = host.workers.start + message.worker
        self._record(worker, Loss(worker, message.cause, message.slot, message.torn, message.reported))

    def _look_after_hosts(self, now: float) -> None:
        for host in self._hosts:
            if host.lost:
                continue
            silent_s = now - host.heard_s
            if silent_s > self._joining.silence_s and not host.at_work(now):
                self._give_up(host, f"its node {host.name} has been silent for {silent_s:.0f} s")
            elif silent_s > _SUSPECT_S and (known := self._joining.seems_gone(host)):
                self._give_up(host, f"its node {host.name} is gone: {known}")
            else:
                host.ask_again(now, _AGAIN_S)
                if now - host.reminded_s > _AGAIN_S and self._arena is not None:
                    host.remind(self._arena, now)

    def _give_up(self, host: Host, cause: str) -> None:
        if host.lost or self.closed:
            return
        _logger.warning("node %s is lost: %s", host.name, cause)
        host.tell(m.Refuse(reason=f"given up: {cause}"[:1000]))  # should it still be there, it goes
        host.give_up()
        self._stepping.discard(host.index)
        for worker in host.workers:
            self._record(worker, Loss(worker, cause, None, None, reported=False))

    def _until(self, done: Callable[[], bool], limit_s: float | None, what: str) -> None:
        end = None if limit_s is None else time.monotonic() + limit_s + _LAST_WORDS_S
        while not done():
            left = _LOOK_S if end is None else end - time.monotonic()
            if not self._pump(left) and left <= 0:
                raise LaunchError(f"the nodes did not {what} within {limit_s} s. {self._joining.last_words()}")
            if lost := [loss for loss in self._losses if self._host_of[loss.worker].lost]:
                raise LaunchError(f"{lost[0].cause}. {self._joining.last_words()}")

    def _stepped(self, answer: m.Answer, frames: Sequence[Any]) -> None:
        """Steps are answered by rows; an answer says that they are under way, or what is wrong."""
        if answer.error:
            raise ProtocolError(answer.error)

    def _bound(self) -> Arena:
        if self._arena is None:
            raise LaunchError("the node has no arena yet; call bind() first")
        return self._arena
