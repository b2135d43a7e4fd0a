"""Messages to single workers on other hosts, and their replies: resets, calls, policies, orders to play."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterenv.errors import ProtocolError
from clusterenv.node.records import CODEC, check_reply, pack_message, unpack_reply
from clusterenv.node.rows import copy_block
from clusterenv.transport.uninterrupted import uninterrupted
from clusterenv.wire import messages as m
from clusterenv.worker.actor import Fragment
from clusterenv.worker.loop import Reply
from clusterenv.worker.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterenv.node.base import Message
    from clusterenv.node.crew import Crew
    from clusterenv.node.host import Host
    from clusterenv.node.lending import Lending
    from clusterenv.transport.arena import Arena
    from clusterenv.transport.shared import SharedArrays

    Handler = Callable[[m.Answer, Sequence[Any]], None]


class Mail:
    """What was sent to workers and is not answered, and what was answered and not fetched.

    Args:
        crew: the workers.
        lending: the memory that they are lent.
        arena: of the head.
    """

    def __init__(self, crew: Crew, lending: Lending, arena: Arena) -> None:
        self._crew, self._lending, self._arena = crew, lending, arena
        self._posted: dict[int, int] = {}  # workers that owe a reply, with the number of the request
        self._replies: dict[int, Reply] = {}
        self._played: list[tuple[int, Reply]] = []

    def owes(self, worker: int) -> bool:
        """Whether a worker has a message that it has not answered."""
        return worker in self._posted

    def forget(self, worker: int) -> None:
        """A worker is lost: it owes nothing."""
        self._posted.pop(worker, None)

    def take_replies(self, workers: Sequence[int]) -> dict[int, Reply]:
        """The replies of these workers that have arrived."""
        return {worker: self._replies.pop(worker) for worker in workers if worker in self._replies}

    def take_played(self) -> list[tuple[int, Reply]]:
        """The fragments of streaming workers that have arrived."""
        played, self._played = self._played, []
        return [(worker, reply) for worker, reply in played if self._crew.alive[worker]]

    @property
    def has_played(self) -> bool:
        """Whether a fragment has arrived."""
        return bool(self._played)

    def post(self, messages: Mapping[int, Message]) -> None:
        """Send each worker its message; each answers with one reply."""
        packed = {worker: pack_message(message) for worker, message in messages.items()}
        for worker, data in packed.items():
            self._replies.pop(worker, None)
            if self._crew.alive[worker]:
                uninterrupted(self._post_one, worker, messages[worker], data)

    def _post_one(self, worker: int, message: Message, data: bytes) -> None:
        """Ask and note it. A worker that was asked and owes nothing, as far as we know, would be asked too early again.

        What it answers first would then be taken for the answer to the second, for which nothing comes any more.
        """
        host, replied = self._crew.host_of(worker), self._replied(worker, message)
        self._posted[worker] = host.ask(m.Post, replied, worker=self._crew.within(worker), message=data)

    def _replied(self, worker: int, message: Message) -> Handler:
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

    def _reply(self, worker: int, name: str, answer: m.Answer, frames: Sequence[Any], expected: int | None) -> Reply:
        """A reply that was checked; `expected` is how many results a call has, or the buffer that was to be filled."""
        if answer.error:
            return Reply(error=answer.error)
        block = self._crew.blocks[worker]
        reply = unpack_reply(answer.value, block, name, expected if name == "call" else None)
        if isinstance(reply.value, Fragment):
            if reply.value.buffer != expected:
                raise ProtocolError(f"buffer {reply.value.buffer} was filled in place of {expected}.")
            self._lending.take_fragment(self._arena, block, reply.value, frames)
        elif isinstance(reply.value, Report):
            copy_block(self._arena, block, frames)
        return reply

    def lend(self, messages: Mapping[int, Message], memory: SharedArrays) -> None:
        """As `post`; every node makes memory of its own for its workers, in the place of this."""
        living = [worker for worker in messages if self._crew.alive[worker]]
        for index, workers in self._crew.by_host(living).items():
            host, message = self._crew.hosts[index], messages[workers[0]]
            data = CODEC.pack(self._lending.data_of(message, memory))
            mine = [self._crew.within(worker) for worker in workers]
            fields = {"workers": mine, "name": message.name, "memory": memory.number, "message": data}
            uninterrupted(self._lend_one, host, workers, fields)
            self._lending.lent(host, memory.number)

    def _lend_one(self, host: Host, workers: Sequence[int], fields: dict[str, Any]) -> None:
        asked = host.ask(m.Lend, self._lent(host), **fields)
        for worker in workers:
            self._replies.pop(worker, None)
            self._posted[worker] = asked

    def _lent(self, host: Host) -> Handler:
        def take(answer: m.Answer, frames: Sequence[Any]) -> None:
            replies = {} if answer.error else CODEC.unpack(answer.value)
            if type(replies) is not dict:
                raise ProtocolError("something else than replies came from workers that were lent memory.")
            for reply in replies.values():
                check_reply(reply, host.slots, "lend")
            for mine, worker in enumerate(host.workers):
                if self._posted.get(worker) != answer.number:
                    continue
                if answer.error:
                    self._replies[worker] = Reply(error=answer.error)
                elif mine in replies:
                    self._replies[worker] = replies[mine]
                del self._posted[worker]

        return take

    def tell(self, worker: int, order: tuple[Any, ...] | None) -> None:
        """Give a streaming worker its next order, or None to end its stream."""
        if not self._crew.alive[worker]:
            return
        life, buffer = self._crew.incarnation(worker), None if order is None else order[0]

        def played(answer: m.Answer, frames: Sequence[Any]) -> None:
            # What a worker has played that was lost since must not reach the memory that its replacement fills.
            same = self._crew.alive[worker] and self._crew.incarnation(worker) == life
            if same and (answer.error or answer.value):
                self._played.append((worker, self._reply(worker, "play", answer, frames, buffer)))

        self._crew.host_of(worker).ask(m.Tell, played, worker=self._crew.within(worker), order=order)
