"""Messages to single workers on other hosts, and their replies: resets, calls, policies, orders to play.

This is a half of `RemoteNode`; it stands here to keep that readable.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from clusterenv.errors import ProtocolError
from clusterenv.node.records import CODEC, pack_message, unpack_reply
from clusterenv.node.rows import copy_block
from clusterenv.wire import messages as m
from clusterenv.worker.actor import Fragment
from clusterenv.worker.loop import Reply
from clusterenv.worker.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterenv.node.base import Message
    from clusterenv.node.host import Host
    from clusterenv.node.lending import Lending
    from clusterenv.transport.arena import Arena
    from clusterenv.transport.fragments import Fragments
    from clusterenv.transport.shared import SharedArrays

_LOOK_S = 0.25


class Mail:
    """post, lend, tell, and what comes back."""

    blocks: list[range]
    _hosts: list[Host]
    _host_of: list[Host]  # by worker
    _alive: list[bool]
    _lending: Lending

    def __init__(self) -> None:
        self._posted: dict[int, int] = {}  # workers that owe a reply, with the number of the request
        self._replies: dict[int, Reply] = {}
        self._played: list[tuple[int, Reply]] = []

    # What the other half has.

    def incarnation(self, worker: int) -> int:
        """Another number for every process that takes this worker's place."""
        raise NotImplementedError

    def listen(self) -> None:
        """Take what has arrived."""
        raise NotImplementedError

    def _pump(self, limit_s: float) -> bool:
        raise NotImplementedError

    def _spent(self, left_s: float) -> bool:
        raise NotImplementedError

    def _bound(self) -> Arena:
        raise NotImplementedError

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
        expected = None
        if message.name in ("call", "play"):
            expected = len(message.arguments[0]) if message.name == "call" else message.arguments[0]

        def take(answer: m.Answer, frames: Sequence[Any]) -> None:
            if self._posted.get(worker) != answer.number:
                return  # a call that was given up
            if answer.error or answer.value:
                self._replies[worker] = self._reply(worker, message.name, answer, frames, expected)
            del self._posted[worker]  # last: an answer that was interrupted on the way comes again

        return take

    def _reply(
        self, worker: int, name: str, answer: m.Answer, frames: Sequence[Any], expected: int | None = None
    ) -> Reply:
        """A reply that was checked; `expected` is how many results a call has, or the buffer that was to be filled."""
        if answer.error:
            return Reply(error=answer.error)
        reply = unpack_reply(answer.value, self.blocks[worker], name, expected if name == "call" else None)
        if isinstance(reply.value, Fragment):
            if reply.value.buffer != expected:
                raise ProtocolError(f"buffer {reply.value.buffer} was filled in place of {expected}.")
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
            if type(replies) is not dict or not all(isinstance(reply, Reply) for reply in replies.values()):
                raise ProtocolError("something else than replies came from workers that were lent memory.")
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
        host, life = self._host_of[worker], self.incarnation(worker)

        def played(answer: m.Answer, frames: Sequence[Any]) -> None:
            # What a worker has played that was lost since must not reach the memory that its replacement fills.
            if (answer.error or answer.value) and self._alive[worker] and self.incarnation(worker) == life:
                buffer = None if order is None else order[0]
                self._played.append((worker, self._reply(worker, "play", answer, frames, buffer)))

        host.ask(m.Tell, played, worker=worker - host.workers.start, order=order)

    def played(self, limit_s: float) -> list[tuple[int, Reply]]:
        """The fragments that have arrived; wait for the first at most `limit_s`."""
        if not self._played:
            self._pump(limit_s)
        self.listen()
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
            if self._spent(left):
                break
        else:
            self._pump(0.0)  # nobody owes anything: why, may be on its way
        return {worker: self._replies.pop(worker) for worker in workers if worker in self._replies}
