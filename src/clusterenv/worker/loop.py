"""The worker process: wait for a request, act on the block, answer.

It speaks shared memory for steps and a channel for everything rare, and only to the head that made it. It ends with
the fork server that started it, which ends with the head.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import pickle
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.errors import PolicyError, ResultError
from clusterenv.transport.arena import Arena, Command, Word, next_count
from clusterenv.transport.channel import Channel, ChannelClosed, pack
from clusterenv.transport.shared import SharedArrays
from clusterenv.transport.wake import fence
from clusterenv.worker import strays
from clusterenv.worker.memory import OwnMemory
from clusterenv.worker.report import EnvFailed, Failure, Report, failure_of, packable
from clusterenv.worker.station import Station

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from gymnasium import Space

    from clusterenv.transport.arena import ArenaSpec
    from clusterenv.worker.base import Block

_logger = logging.getLogger(__name__)

# A waiting worker looks up this often; it costs nothing and bounds every wait.
_IDLE_S = 5.0
# With `send`, finished slots are shown to the head about this often, so that a slow slot does not hold back its block.
_SHOW_EVERY_S = 2e-3


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message: how to build the block. It is pickled in two layers, since the path must be set first."""

    worker: int
    sys_path: list[str]
    spare_core: bool
    build: bytes  # a pickled callable that returns the block
    memory_limit: int | None = None  # how many bytes the worker may have for itself
    authkey: bytes = b""  # of the head's process: what a multiprocessing manager of the head asks its clients for


@dataclass(frozen=True, slots=True)
class Binding:
    """The second message: the arena (its descriptor follows) and the spaces agreed by all."""

    spec: ArenaSpec
    observation_space: Space[Any]
    action_space: Space[Any]
    fresh_seeds: tuple[int | None, ...] | None  # given to the replacement of a lost worker


# In place of a request number: the answer to the set-up, and a fragment of a stream.
SETUP = -1
PLAYED = -2


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a message: a value, or what went wrong.

    It names the request that it answers, so that an answer which nobody waits for any more is known as such.
    """

    value: Any = None
    failure: Failure | None = None
    error: str | None = None
    request: int = SETUP


# Actions that fit no array, by row, each with the number that its slot was asked with.
ObjectActions = dict[int, tuple[int, Any]]

# The requests that run the user's policy.
_POLICY_CALLS = ("attach", "play")


def answered(station: Station, name: str, arguments: tuple[Any, ...], request: int = SETUP) -> Reply:
    """Let a station carry out a message. What the user's environments or policy raise is part of the reply."""
    try:
        return Reply(getattr(station, name)(*arguments), request=request)
    except EnvFailed as error:
        return Reply(failure=error.failure, request=request)
    except Exception as error:  # the user's policy may raise whatever it likes
        if name not in _POLICY_CALLS:
            raise
        words = str(error) if isinstance(error, PolicyError) else failure_of(error, -1, name).traceback
        return Reply(error=words, request=request)


def main(sock: socket.socket) -> None:
    """Run a worker on its end of the channel until it is told to close."""
    channel = Channel(sock)
    try:
        setup: Setup = channel.receive(None)
        sys.path[:] = setup.sys_path
        multiprocessing.current_process().authkey = setup.authkey
        block = _build(channel, setup)
        if block is None:
            return
        binding: Binding = channel.receive(None)
        arena = Arena.attach(binding.spec, channel.receive_fd(None))
        block.bind(arena, setup.worker, binding.observation_space, binding.action_space)
        if binding.fresh_seeds is not None:
            block.replace_lost(binding.fresh_seeds)
        # Whatever building the environments left behind stays: spare the collector from looking at it again.
        gc.freeze()
        WorkerLoop(channel, arena, setup, block).run()
    except ChannelClosed:
        _logger.debug("the head is gone")


