"""The head's view of one node on another host: its connection, its workers, and what it was asked."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterenv.cluster.requests import Asking
from clusterenv.cluster.restart import Fault
from clusterenv.errors import ProtocolError
from clusterenv.node.base import Loss
from clusterenv.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterenv.transport.arena import Arena
    from clusterenv.transport.sockets import Hub

    Handler = Callable[[m.Answer, Sequence[Any]], None]

_SLOW_LINK_BYTES_PER_S = 100_000.0


@dataclass(slots=True, eq=False)
class Host:
    """A node that has joined.

    Attributes:
        index: of the node in the cluster.
        hub: the head's socket.
        peer: its connection.
        hello: how it introduced itself, in words that are safe to show.
        workers: the indices of its workers in the cluster.
        blocks: their slots.
        heard_s: when it was last heard.
        lost: whether it is given up.
        cause: why it was given up.
        fault: what kind of fault that was.
        generation: how often its place was taken by another node.
        lives: how often each of its workers was replaced.
        spoilt: how often it could not use the weights that it was given.
        giving: the pieces of weights that are on their way to it, by their place; None if there are none.
        reminded_s: when it was last reminded of single slots.
        seen: the last request that it is known to have taken.
        memories: the numbers of the memories that it knows.
    """

    index: int
    hub: Hub
    peer: bytes
    hello: m.Hello
    workers: range = range(0)
    blocks: list[range] = field(default_factory=list)
    heard_s: float = field(default_factory=time.monotonic)
    lost: bool = False
    cause: str = ""
    fault: Fault = Fault.CRASH
    generation: int = 0
    lives: list[int] = field(default_factory=list)
    spoilt: int = 0
    giving: set[int] | None = None
    reminded_s: float = 0.0
    seen: int = 0
    memories: set[int] = field(default_factory=set)
    _asking: Asking[list[Any]] = field(default_factory=Asking)
    _handlers: dict[int, Handler] = field(default_factory=dict)
    _sizes: dict[int, int] = field(default_factory=dict)  # of the requests that are not answered
    _unanswered_bytes: int = 0  # their sum

    @property
    def name(self) -> str:
        """How messages call it."""
        return self.hello.name

    @property
    def slots(self) -> range:
        """All its slots."""
        return range(self.blocks[0].start, self.blocks[-1].stop) if self.blocks else range(0)

    def ask(self, kind: type[m.Request], handler: Handler, frames: Sequence[Any] = (), /, **fields: Any) -> int:
        """Send a request; `handler` takes its answer. Returns its number."""
        number = self._asking.next()
        settled, arrived = self._asking.settled, tuple(self._asking.arrived())
        message = [m.encode(kind(number=number, settled=settled, arrived=arrived, **fields)), *frames]
        size = sum(memoryview(frame).nbytes for frame in message)
        self._sizes[number], self._handlers[number] = size, handler
        # `note` uses the number up, so it comes last: after an interrupt the next request has the same number. The time
        # is when the answer may be missed: a slow link needs long for large messages, and repeats make it slower.
        waiting = self._unanswered_bytes + size
        self._asking.note(number, message, time.monotonic() + waiting / _SLOW_LINK_BYTES_PER_S)
        self._unanswered_bytes = waiting
        self.hub.send(self.peer, message)
        return number

    def tell(self, message: m.Message) -> bool:
        """Send something that is not answered; False if there is no connection."""
        return self.hub.send(self.peer, [m.encode(message)])

    def handler_of(self, number: int) -> Handler | None:
        """Who takes the answer to a request; None if it was answered before."""
        return self._handlers.get(number)

    def take_answer(self, answer: m.Answer, frames: Sequence[Any]) -> None:
        """Let the answer to a request be taken, unless it was before."""
        handler = self.handler_of(answer.number)
        if handler is not None:
            handler(answer, frames)
            self.settle(answer.number)

    def settle(self, number: int) -> None:
        """The answer to a request was taken. Called last: an answer that an interrupt cut short is asked for again."""
        self._asking.answered(number)
        self._handlers.pop(number, None)
        self._unanswered_bytes -= self._sizes.pop(number, 0)

    def come_back(self, peer: bytes) -> None:
        """The connection was renewed: all that is not answered goes out again."""
        self.peer = peer
        for message in self._asking.everything(time.monotonic()):
            self.hub.send(self.peer, message)

    def ask_again(self, now_s: float, limit_s: float) -> None:
        """Send what has waited for its answer for this long once more."""
        for message in self._asking.overdue(now_s, limit_s, self.seen):
            self.hub.send(self.peer, message)

    def remind(self, arena: Arena, now_s: float) -> None:
        """Rows of single slots come without an answer: what is still missing is asked for again."""
        mine = slice(self.slots.start, self.slots.stop)
        if self.reminded_s and (arena.have[mine] != arena.want[mine]).any():
            self.tell(m.Again())
        self.reminded_s = now_s

    def loss_of(self, message: m.Lost) -> Loss | None:
        """What this node tells of a lost worker; None if that was one which has been replaced.

        Raises:
            ProtocolError: it was lost in a slot that it does not have.
        """
        if message.worker >= len(self.blocks) or message.life != self.lives[message.worker]:
            return None
        worker = self.workers.start + message.worker
        if not {message.slot, message.torn} <= {None, *self.blocks[message.worker]}:
            raise ProtocolError(f"worker {worker} was lost in slot {message.slot}, which it does not have.")
        fault = Fault.MEMORY if message.outgrown else Fault.CRASH
        torn = None if message.torn is None else range(message.torn, message.torn + 1)
        return Loss(worker, message.cause, message.slot, torn, message.reported, fault)

    def give_up(self, cause: str, fault: Fault) -> None:
        """It will not answer any more."""
        self.lost, self.cause, self.fault = True, cause, fault
        self._asking.forget()
        self._handlers.clear()
        self._sizes.clear()
        self._unanswered_bytes = 0
