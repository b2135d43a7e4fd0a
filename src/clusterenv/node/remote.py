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

from clusterenv.cluster.restart import Fault
from clusterenv.errors import LaunchError, ProtocolError
from clusterenv.node.base import Loss, NetworkBytes, Waiting
from clusterenv.node.building import ask_to_bind, ask_to_build
from clusterenv.node.crew import Crew
from clusterenv.node.joining import AT_ONCE, Joining
from clusterenv.node.lending import Lending
from clusterenv.node.mail import Mail
from clusterenv.node.records import CODEC, attachment_to_data, unpack_report
from clusterenv.node.replacing import Replacements
from clusterenv.node.returning import Returns
from clusterenv.node.rows import WholeNode, check_sizes, copy_rows, living, step_frames, unanswered
from clusterenv.node.starting import raise_remote_start_error
from clusterenv.transport.arena import Command, layout_size
from clusterenv.transport.uninterrupted import uninterrupted
from clusterenv.wire import messages as m
from clusterenv.worker.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gymnasium import Space

    from clusterenv.clusters import Remote
    from clusterenv.launchers.base import Launcher
    from clusterenv.node.base import Incarnation, Message
    from clusterenv.node.host import Host
    from clusterenv.sync.codec import Decoded, Encoded
    from clusterenv.transport.arena import Arena
    from clusterenv.transport.fragments import Fragments
    from clusterenv.transport.shared import SharedArrays
    from clusterenv.wire.envs import BuildOrder
    from clusterenv.worker.actor import Attachment
    from clusterenv.worker.describe import BlockDescription
    from clusterenv.worker.loop import Reply

_logger = logging.getLogger(__name__)

# How often a waiting head looks at the clock, and after which silence it asks whether a node is gone.
_LOOK_S, _SUSPECT_S = 0.25, 0.5
# A request that was not answered for this long goes out again: it, or its answer, may have been lost.
_AGAIN_S = 5.0
# For memory that a node makes once its environments are built, and for the last words before we end a worker.
_MEMORY_S, _LAST_WORDS_S = 60.0, 1.0
# How much longer than its limit a wait takes: what comes at the last moment is still on its way, or not read yet.
_GRACE_S = 1.0


