"""A node at the service of a head on another host: carries out its requests on the workers here.

It is the local node behind a socket. Requests come in as messages, each carried out once; what the workers answer goes
back as messages. It never waits long: `progress` looks at everything that is under way and returns.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import logging
from typing import TYPE_CHECKING, Any

from clusterenv.cluster.requests import Answering, Turn
from clusterenv.cluster.restart import Fault
from clusterenv.config import Local
from clusterenv.errors import ClusterEnvError, EnvError, ProtocolError, words_of
from clusterenv.node import base
from clusterenv.node.columns import columns_to_frames
from clusterenv.node.local import LocalNode
from clusterenv.node.parcels import Arriving
from clusterenv.node.recipes import builders_of
from clusterenv.node.records import (
    CODEC,
    attachment_from_data,
    describe_plainly,
    fragment_spec_from_data,
    pack_reply,
)
from clusterenv.node.steps import Steps
from clusterenv.spaces import leaves_of
from clusterenv.sync.codec import Encoded, decode
from clusterenv.sync.versions import Version, check_forward
from clusterenv.transport.arena import Arena, ArenaSpec
from clusterenv.transport.fragments import Fragments
from clusterenv.transport.shared import SharedArrays
from clusterenv.transport.weights import WeightBuffer, weights_layout
from clusterenv.wire import messages as m
from clusterenv.wire.frames import expect
from clusterenv.worker.actor import Fragment
from clusterenv.worker.report import Failure, Report

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from clusterenv.sync.codec import Decoded
    from clusterenv.sync.weights import WeightSpec
    from clusterenv.worker.loop import Reply

    Send = Callable[[list[Any]], None]

_logger = logging.getLogger(__name__)

# How many bytes a version of the weights may have as it travels: compression may make it a little larger, never more.
_MOST_TIMES, _SLACK_BYTES = 2, 2**16


@dataclasses.dataclass(slots=True)
class _Store:
    """The weights of an attached policy on this node."""

    spec: WeightSpec
    buffer: WeightBuffer
    arriving: Arriving
    held: Decoded | None = None


@dataclasses.dataclass(slots=True)
class _Errand:
    """A message to workers that is not answered yet."""

    number: int
    name: str
    waiting: set[int]
    together: bool  # one answer for all its workers, not one each
    replies: dict[int, Reply] = dataclasses.field(default_factory=dict)


class Service:
    """Carries out requests.

    Args:
        send: takes the frames of a message to the head.
        imports: the modules that this host was told to import.
    """

    def __init__(self, send: Send, imports: Sequence[str]) -> None:
        self._send, self._imports = send, tuple(imports)
        self._answering: Answering[list[Any]] = Answering()
        self._node: LocalNode | None = None
        self._building: int | None = None  # the number of the request, while the environments are built
        self._steps: Steps | None = None
        self._errands: list[_Errand] = []
        self._orders: dict[int, collections.deque[tuple[int, int]]] = collections.defaultdict(collections.deque)
        # The head numbers the memories that it lends. Of each kind only the last is kept.
        self._stores: dict[int, _Store] = {}  # by number, one at most
        self._fragments: Fragments | None = None
        self._fragments_number: int | None = None
        self._lives: list[int] = []
        self._told: dict[int, list[Any]] = {}  # losses, by worker, until it is replaced
        self._replacing: dict[int, int] = {}  # the numbers of requests for workers that are being built
        self._handlers: dict[type[m.Request], Callable[[Any, Sequence[Any]], None]] = {
            m.Build: self._build,
            m.Bind: self._bind,
            m.Step: self._step,
            m.Post: self._post,
            m.Lend: self._lend,
            m.Tell: self._tell,
            m.Weights: self._weights,
            m.Replace: self._replace,
        }
        self.ended = False
        self.epoch = 0  # of the head

    @property
    def seen(self) -> int:
        """The number of the last request."""
        return self._answering.seen

    @property
    def stepping(self) -> bool:
        """Whether steps are under way, whose end no descriptor tells."""
        return self._steps is not None and self._steps.busy

    @property
    def idle(self) -> bool:
        """Whether nothing is under way but streams that have no order, and environments that nobody has stepped yet."""
        playing = any(self._orders.values()) or any(errand.name != "stream" for errand in self._errands)
        return not self.stepping and not playing and not self._replacing

    def descriptors(self) -> list[int]:
        """What becomes readable when a worker has something to say."""
        return [] if self._node is None else self._node.descriptors()

    def played_steps(self) -> list[int]:
        """How many steps each worker has played with the policy."""
        return [] if self._fragments is None else [int(count) for count in self._fragments.progress]

    # What arrives.

    def handle(self, message: m.FromHead, frames: Sequence[Any]) -> None:
        """Take a message of the head: its header, and the frames behind it."""
        if isinstance(message, m.Request):
            turn = self._answering.arrived(message.number, message.settled, message.arrived)
            if turn is Turn.NEW:
                self._carry_out(message, frames)
            elif turn is Turn.DONE:
                self._send(self._answering.answer(message.number))
        else:
            self._obey(message)

    def _obey(self, message: m.FromHead) -> None:
        """Carry out a message that has no number and is not answered."""
        if isinstance(message, m.Lose):
            if self._node is not None and message.worker < len(self._lives):
                self._node.lose(message.worker, message.cause)
        elif isinstance(message, m.Halt):
            if self._fragments is not None:
                self._fragments.stop[:] = 1
        elif isinstance(message, m.Again):
            if self._steps is not None:
                self._steps.show_again()
        elif isinstance(message, m.Close):
            self.close(message.limit_s)

    def _carry_out(self, request: m.Request, frames: Sequence[Any]) -> None:
        kind = type(request)
        self._attempt(request.number, kind.__name__, lambda: self._handlers[kind](request, frames))

    def _attempt(self, number: int, name: str, act: Callable[[], None]) -> None:
        """Do something for a request; what goes wrong is its answer."""
        try:
            act()
        except (ClusterEnvError, TypeError, ValueError, LookupError, ArithmeticError, OSError, MemoryError) as error:
            words = words_of(error) or type(error).__name__
            _logger.warning("request %d (%s): %s", number, name, words)
            self._answer(number, error=words)

    def _answer(self, number: int, value: bytes = b"", frames: Sequence[Any] = (), error: str = "") -> None:
        answer = [m.encode(m.Answer(number=number, value=value, error=error[:50_000])), *frames]
        self._answering.done(number, answer)
        self._send(answer)

    def send_again(self) -> None:
        """After a broken connection: everything of which it is not known whether it has arrived."""
        for told in self._told.values():
            self._send(told)
        for answer in self._answering.kept():
            self._send(answer)
        if self._steps is not None:
            self._steps.show_again()

    # Requests.

    def _build(self, request: m.Build, frames: Sequence[Any]) -> None:
        blocks = [range(start, stop) for start, stop in request.blocks]
        pairs = itertools.pairwise(blocks)
        ordered = all(block for block in blocks) and all(one.stop == other.start for one, other in pairs)
        if self._node is not None or not blocks or not ordered:
            raise ProtocolError(f"blocks {request.blocks} cannot be built here.")
        builders = builders_of(CODEC.unpack(request.recipes), blocks, self._imports)
        self._node = LocalNode(builders, blocks, Local(len(blocks), worker_memory=request.worker_memory), spared=True)
        self._lives = [0] * len(blocks)
        self._node.launch(request.limit_s)
        self._building = request.number  # it is answered when all is built; meanwhile we beat, and can be told to go

    def _finish_build(self, node: LocalNode, number: int) -> None:
        """Answer once every environment is built, or one cannot be."""
        self._building = None  # also if what follows raises: that is an answer too
        try:
            found = node.started()
        except EnvError as error:
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            failure = Failure(error.slot, "build", cause, error.remote_traceback, recovered=False)
            self._answer(number, CODEC.pack(failure))
            return
        if found is None:
            self._building = number
        else:
            self._answer(number, CODEC.pack([describe_plainly(each) for each in found]))

    def _bind(self, request: m.Bind, frames: Sequence[Any]) -> None:
        node = self._local()
        if self._building is not None:
            raise ProtocolError("the environments are not built yet.")
        observation_space, action_space, seeds = CODEC.unpack(request.spaces)
        slots = range(node.blocks[0].start, node.blocks[-1].stop)
        leaves = [tuple(leaves_of(space) or ()) for space in (observation_space, action_space)]
        arena = Arena.create(ArenaSpec(len(slots), len(node.blocks), leaves[0], leaves[1], slots.start))
        node.bind(arena, observation_space, action_space, seeds)
        self._steps = Steps(node, arena, self._done_step, self._send)
        self._answer(request.number, CODEC.pack(node.pids()))

    def _step(self, request: m.Step, frames: Sequence[Any]) -> None:
        objects = CODEC.unpack(request.objects) if request.objects else None
        self._stepper().begin(request, frames, objects)
        if not request.lock_step:
            self._answer(request.number)

    def _done_step(self, number: int, rows: list[Any]) -> None:
        """A step in lock step is complete: its rows are the answer. Losses are told first, or nobody would know why."""
        self._tell_losses()
        self._answering.done(number, rows)
        self._send(rows)

    def _post(self, request: m.Post, frames: Sequence[Any]) -> None:
        name, arguments = CODEC.unpack(request.message)
        if name not in ("reset", "call", "set_attr", "play", "stream", "detach"):
            raise ProtocolError(f"there is no message {name!r} for a worker.")
        if name in ("play", "stream") and self._fragments is not None:
            self._fragments.stop[request.worker] = 0
        node = self._bound()
        if not node.alive(request.worker):
            self._tell_losses()
            self._answer(request.number)
            return
        node.post({request.worker: base.Message(name, tuple(arguments))})
        called = str(arguments[1]) if name == "call" else name  # for errors
        self._errands.append(_Errand(request.number, called, {request.worker}, together=False))

    def _lend(self, request: m.Lend, frames: Sequence[Any]) -> None:
        node, data = self._bound(), CODEC.unpack(request.message)
        if request.name == "attach":
            attachment = attachment_from_data(data)
            message, memory = base.Message("attach", (attachment,)), self._weights_memory(request.memory, attachment)
        elif request.name == "share":
            fragments = self._fragments_memory(request.memory, data)
            message, memory = base.Message("share", (fragments.spec,)), fragments.memory
        else:
            raise ProtocolError(f"there is no memory for {request.name!r}.")
        living = {worker for worker in request.workers if node.alive(worker)}
        node.lend(dict.fromkeys(sorted(living), message), memory)
        self._errands.append(_Errand(request.number, request.name, living, together=True))

    def _weights_memory(self, number: int, attachment: Any) -> SharedArrays:
        if number not in self._stores:
            for old in self._stores.values():
                old.buffer.memory.close()
            memory = SharedArrays.create(weights_layout(attachment.weights))
            spec: WeightSpec = attachment.weights
            arriving = Arriving(_MOST_TIMES * (4 * spec.floats + spec.tail_bytes) + _SLACK_BYTES)
            self._stores = {number: _Store(spec, WeightBuffer(memory), arriving)}
        return self._stores[number].buffer.memory

    def _fragments_memory(self, number: int, data: Any) -> Fragments:
        node = self._local()
        if self._fragments is None or self._fragments_number != number:
            slots = range(node.blocks[0].start, node.blocks[-1].stop)
            made = Fragments.create(fragment_spec_from_data(data, slots, len(node.blocks)))
            if self._fragments is not None:
                self._fragments.close()
            self._fragments, self._fragments_number = made, number
        return self._fragments

    def _tell(self, request: m.Tell, frames: Sequence[Any]) -> None:
        node = self._bound()
        if request.order is None or not node.alive(request.worker):
            node.tell(request.worker, None)
            self._answer(request.number)
            return
        self._orders[request.worker].append((request.number, request.order[0]))
        node.tell(request.worker, request.order)

    def _weights(self, request: m.Weights, frames: Sequence[Any]) -> None:
        expect(frames, 1, "weights")
        store = self._stores.get(request.memory)
        if store is None:
            raise ProtocolError("weights arrived for a policy that is not attached here.")
        # A message may be late: weights never go back to an older version, nor to one of an earlier head.
        held = Version(self.epoch, 0) if store.held is None else store.held.version
        version = check_forward(held, Version(*request.version))
        payload = store.arriving.take(version, request.offset, request.size, frames[0])
        if payload is not None:
            base_version = None if request.base is None else Version(*request.base)
            encoded = Encoded(request.kind, payload, base_version, version, request.digest)
            store.held = decode(store.spec, encoded, store.held)
            store.buffer.put(store.held.version, store.held.flat)
        self._answer(request.number)

    def _replace(self, request: m.Replace, frames: Sequence[Any]) -> None:
        node, worker = self._local(), request.worker
        if node.alive(worker):  # the message that it is given up was lost
            node.lose(worker, "it is replaced")
        self._tell_losses()
        for errand in list(self._errands):  # those of the lost worker end here, before its replacement answers
            self._collect(errand)
        self._stepper().forget(worker)
        self._told.pop(worker, None)
        self._lives[worker] += 1
        node.replace(worker, request.seeds)
        self._replacing[worker] = request.number  # it is answered when its environments are built; others go on

    # What the workers do.

    def progress(self) -> None:
        """Look at everything that is under way, and tell the head what has come of it."""
        node, number = self._node, self._building
        if node is None:
            return
        if number is not None:
            self._attempt(number, "Build", lambda: self._finish_build(node, number))
            return
        for worker, problem in node.built(list(self._replacing)).items():
            self._answer_replacement(worker, problem)
        if self._steps is not None and self._steps.busy:
            self._steps.progress()
        else:
            for worker, reply in node.played(0.0):
                self._tell_played(worker, reply)
            node.look()
        for errand in list(self._errands):
            self._collect(errand)
        self._tell_losses()

    def _answer_replacement(self, worker: int, problem: Reply | None) -> None:
        number = self._replacing.pop(worker, None)
        if number is not None:
            self._answer(number, CODEC.pack([problem, self._local().pids()[worker]]))

    def _collect(self, errand: _Errand) -> None:
        node = self._local()
        replies = node.replies(sorted(errand.waiting), 0.0)
        errand.replies.update(replies)
        errand.waiting -= replies.keys()
        errand.waiting -= {worker for worker in errand.waiting if not node.alive(worker)}
        if errand.waiting:
            return
        self._errands.remove(errand)
        self._tell_losses()  # first: the head must know why a worker gives no answer
        if errand.name == "stream":
            self._end_streams(errand.replies)
        if errand.together:
            self._answer(errand.number, CODEC.pack(errand.replies))
        elif errand.replies:
            ((worker, reply),) = errand.replies.items()
            self._answer(errand.number, pack_reply(reply, errand.name), self._frames_of(worker, reply))
        else:
            self._answer(errand.number)  # the worker is lost, which the head is told as such

    def _end_streams(self, workers: Collection[int]) -> None:
        """These workers have left their streams: answer also the orders that they did not get round to."""
        for worker, reply in self._local().played(0.0):
            self._tell_played(worker, reply)
        for worker in workers:
            for number, _ in self._orders.pop(worker, ()):
                self._answer(number)

    def _tell_played(self, worker: int, reply: Reply) -> None:
        if self._orders[worker]:
            number, _ = self._orders[worker].popleft()
            self._answer(number, pack_reply(reply, "play"), self._frames_of(worker, reply))

    def _frames_of(self, worker: int, reply: Reply) -> list[Any]:
        """What a reply has left in memory: rows after a reset, columns after a fragment."""
        block = self._local().blocks[worker]
        if isinstance(reply.value, Report):
            return self._stepper().block_frames(block)
        if isinstance(reply.value, Fragment) and self._fragments is not None:
            return columns_to_frames(self._fragments.columns(reply.value.buffer, block))
        return []

    def _tell_losses(self) -> None:
        for loss in self._local().losses():
            # First: an answer after the loss would look like a sign of life.
            self._answer_replacement(loss.worker, None)
            if self._steps is not None:
                self._steps.lose(loss.worker)
            for number, _ in self._orders.pop(loss.worker, ()):
                self._answer(number)
            told = m.Lost(
                worker=loss.worker,
                life=self._lives[loss.worker],
                cause=loss.cause,
                slot=loss.slot,
                torn=None if loss.torn is None else loss.torn.start,  # vectorised blocks run on the head's host only
                reported=loss.reported,
                outgrown=loss.fault is Fault.MEMORY,
            )
            self._told[loss.worker] = [m.encode(told)]
            self._send(self._told[loss.worker])

    def close(self, limit_s: float) -> None:
        """Close the environments and let everything go."""
        self.ended = True
        if self._node is not None:
            self._node.close(limit_s)
        for store in self._stores.values():
            store.buffer.memory.close()
        if self._fragments is not None:
            self._fragments.close()

    def _local(self) -> LocalNode:
        if self._node is None:
            raise ProtocolError("nothing was built here yet.")
        return self._node

    def _bound(self) -> LocalNode:
        """The node, once its workers have memory to work in."""
        self._stepper()
        return self._local()

    def _stepper(self) -> Steps:
        if self._steps is None:
            raise ProtocolError("there is no arena here yet.")
        return self._steps
