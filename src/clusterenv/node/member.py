"""The node program: joins a head, serves it, and ends when it is told to, or when the head falls silent.

A signal means that an engine wants the host back: the node finishes the requests that it is at, hands over their
answers, tells the head that it leaves, and ends well.

A node that was told to keep trying outlives its head: it ends its workers, as it always does, and waits for another
head of the same run, to which it comes as a fresh node.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import logging
import os
import pathlib
import platform
import secrets
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium

from clusterenv._version import __version__
from clusterenv.config import usable_cores
from clusterenv.errors import ConfigError, GivenUp, LaunchError, named, words_of
from clusterenv.launchers.tail import shown
from clusterenv.node.forkserver import ENGINE_SIGNALS
from clusterenv.node.service import Service
from clusterenv.transport.sockets import Address, Link, reachable
from clusterenv.wire import messages as m
from clusterenv.wire.failures import whole_characters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterenv.transport.security import NodeKeys

_logger = logging.getLogger(__name__)

# Until the head says otherwise: how long we look for it, and then wait for its welcome.
_JOIN_S = 30.0
_LOOK_S = 0.25
_GOODBYE_S = 0.5
# After a signal: how long what is under way may take, and its answers to go out. An engine kills us soon after.
_DRAIN_S, _LAST_ANSWERS_S = 20.0, 5.0
# How long a connected node waits to be let in: a head that is busy learning reads no messages meanwhile.
_WELCOME_S = 600.0
# How often a node that keeps trying looks for its head.
_RETRY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """How a node joins.

    Attributes:
        heads: addresses of the head, tried in this order.
        keys: of the run.
        imports: modules to import first, so that their environments are known here.
        workers: how many workers; 0 for one per core.
        name: of this node, for messages.
        index: which node of its launcher it is, if that is known.
        stdin: whether the node ends when standard input closes.
        alive_file: is touched as long as the node is in touch with the head; "" for none.
        keep_trying_s: how long it looks for the head, at the start and whenever it has lost it; 0 ends with the head.
    """

    heads: Sequence[Address]
    keys: NodeKeys
    imports: Sequence[str] = ()
    workers: int = 0
    name: str = ""
    index: int | None = None
    stdin: bool = False
    alive_file: str = ""
    keep_trying_s: float = 0.0


class NoHead(LaunchError):
    """There is no head that lets this node in; one may come."""


def run_node(membership: Membership) -> bool:
    """Join the head and serve it to the end; whether the head has told us to end.

    Raises:
        ConfigError: a module cannot be imported.
        LaunchError: no address of the head can be reached, or the head refuses this node.
    """
    for module in membership.imports:
        _import(module)
    epoch, lost_s = 0, time.monotonic()
    while True:
        life = _live(membership, epoch)
        if life.problem is None:
            return life.told
        if life.let_in:
            epoch, lost_s = life.epoch, time.monotonic()
        left_s = lost_s + membership.keep_trying_s - time.monotonic()
        if left_s <= 0:
            raise life.problem
        _logger.warning("%s Looking for a head of this run for %.0f s more.", words_of(life.problem), left_s)
        time.sleep(min(_RETRY_S, left_s))


class _Life(NamedTuple):
    """From the search for a head to the end of its service.

    Attributes:
        told: whether the head has told us to end.
        problem: why another life may follow, or None.
        let_in: whether a head has let us in.
        epoch: of the last head that has.
    """

    told: bool
    problem: NoHead | GivenUp | None
    let_in: bool = False
    epoch: int = 0


def _live(membership: Membership, epoch: int) -> _Life:
    try:
        address, answered = _first_reachable(membership.heads)
    except NoHead as error:
        return _Life(False, error)
    link = Link(membership.keys, answered)
    member = Member(membership, link, address, epoch)
    told = False
    problem: NoHead | GivenUp | None = None
    try:
        told = member.run()
        if member.interrupted and not member.let_in:
            raise KeyboardInterrupt  # nobody misses this node: it is Ctrl-C as in any other program
        if member.abandoned and membership.keep_trying_s:
            problem = NoHead("the head fell silent.")
    except (NoHead, GivenUp) as error:
        problem = error
    finally:
        link.close(_LAST_ANSWERS_S if member.draining else _GOODBYE_S)
    return _Life(told, problem, member.let_in, member.epoch)


class Member:
    """One node's connection and what it serves through it.

    Args:
        membership: how it joins.
        link: the connection.
        address: of the head, as the user wrote it.
        epoch: of the last head that this process has served; an earlier one is not let in any more.

    Attributes:
        epoch: the same, with the head of this connection.
        let_in: whether that head has let us in.
        abandoned: whether it has ended because the head fell silent.
        interrupted: whether somebody has pressed Ctrl-C.
    """

    def __init__(self, membership: Membership, link: Link, address: Address, epoch: int = 0) -> None:
        self._membership, self._link, self._address = membership, link, address
        self.epoch, self.abandoned, self.interrupted = epoch, False, False
        self._service = Service(self._send, membership.imports)
        self._outbox: collections.deque[list[Any]] = collections.deque()
        self._incarnation = secrets.token_hex(8)
        self._connected = self.let_in = False
        self._unheard = False  # whether the head has not confirmed the last beat yet
        self._silence_s, self._beat_s = _JOIN_S, 2.0
        self._down_since = self._beat_at = time.monotonic()
        self._why = "told to"  # the node ends, once it does
        self._leaving = False
        self._drained_by: float | None = None  # after a signal: until when what is under way may take
        self._hurried = False  # whether a second signal has come
        # Connection, signals and clock are looked at when something has come, or else at this time.
        self._look_now, self._look_at = True, 0.0

    def run(self) -> bool:
        """Serve until the end; whether the head has told us to end."""
        before: dict[signal.Signals, Any] = {}
        for number in (*ENGINE_SIGNALS, signal.SIGINT):
            with contextlib.suppress(ValueError):  # not in the main thread: a test
                before[number] = signal.signal(number, self._take_signal)
        try:
            while not self._service.ended and not self._leaving:
                self._turn()
            _logger.info("the node ends: %s", self._why)
            return self._service.ended
        except BaseException as error:
            self._why = named(error)[:1000]
            raise
        finally:
            self._flush()
            self._link.send([m.encode(m.Leave(reason=self._why, preempted=self.draining))])
            self._service.close(0.0)
            for number, handler in before.items():
                signal.signal(number, handler)

    @property
    def draining(self) -> bool:
        """Whether it finishes what is under way, and takes nothing new."""
        return self._drained_by is not None

    def _take_signal(self, number: int, frame: Any) -> None:
        """The first signal asks us to finish what is under way, the second to leave at once."""
        self._hurried, self._look_now = self.draining, True
        self.interrupted = self.interrupted or number == signal.SIGINT
        if self._drained_by is None:
            self._drained_by = time.monotonic() + _DRAIN_S
            self._why = f"signal {signal.Signals(number).name}"

    def _drained(self) -> bool:
        if self._drained_by is None:
            return False
        return self._hurried or self._service.idle or time.monotonic() > self._drained_by

    def _over(self) -> bool:
        """Whether it is time to leave; `_why` says for which reason."""
        if self._drained():
            return True
        self.abandoned = self._head_is_silent()
        if not self.abandoned and self._membership.stdin and _closed(sys.stdin.fileno()):
            self._why = "standard input was closed"
            return True
        return self.abandoned

    def _head_is_silent(self) -> bool:
        """Whether the head that has let us in was not reached for too long. NoHead if it never has let us in."""
        if self._connected and self.let_in:
            return False
        silent_s = time.monotonic() - self._down_since
        limit_s = _WELCOME_S if self._connected else self._silence_s
        if silent_s <= limit_s:
            return False
        if not self.let_in:
            raise NoHead(
                f"the head at {self._address.url} did not let this node in within {limit_s:.0f} s. Is the key file "
                "that of this run?"
            )
        self._why = f"the head fell silent for {silent_s:.0f} s"
        return True

    def _turn(self) -> None:
        """Serve what has come. Between two steps of the environments nothing else is done, except now and then."""
        now = time.monotonic()
        if self._look_now or self.draining or now >= self._look_at:
            self._look_at = now + _LOOK_S
            self._look_around()
        while (frames := self._link.receive()) is not None:
            self._take(frames)
            if self._service.ended:
                return
        self._service.progress()
        self._flush()
        if not self._service.stepping:
            limit_s = 0.005 if self._outbox else _LOOK_S
            others = [sys.stdin.fileno()] if self._membership.stdin else []
            self._look_now = self._link.wait(limit_s, self._service.descriptors(), others)

    def _look_around(self) -> None:
        for event in self._link.events():
            self._note(event)
        self._beat()
        self._leaving = self._over()

    def _note(self, event: str) -> None:
        if event == "up":
            self._connected, self._unheard = True, False
            self._send([m.encode(self._hello())])
            self._service.send_again()
        elif event == "down":
            if self._connected:  # every attempt that fails is told as well
                self._connected, self._down_since = False, time.monotonic()
            self._outbox.clear()
        elif not self.let_in:
            raise LaunchError(f"the head at {self._address.url} {self._refusal}")

    @property
    def _refusal(self) -> str:
        """Why it does not let us in, as far as this side can know."""
        if self._address.secure:
            return (
                "refused the keys of this node. Take the key file of this run; or, if the head was started with "
                "--insecure, start the node with it too."
            )
        return (
            "wants encryption and keys, and this node was started with --insecure. Start both with it, or better, both "
            "without."
        )

    def _take(self, frames: list[Any]) -> None:
        message = m.decode_from_head(frames)
        if isinstance(message, m.Refuse):
            kind = GivenUp if self.let_in else LaunchError
            raise kind(f"the head refused this node: {shown(message.reason)}")
        if isinstance(message, m.Welcome):
            if message.epoch < self.epoch:
                raise NoHead(
                    f"the head at {self._address.url} is an earlier one (epoch {message.epoch}); this node has served "
                    f"epoch {self.epoch}. End that head."
                )
            self.let_in = True
            self.epoch = self._service.epoch = message.epoch
            self._silence_s, self._beat_s = message.silence_s, message.beat_s
        elif isinstance(message, m.Heard):
            self._unheard = False
        elif not (self.draining and isinstance(message, m.Request)):  # another node will be asked
            self._service.handle(message, frames[1:])

    def _send(self, frames: list[Any]) -> None:
        if self._connected:  # otherwise it is sent again when there is a connection
            self._outbox.append(frames)
            self._flush()

    def _flush(self) -> None:
        while self._outbox and self._link.send(self._outbox[0]):
            self._outbox.popleft()

    def _beat(self) -> None:
        now = time.monotonic()
        ready = self.let_in and self._connected and not self._unheard and not self._outbox
        if ready and now >= self._beat_at:
            self._beat_at = now + self._beat_s
            if self._membership.alive_file:
                pathlib.Path(self._membership.alive_file).touch()
            beat = m.Beat(progress=self._service.played_steps(), seen=self._service.seen)
            self._unheard = self._link.send([m.encode(beat)])

    def _hello(self) -> m.Hello:
        mine = self._membership
        return m.Hello(
            protocol=m.PROTOCOL,
            run=mine.keys.run,
            incarnation=self._incarnation,
            name=whole_characters(mine.name or socket.gethostname())[: m.NAME_CHARS],
            index=mine.index,
            clusterenv=__version__,
            python=platform.python_version(),
            gymnasium=gymnasium.__version__,
            cores=usable_cores(),
            workers=mine.workers,
            imports=list(mine.imports),
            epoch=self.epoch,
            fresh=not self.let_in,
        )


def _import(module: str) -> None:
    """Import a module that this host's own command line names."""
    try:
        importlib.import_module(module)
    except Exception as error:  # the user's code
        why, here = named(error), socket.gethostname()
        raise ConfigError(f"--import {module}: {why}. Install what it needs on {here}.") from error


def _first_reachable(heads: Sequence[Address]) -> tuple[Address, Address]:
    """The first address that answers, as it was given and in numbers."""
    tried = []
    for address in heads:
        try:
            return address, reachable(address)
        except OSError as error:
            tried.append(f"{address.host}:{address.port} ({error.strerror or error})")
    raise NoHead(
        f"head address not reachable from the node {socket.gethostname()}: tried {', '.join(tried)}. Open the port, or "
        "set bind= of the cluster to an address of the head that its nodes can reach."
    )


def _closed(fd: int) -> bool:
    """Whether an input has come to its end; what somebody types is thrown away."""
    ready, _, _ = select.select([fd], [], [], 0)
    return bool(ready) and os.read(fd, 4096) == b""