class RemoteNode(Waiting):
    """All nodes of a cluster on other hosts."""

    def __init__(self, order: BuildOrder, num_envs: int, cluster: Remote, launcher: Launcher | None = None) -> None:
        self.closed = False
        self._owner, self._order, self._num_envs = os.getpid(), order, num_envs
        self._joining = Joining(cluster, launcher)
        self._crew = Crew()
        self._returns = Returns(self._joining, self._crew, self._give_up)
        self._lending = Lending()
        self._replacements = Replacements(self._crew, self._returns)
        self._losses: list[Loss] = []
        self.reported = Report()
        self._stepping: set[int] = set()  # hosts in lock step
        self._showing: set[int] = set()  # hosts that were asked to show the rows that they have
        self._looked_s = self._pumped_s = time.monotonic()
        self._read_first = 0  # how many messages are taken at most before hosts are looked after
        self._silent: set[int] = set()  # hosts that were silent for too long at the last look
        self._arena: Arena | None = None
        self._whole: list[WholeNode] = []  # by host
        self._mail: Mail | None = None

    @property
    def blocks(self) -> list[range]:
        """The slots of each worker, once the nodes have joined."""
        return self._crew.blocks

    @property
    def members(self) -> list[m.Hello]:
        """What each node that has joined said of itself."""
        return [host.hello for host in self._crew.hosts]

    @property
    def heads(self) -> str:
        """The addresses that nodes were told to join at."""
        return self._joining.heads

    @property
    def network_bytes(self) -> NetworkBytes:
        """What the head's socket has taken and sent."""
        return self._joining.network_bytes

    def logs(self) -> dict[str, str]:
        """The last lines that each node wrote, by the name that its launcher has for it."""
        return self._joining.logs()

    # Start.

    def start(self, limit_s: float | None) -> list[BlockDescription]:
        """Launch the nodes, wait until all have joined, and let each build its share."""
        self._start_s = limit_s
        self._crew.assemble(*self._joining.gather(self._num_envs))
        hosts = self._crew.hosts
        found: dict[int, Any] = {}
        for host in hosts:
            ask_to_build(host, self._order, limit_s, found)
        self._await_hosts(lambda: len(found) == len(hosts), limit_s, "build their environments", hosts)
        for host in hosts:
            raise_remote_start_error(host.name, len(host.blocks), found[host.index])
        return [each for host in hosts for each in found[host.index]]

    def bind(self, arena: Arena, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Let every node make its own arena for these spaces."""
        self._arena, spaces = arena, (observation_space, action_space)
        for host in self._crew.hosts:
            check_sizes(arena, host.slots, host.name)
        self._joining.expect(layout_size(arena.spec))
        self._returns.prepare(self._order, spaces, self._start_s)
        self._mail = Mail(self._crew, self._lending, arena)
        hosts = self._crew.hosts
        self._whole = [WholeNode(arena, host.slots) for host in hosts]
        bound: dict[int, list[int | None]] = {}
        for host in hosts:
            ask_to_bind(host, spaces, None, bound)
        self._await_hosts(lambda: len(bound) == len(hosts), _MEMORY_S, "make their memory", hosts)
        self._crew.pids = [pid for host in hosts for pid in bound[host.index]]

    # Steps.

    def request(
        self, command: Command, workers: Sequence[int], actions: Mapping[int, Mapping[int, Any]] | None
    ) -> None:
        """Send each node the rows that it shall step, in one message."""
        arena, lock_step = self._bound(), command is not Command.SEND
        for index in self._crew.by_host(workers):
            host = self._crew.hosts[index]
            if host.lost:
                continue
            alive = living(host.blocks, self._crew.alive_of(host))
            whole = command is Command.STEP and alive is None
            frames = self._whole[index].asked if whole else step_frames(arena, host.slots, alive)
            if not lock_step and not frames[0].nbytes:
                continue
            packed = b""
            if actions is not None:
                packed = CODEC.pack({worker - host.workers.start: dict(actions[worker]) for worker in host.workers})
            host.ask(m.Step, self._refuse_step_error, frames, lock_step=lock_step, whole=whole, objects=packed)
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
        if self._wait_while(lambda: bool(self._stepping or self._late(workers)), limit_s):
            return []
        self._fetch_rows(workers)
        return self._late(workers)

    def _fetch_rows(self, workers: Sequence[int]) -> None:
        """In lock step a node answers for all its workers at once: ask which of them have, if one is late."""
        hosts = [self._crew.hosts[index] for index in self._crew.by_host(self._late(workers))]
        self._showing = {host.index for host in hosts if not host.lost and host.tell(m.Again())}
        self._wait_while(lambda: bool(self._showing), _LAST_WORDS_S)

    def _late(self, workers: Sequence[int]) -> list[int]:
        late = set() if self._arena is None else unanswered(self._arena, self.blocks)
        return [worker for worker in workers if self._crew.alive[worker] and (worker in late or self._owes(worker))]

    def wait_any(self, limit_s: float) -> bool:
        """Take the next message."""
        return self._pump(limit_s)

    def listen(self) -> None:
        """Take what has arrived."""
        for _ in range(AT_ONCE):
            if not self._pump(0.0):
                return

    def reports(self) -> Report:
        """What has been reported, until it is handed over."""
        return self.reported

    # Messages.

    def post(self, messages: Mapping[int, Message]) -> None:
        """Send each worker its message; each answers with one reply."""
        self._post_office().post(messages)

    def lend(self, messages: Mapping[int, Message], memory: SharedArrays) -> None:
        """As `post`; every node makes memory of its own for its workers, in the place of this."""
        self._joining.expect(layout_size(self._bound().spec) + memory.nbytes)
        self._post_office().lend(messages, memory)

    def tell(self, worker: int, order: tuple[Any, ...] | None) -> None:
        """Give a streaming worker its next order, or None to end its stream."""
        self._post_office().tell(worker, order)

    def played(self, limit_s: float) -> list[tuple[int, Reply]]:
        """The fragments that have arrived; wait for the first at most `limit_s`."""
        mail = self._post_office()
        if not mail.has_played:
            self._pump(limit_s)
        self.listen()
        return mail.take_played()

    def halt(self, fragments: Fragments) -> None:
        """Whoever plays stops after the step that it is in."""
        for host in self._crew.hosts:
            host.tell(m.Halt())

    def replies(self, workers: Sequence[int], limit_s: float | None) -> dict[int, Reply]:
        """The replies of these workers that arrive within the limit; a lost worker has none."""
        waited = self._wait_while(lambda: any(self._owes(w) and self._crew.alive[w] for w in workers), limit_s)
        if waited:
            self._pump(0.0)  # if a worker owes nothing because it is lost, the reason may be on its way
        return self._post_office().take_replies(workers)

    # Weights.

    @property
    def epoch(self) -> int:
        """Which head of its run this is."""
        return self._joining.epoch

    @property
    def news_s(self) -> float:
        """Nodes tell of the steps with their beats, of which one may be late."""
        return 3 * self._joining.beat_s

    @property
    def come_back_s(self) -> float | None:
        """As long as at the start."""
        return self._joining.wait_s

    @property
    def hosts(self) -> list[range]:
        """The workers of each host."""
        return [host.workers for host in self._crew.hosts]

    def host_life(self, host: int) -> Incarnation:
        """Another one whenever the host may have lost the weights that it was given."""
        found = self._crew.hosts[host]
        return found.generation, found.spoilt

    def may_give(self, host: int, memory: SharedArrays) -> bool:
        """Whether the host can take weights for this memory: it is not lost, and has taken the last ones."""
        if self._crew.hosts[host].giving is not None:
            self.listen()  # for its answer: a learner that is busy publishes, and asks for nothing else
        return self._lending.may_give(self._crew.hosts[host], memory)

    def wait_taken(self, limit_s: float | None) -> None:
        """Wait until every host that is not lost has taken the last weights that it was given."""
        self._wait_while(lambda: any(host.giving is not None and not host.lost for host in self._crew.hosts), limit_s)

    def give(self, host: int, memory: SharedArrays, encoded: Encoded, decoded: Decoded) -> None:
        """Send weights to a host; once its policy is there, if that is still on its way."""
        self._lending.give(self._crew.hosts[host], memory, encoded)

    # Losses and replacements.

    def look(self) -> None:
        """Take what has arrived, and see who is silent."""
        self.listen()

    @property
    def has_losses(self) -> bool:
        """Whether a worker was lost since the last look."""
        return bool(self._losses)

    def losses(self) -> list[Loss]:
        """The workers lost since the last look."""
        losses, self._losses = self._losses, []
        return losses

    def lose(self, worker: int, cause: str) -> None:
        """End a worker, and wait a moment for its last words: in which slot it was."""
        if not self._crew.alive[worker]:
            return
        self._crew.host_of(worker).tell(m.Lose(worker=self._crew.within(worker), cause=cause))
        self._wait_while(lambda: self._crew.alive[worker], _LAST_WORDS_S)
        self._record(Loss(worker, cause, None, None))

    def _record(self, loss: Loss) -> None:
        if self._crew.alive[loss.worker]:
            uninterrupted(self._record_now, loss)  # marked as lost and not counted, nobody would hear of it

    def _record_now(self, loss: Loss) -> None:
        self._crew.alive[loss.worker] = False
        self._crew.pids[loss.worker] = None
        if self._mail is not None:
            self._mail.forget(loss.worker)
        self._losses.append(loss)

    def replace(self, worker: int, seeds: Sequence[int | None], *, patient: bool = False) -> None:
        """Start a fresh worker in the place of a lost one; do not wait for it."""
        self._replacements.begin(worker, seeds, self._start_s, patient=patient)

    def ready(self, workers: Sequence[int], limit_s: float | None) -> dict[int, Reply]:
        """Wait for replacements to be built; return what went wrong with those that could not be."""
        self._returns.hurry()
        self._wait_while(self._replacements.tend, None)  # each has limits of its own
        self._wait_while(lambda: any(map(self._replacements.building, workers)), limit_s)
        came = self._replacements.take(workers)
        known = {loss.worker for loss in self._losses}  # a worker may be lost again before the last one is built
        for worker in workers:
            if came.get(worker) is None and not self._crew.alive[worker] and worker not in known:
                host = self._crew.host_of(worker)
                cause = host.cause or f"it did not come back within {limit_s} s"
                self._losses.append(Loss(worker, cause, None, None, fault=host.fault))
        return {worker: problem for worker, problem in came.items() if problem is not None}

    def built(self, workers: Sequence[int]) -> dict[int, Reply | None]:
        """The replacements that are there by now, each with what went wrong, or None. Waits for nobody."""
        self._replacements.tend()
        return self._replacements.take(workers)

    def alive(self, worker: int) -> bool:
        """Whether a worker is not lost."""
        return self._crew.alive[worker]

    def incarnation(self, worker: int) -> Incarnation:
        """Another one for every process that takes this worker's place."""
        return self._crew.incarnation(worker)

    def pids(self) -> list[int | None]:
        """The process of each worker, on its host."""
        return [None] * len(self.blocks) if self.closed else list(self._crew.pids)

    def close(self, limit_s: float | None) -> None:
        """Close the environments within the limit, then end everything."""
        if self.closed:
            return
        self.closed = True
        if os.getpid() != self._owner:
            return  # the sockets and the nodes are still the parent's
        try:
            self._joining.close(limit_s)
        finally:  # also after Ctrl-C
            if self._arena is not None:
                self._arena.close()

    # Inside.

    def _pump(self, limit_s: float) -> bool:
        """Take one message, if one comes in time. Returns whether one did."""
        self._go_on_waiting()
        now = time.monotonic()
        if now - self._pumped_s > 1.0:
            # We were away: hosts seem silent until what they sent meanwhile is read. The socket takes from them by
            # turns, so that however much one of them has sent, the others are heard among the first.
            self._read_first = AT_ONCE
        self._pumped_s = now
        received = self._joining.receive(min(max(limit_s, 0.0), _LOOK_S))
        if received is not None:
            self._take(*received)
        self._read_first = 0 if received is None else max(0, self._read_first - 1)
        if not self._read_first and now - self._looked_s > _LOOK_S:
            self._looked_s = now
            self._look_after_hosts(now)
        return received is not None

    def _wait_while(self, busy: Callable[[], bool], limit_s: float | None) -> bool:
        """Take messages while `busy` holds; False if the time was over before."""
        end = None if limit_s is None else time.monotonic() + limit_s
        while busy():
            left_s = _LOOK_S if end is None else end - time.monotonic()
            came = self._pump(left_s)
            # What has arrived by then is still taken, but a node that never stops talking cannot prolong the wait.
            if left_s <= 0 and (not came or left_s < -_GRACE_S):
                return False
        return True

    def _take(self, host: Host, message: m.FromNode | ProtocolError, frames: Sequence[Any]) -> None:
        host.heard_s = time.monotonic()
        try:
            if isinstance(message, ProtocolError):
                raise message
            self._handle(host, message, frames)
        except (ProtocolError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            self._give_up(host, f"its node {host.name} broke the protocol: {error}")

    def _handle(self, host: Host, message: m.FromNode, frames: Sequence[Any]) -> None:
        if isinstance(message, m.Rows):
            self._take_rows(host, message, frames)
        elif isinstance(message, m.Answer):
            # At once: an answer that was taken and not settled comes again, and would be taken twice.
            uninterrupted(host.take_answer, message, frames)
        elif isinstance(message, m.Lost):
            loss = host.loss_of(message)
            if loss is not None:
                self._record(loss)
        elif isinstance(message, m.Beat):
            host.seen = max(host.seen, message.seen)
            self._lending.take_progress(host.workers, message.progress)
        elif isinstance(message, m.Leave):
            fault = Fault.PREEMPTION if message.preempted else Fault.CRASH
            self._give_up(host, f"its node {host.name} left: {message.reason}", fault)

    def _take_rows(self, host: Host, message: m.Rows, frames: Sequence[Any]) -> None:
        if message.number is not None and host.handler_of(message.number) is None:
            return
        if message.report:  # at once: of rows that are here, what was reported is not looked at when they come again
            uninterrupted(self._copy_rows, host, message, frames)
        else:
            self._copy_rows(host, message, frames)
        self._showing.discard(host.index)
        if message.number is not None:
            self._stepping.discard(host.index)
            host.settle(message.number)

    def _copy_rows(self, host: Host, message: m.Rows, frames: Sequence[Any]) -> None:
        slots: Sequence[int] = host.slots
        if not message.whole or not self._whole[host.index].take_answer(frames):
            slots = copy_rows(self._bound(), host.slots, frames, whole=message.whole).tolist()
        if message.report and slots:
            report = unpack_report(message.report, host.slots)
            if len(slots) < len(host.slots):  # rows that the head had already came with what was reported of them
                report = report.about(set(slots))
            self.reported.extend(report)

    def _look_after_hosts(self, now: float) -> None:
        before, self._silent = self._silent, set()
        for host in self._crew.hosts:
            if host.lost:
                continue
            silent_s = now - host.heard_s
            if silent_s > self._joining.silence_s:
                self._silent.add(host.index)
            # Twice in a row: the socket of a head that was stopped needs a moment to read what has come meanwhile.
            if host.index in self._silent & before:
                self._give_up(host, f"its node {host.name} has been silent for {silent_s:.0f} s")
            elif silent_s > _SUSPECT_S and (known := self._joining.seems_gone(host)):
                self._give_up(host, f"its node {host.name} is gone: {known}")
            else:
                host.ask_again(now, _AGAIN_S)
                if now - host.reminded_s > _AGAIN_S and self._arena is not None:
                    host.remind(self._arena, now)
        self._read_first = AT_ONCE if self._silent else 0

    def _give_up(self, host: Host, cause: str, fault: Fault = Fault.CRASH) -> None:
        if host.lost or self.closed:
            return
        _logger.warning("node %s is lost: %s", host.name, cause)
        host.tell(m.Refuse(reason=f"given up: {cause}"[:1000]))  # if it still lives, it ends
        for worker in host.workers:
            self._record(Loss(worker, cause, None, None, reported=False, fault=fault))
        self._stepping.discard(host.index)
        self._showing.discard(host.index)
        host.give_up(cause, fault)  # last: after an interrupt it is begun again

    def _await_hosts(self, done: Callable[[], bool], limit_s: float | None, what: str, hosts: Sequence[Host]) -> None:
        """Wait for something that these hosts do; others may be lost meanwhile, and are dealt with afterwards."""

        def waiting() -> bool:
            return not done() and not any(host.lost for host in hosts)

        in_time = self._wait_while(waiting, None if limit_s is None else limit_s + _GRACE_S)
        if not done() and (causes := [host.cause for host in hosts if host.lost]):
            raise LaunchError(f"{causes[0]}. {self._joining.last_words()}")
        if not in_time:
            raise LaunchError(f"the nodes did not {what} within {limit_s} s. {self._joining.last_words()}")

    def _refuse_step_error(self, answer: m.Answer, frames: Sequence[Any]) -> None:
        """Steps are answered by rows. An answer says that they are under way, or what is wrong."""
        if answer.error:
            raise ProtocolError(answer.error)

    def _bound(self) -> Arena:
        if self._arena is None:
            raise LaunchError("the node has no arena yet; call bind() first")
        return self._arena

    def _post_office(self) -> Mail:
        if self._mail is None:
            raise LaunchError("the node has no arena yet; call bind() first")
        return self._mail

    def _owes(self, worker: int) -> bool:
        return self._mail is not None and self._mail.owes(worker)