def _build(channel: Channel, setup: Setup) -> Block | None:
    try:
        block: Block = pickle.loads(setup.build)()
        channel.send(Reply(block.describe()), None)
        return block
    except EnvFailed as error:
        channel.send(Reply(failure=error.failure), None)
    except Exception as error:  # a factory that cannot be unpickled, a space that cannot be pickled
        channel.send(Reply(error=failure_of(error, -1, "build").traceback), None)
    return None


class WorkerLoop:
    """Serves requests for one block."""

    def __init__(self, channel: Channel, arena: Arena, setup: Setup, block: Block) -> None:
        self._channel, self._arena, self._block = channel, arena, block
        worker, slots = setup.worker, block.slots
        self._words = arena.words
        self._go, self._command = arena.word(worker, Word.GO), arena.word(worker, Word.COMMAND)
        self._done, self._frames = arena.word(worker, Word.DONE), arena.word(worker, Word.FRAMES)
        self._asked = arena.signal(worker, Word.GO, Word.SLEEPS, spare_core=setup.spare_core)
        self._asked_of_all, self._done_by_all = arena.column(Word.GO), arena.column(Word.DONE)
        rows = arena.spec.rows(slots)
        self._want, self._have = arena.want[rows], arena.have[rows]
        self._all_rows = list(range(len(slots)))
        self._bell = arena.bell_signal(spare_core=setup.spare_core)
        # Every ring is another value: of n workers, worker w rings w + n, w + 2n, and so on. The replacement of a lost
        # one goes on from where the bell stands, or its first ring might change nothing.
        self._ring_step = arena.spec.num_workers
        self._ring = arena.bell[0] // self._ring_step * self._ring_step + worker
        self._row_s = 0.0  # how long a row took in the last group that `_send` stepped
        self._object_actions: ObjectActions = {}
        self._station = Station(block, arena, worker)
        self._memory_limit = setup.memory_limit
        self._memory = None if setup.memory_limit is None else OwnMemory()
        self._outgrown_word = arena.word(worker, Word.MEMORY)

    def run(self) -> None:
        """Serve until told to close."""
        words, asked = self._words, self._asked
        seen = words[self._done]
        while True:
            if not asked.wait_while(seen, _IDLE_S):
                continue
            # GO is read before `want`: a request that arrives during a pass changes GO again and starts another.
            seen = words[self._go]
            command = words[self._command]
            if self._memory is not None and command != Command.MESSAGE and self._closed_as_outgrown():
                return
            if command == Command.STEP:
                self._step(seen, self._all_rows)
            elif command == Command.STEP_SOME:
                self._step(seen, self._wanted())
            elif command == Command.SEND:
                self._send(seen)
            elif not self._message(seen):
                return

    def _closed_as_outgrown(self) -> bool:
        """Close the environments if they have taken more memory than this worker may have. Returns whether they have.

        Asked before a step, never in one: nothing is lost but the episodes. The head sees us end, and why.
        """
        if self._memory is None or self._memory_limit is None or (used := self._memory.used()) <= self._memory_limit:
            return False
        self._words[self._outgrown_word] = max(1, used // 2**20)
        self._station.close()
        return True

    def _wanted(self) -> list[int]:
        rows: list[int] = np.flatnonzero(self._want != self._have).tolist()
        return rows

    def _step(self, request: int, rows: list[int]) -> None:
        """Lock step: one answer for all these rows."""
        self._station.note_step(rows)
        actions = self._actions(rows)
        # No rows: the head has answered for all of them by itself, because they were lost before they were asked for.
        packed = self._pack(self._block.step(rows, actions)) if rows else None
        self._show(rows, packed)
        self._finish(request)
        if packed:
            self._channel.send_packed(packed, None)

    def _send(self, request: int) -> None:
        """First come, first served: show slots in small groups as they finish."""
        rows = self._wanted()
        self._station.note_step(rows)
        actions = self._actions(rows)
        start = 0
        while start < len(rows):
            stop = len(rows) if self._row_s == 0.0 else start + max(1, int(_SHOW_EVERY_S / self._row_s))
            group = rows if self._block.whole else rows[start:stop]
            began = time.perf_counter()
            report = self._block.step(group, actions[start : start + len(group)])
            self._row_s = (time.perf_counter() - began) / len(group)
            packed = self._pack(report)
            self._show(group, packed)
            self._ring_bell()
            if packed:
                self._channel.send_packed(packed, None)
            start += len(group)
        self._finish(request)

    def _finish(self, request: int) -> None:
        """This request is answered. Only the last worker to answer wakes the head.

        Woken by every one, it would take a core from those that are still at work. If two are last at the same time,
        both see it, because of the fence.
        """
        self._words[self._done] = request
        fence()
        if self._done_by_all.tobytes() == self._asked_of_all.tobytes():
            self._ring_bell()

    def _actions(self, rows: list[int]) -> Sequence[Any]:
        if self._arena.action:
            return self._block.actions(rows)
        # A space that fits no array: the actions come as messages. There may be several if slots were sent while we
        # were at work, and old ones: a head that was interrupted asks again, or gives up what it has sent. Those are
        # read, too: a head whose message is too large for the socket waits until it is.
        waiting = self._object_actions
        while self._channel.readable() or any(row not in waiting or waiting[row][0] != self._want[row] for row in rows):
            waiting.update(self._channel.receive(None))
        return [waiting.pop(row)[1] for row in rows]

    def _show(self, rows: list[int], packed: bytes | None) -> None:
        # The head looks at `have` first and at FRAMES then, so FRAMES is written first. The message itself follows
        # after the head is awake: a large one fills the socket, and then the head must be there to read it.
        if packed:
            self._words[self._frames] = next_count(self._words[self._frames])
        if len(rows) == len(self._have):
            self._have[:] = self._want
        else:
            self._have[rows] = self._want[rows]

    def _ring_bell(self) -> None:
        self._ring = (self._ring + self._ring_step) & 0x7FFFFFFF
        self._arena.bell[0] = self._ring
        fence()
        self._bell.wake()

    def _pack(self, report: Report) -> bytes | None:
        if not report:
            return None
        try:
            return pack(report)
        except ResultError:
            return pack(packable(report, pack))

    def _message(self, request: int) -> bool:
        message = self._channel.receive(None)
        while isinstance(message, dict):  # actions of a step that was given up
            message = self._channel.receive(None)
        name, arguments = message
        if name == "play" and self._closed_as_outgrown():
            return False
        if name == "close":
            self._station.close()
            self._finish(request)
            self._channel.send(Reply(request=request), None)
            return False
        if name in ("attach", "share"):
            # The last argument is the layout of a memory, whose descriptor follows.
            arguments = (*arguments[:-1], SharedArrays.attach(arguments[-1], self._channel.receive_fd(None)))
        packed = self._stream(request) if name == "stream" else self._answer_message(request, name, arguments)
        if packed is None:
            return False
        self._finish(request)
        self._channel.send_packed(packed, None)
        return True

    def _stream(self, request: int) -> bytes | None:
        """Play fragment after fragment, as buffers come in, until there is no next. The head is never waited for.

        None if this worker has outgrown its memory, and ends.
        """
        while (order := self._channel.receive(None)) is not None:
            if self._closed_as_outgrown():
                return None
            self._channel.send_packed(self._answer_message(PLAYED, "play", order), None)
        return pack(Reply(request=request))

    def _answer_message(self, request: int, name: str, arguments: tuple[Any, ...]) -> bytes:
        reply = answered(self._station, name, arguments, request)
        try:
            return pack(reply)
        except ResultError as error:
            if isinstance(reply.value, Report):
                return pack(Reply(packable(reply.value, pack, name), request=request))
            return pack(Reply(error=f"the result of {arguments[1]!r} {error}", request=request))


def run_forked(sock: socket.socket) -> None:
    """Run a worker in a freshly forked process and end the process."""
    code = 1
    strays.guard()
    try:
        main(sock)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        _logger.exception("a worker ends by an error of its own")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
