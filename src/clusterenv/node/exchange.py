"""Messages to the workers of this host and from them, over the channel of each."""

from __future__ import annotations

import pickle
import select
import time
from typing import TYPE_CHECKING, Any

from clusterenv.errors import ResultError, named
from clusterenv.node.base import Message
from clusterenv.node.supervisor import LISTEN_S
from clusterenv.transport.arena import Command
from clusterenv.transport.channel import ChannelClosed, ChannelTimeout, pack, pack_by_value
from clusterenv.transport.uninterrupted import uninterrupted
from clusterenv.worker.loop import PLAYED, SETUP, Reply
from clusterenv.worker.report import Report, failure_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from clusterenv.node.handle import WorkerHandle
    from clusterenv.node.workers import Workers
    from clusterenv.transport.shared import SharedArrays

# How long we wait for a message that has been announced. A worker that reads nothing for as long is stuck.
FRAME_S = 30.0


class Exchange:
    """Sends messages to workers, and puts each message of a worker where it belongs.

    Args:
        workers: whose messages these are.

    Attributes:
        reported: what the workers have reported, until somebody sets another in its place.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers, self._handles = workers, workers.handles
        self.reported = Report()

    def post(self, messages: Mapping[int, Message]) -> None:
        """Send each worker its message; each answers with one reply."""
        # Pickle everything before anything is sent: an argument that cannot travel must not leave half a request.
        packed = {worker: pack_by_value((message.name, message.arguments)) for worker, message in messages.items()}
        for worker, data in packed.items():
            handle = self._handles[worker]
            handle.reply, handle.played = None, []  # of a call that was given up
            try:
                if not handle.lost and self.deliver(worker, data, Command.MESSAGE):
                    self._workers.board.ask([worker], Command.MESSAGE)
            except BaseException:
                self._workers.lose(worker, "a message to it was interrupted")  # it may not know that it has one
                raise

    def lend(self, messages: Mapping[int, Message], memory: SharedArrays) -> None:
        """As `post`, with memory that the worker maps: its layout is added to the arguments, its descriptor follows."""
        waiting = list(messages)  # those that have not got the descriptor
        try:
            self.post({w: Message(m.name, (*m.arguments, memory.layout)) for w, m in messages.items()})
            while waiting:
                self.send_fd(self._handles[waiting[0]], memory.fd, "memory")
                waiting.pop(0)
        except ResultError:  # before anything was sent
            raise
        except BaseException:
            for worker in waiting:  # it would take whatever comes next for the descriptor
                self._workers.lose(worker, "the memory on its way to it was interrupted")
            raise

    def tell(self, worker: int, order: tuple[Any, ...] | None) -> None:
        """Give a streaming worker its next order, or None to end its stream."""
        handle = self._handles[worker]
        if not handle.lost:
            self._send_packed(handle, pack(order))

    def deliver(self, worker: int, packed: bytes, command: Command) -> bool:
        """Send a worker a message; return whether it is still to be asked.

        A message that is too large for the socket needs a worker that reads, so the worker is asked while it is sent.
        Otherwise the caller asks afterwards: after Ctrl-C in between, no worker is awake and waits for a message.
        """
        before = self._workers.board.asked(worker)
        sent = self._send_packed(self._handles[worker], packed, lambda: self._workers.board.ask([worker], command))
        return sent and self._workers.board.asked(worker) == before

    def _send_packed(self, handle: WorkerHandle, packed: bytes, wake: Callable[[], None] = lambda: None) -> bool:
        try:
            # The worker may itself be sending. It reads again only when we have taken what it sends.
            handle.channel.send_waking(packed, FRAME_S, wake, lambda: self._receive(handle))
        except (ChannelClosed, ChannelTimeout) as error:
            self._workers.channel_failed(handle, str(error))
            return False
        except BaseException:
            self._workers.lose(handle.worker, "a message to it was interrupted")  # it may have got half of it
            raise
        return not handle.lost

    def send_fd(self, handle: WorkerHandle, fd: int, what: str) -> None:
        """Hand a descriptor to a worker that is not lost."""
        if not handle.lost:
            try:
                handle.channel.send_fd(fd, FRAME_S)
            except (ChannelClosed, ChannelTimeout) as error:
                self._workers.channel_failed(handle, f"it did not take the {what}: {error}")

    def played(self, limit_s: float) -> list[tuple[int, Reply]]:
        """The fragments of streaming workers that have arrived; wait for the first at most `limit_s`."""
        poll = select.poll()
        handles = {handle.channel.fileno(): handle for handle in self._handles if not handle.lost}
        for fd in handles:
            poll.register(fd, select.POLLIN)
        for fd in _readable(handles, poll, limit_s):
            self._receive(handles[fd])
        taken = [(handle.worker, reply) for handle in self._handles for reply in handle.played]
        for handle in self._handles:
            handle.played = []
        return taken

    def replies(
        self, workers: Sequence[int], limit_s: float | None, go_on_waiting: Callable[[], None]
    ) -> dict[int, Reply]:
        """The replies of these workers that arrive within the limit; a lost worker has none.

        `go_on_waiting` is called again and again; it raises if nobody shall wait any longer.
        """
        end = None if limit_s is None else time.monotonic() + limit_s
        poll = select.poll()
        handles = {self._handles[worker].channel.fileno(): self._handles[worker] for worker in workers}
        for fd in handles:
            poll.register(fd, select.POLLIN)
        while any(handle.reply is None and not handle.lost for handle in handles.values()):
            go_on_waiting()
            for handle in handles.values():
                if not handle.bound:
                    handle.push()
            left = None if end is None else end - time.monotonic()
            waiting = {fd: handle for fd, handle in handles.items() if handle.reply is None and not handle.lost}
            ready = _readable(waiting, poll, LISTEN_S if left is None else min(LISTEN_S, max(0.0, left)))
            if not ready and left is not None and left <= 0:
                break
            self._workers.supervisor.listen()
            for fd in ready:
                self._receive(handles[fd])
                if handles[fd].lost or handles[fd].reply is not None:
                    poll.unregister(fd)
        return self._take_replies(handles.values())

    def _take_replies(self, handles: Iterable[WorkerHandle]) -> dict[int, Reply]:
        # Taken at the end: an interrupt while we wait for others must not lose replies that have arrived.
        taken = {}
        for handle in handles:
            if handle.reply is not None:
                taken[handle.worker], handle.reply = handle.reply, None
        return taken

    def reports(self) -> Report:
        """Read every message that was announced; returns all that was reported and not taken."""
        for worker in self._workers.board.announced():
            handle = self._handles[worker]
            while not handle.lost and self._workers.board.unread(worker):
                self._receive(handle)
        return self.reported

    def _receive(self, handle: WorkerHandle) -> None:
        """Read one message of a worker and put it where it belongs."""
        try:
            packed = handle.channel.peek_packed(FRAME_S)
        except (ChannelClosed, ChannelTimeout) as error:
            self._workers.channel_failed(handle, f"its channel failed: {error}")
            return
        # At once: a report that was read and not counted would be waited for, and its worker given up.
        uninterrupted(self._note, handle, self._loaded(handle, packed))

    def _note(self, handle: WorkerHandle, message: Report | Reply) -> None:
        handle.channel.drop()
        if isinstance(message, Report):
            self.reported.extend(message)
            self._workers.board.note_read(handle.worker)
        elif message.request == PLAYED:
            handle.played.append(message)
        elif message.request == self._request_of(handle):
            handle.reply = message
        # Anything else answers a call that was given up.

    def _loaded(self, handle: WorkerHandle, packed: bytes) -> Report | Reply:
        """Unpickle a message. One that cannot be loaded here still counts as a report or as a reply."""
        try:
            message: Report | Reply = pickle.loads(packed)
            return message
        except Exception as error:  # classes of the user's may do anything when they are loaded
            text = f"cannot be loaded in the head: {named(error)}"
            if handle.bound and self._workers.board.unread(handle.worker):
                problem = failure_of(ResultError(f"what the worker reported {text}"), handle.slots.start, "step")
                return Report(failures=[problem])
            return Reply(error=f"the result {text}", request=self._request_of(handle))

    def _request_of(self, handle: WorkerHandle) -> int:
        """The number of the request that a worker was given last."""
        return self._workers.board.asked(handle.worker) if handle.bound else SETUP


def _readable(handles: Mapping[int, WorkerHandle], poll: select.poll, limit_s: float) -> list[int]:
    """The descriptors of workers from which a message can be read; wait for the first at most `limit_s`."""
    kept = [fd for fd, handle in handles.items() if handle.channel.kept]
    return kept or [fd for fd, _ in poll.poll(1000 * limit_s)]
