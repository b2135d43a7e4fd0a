"""A head with nodes that are made up: no sockets and no processes, and every answer is for the test to choose."""

from __future__ import annotations

import collections
import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from clusterenv._version import __version__
from clusterenv.clusters import Tcp
from clusterenv.node import joining
from clusterenv.node.records import CODEC
from clusterenv.node.remote import RemoteNode
from clusterenv.spaces import leaves_of
from clusterenv.transport.arena import Arena, ArenaSpec
from clusterenv.transport.security import parse_keys
from clusterenv.wire import messages as m
from clusterenv.wire.envs import BuildOrder
from clusterenv.wire.frames import frame_of, join
from clusterenv.worker.describe import BlockDescription
from clusterenv.worker.loop import Reply
from clusterenv.worker.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pytest

    from clusterenv.launchers.base import NodeJob

Frames = list[Any]
OBSERVATION, ACTION = spaces.Box(0.0, 1e6, (2,), np.float32), spaces.Discrete(3)


class Puppet:
    """A node with one worker. Sets `lie` to answer something else than a node would."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.peer = b"peer %d" % index
        self.slots = range(0)
        self.heard: list[m.Message] = []
        self.lie: Callable[[m.Message, Frames], list[Frames]] | None = None

    def answers(self, message: m.Message, frames: Sequence[Any]) -> list[Frames]:
        """What comes of a message."""
        self.heard.append(message)
        truth = self._truth(message, list(frames))
        if self.lie is None or not truth:
            return truth
        return self.lie(message, truth[0])

    def _truth(self, message: m.Message, frames: Frames) -> list[Frames]:
        if isinstance(message, m.Build):
            ((start, stop),) = message.blocks
            self.slots = range(start, stop)
            found = [BlockDescription(self.slots, OBSERVATION, ACTION, {}, None, ())]
            return [self._answer(message, CODEC.pack(found))]
        if isinstance(message, m.Bind):
            return [self._answer(message, CODEC.pack([1000 + self.index]))]
        if isinstance(message, m.Step):
            return [[m.encode(m.Rows(number=message.number)), bytes(frames[0]), *self._rows(1)]]
        if isinstance(message, m.Post):
            name, _ = CODEC.unpack(message.message)
            value = Report() if name == "reset" else [None] * len(self.slots)
            rows = self._rows(0) if name == "reset" else []
            return [[*self._answer(message, CODEC.pack(Reply(value))), *rows]]
        return []

    def _answer(self, message: m.Request, value: bytes) -> Frames:
        return [m.encode(m.Answer(number=message.number, value=value))]

    def _rows(self, steps: int) -> Frames:
        count = len(self.slots)
        observed = np.array([[slot, steps] for slot in self.slots], np.float32)
        flags = np.zeros(count, np.bool_)
        return [bytes(frame_of(each)) for each in (observed, np.ones(count), flags, flags)]

    def hello(self, run: str, /, **changes: Any) -> m.Hello:
        """How it introduces itself."""
        fields: dict[str, Any] = {
            "protocol": m.PROTOCOL,
            "run": run,
            "incarnation": f"incarnation {self.index}",
            "name": f"puppet{self.index}",
            "index": self.index,
            "clusterenv": __version__,
            "python": "3",
            "gymnasium": "1",
            "cores": 1,
            "workers": 1,
            "imports": [],
        }
        return m.Hello(**{**fields, **changes})


class Theatre:
    """Is the head's socket and its launcher in one.

    Attributes:
        puppets: the nodes.
        hellos: what each changes in its hello.
        told: (peer, message) that the head sent.
    """

    nodes = 2
    port = 1

    def __init__(self, count: int = 2) -> None:
        self.puppets = [Puppet(index) for index in range(count)]
        self.hellos: list[dict[str, Any]] = [{} for _ in range(count)]
        self.told: list[tuple[bytes, m.Message]] = []
        self.run = ""
        self.restarted: list[int] = []
        self.closed = False
        self._waiting: collections.deque[tuple[bytes, Frames]] = collections.deque()

    # As a launcher.

    def start(self, job: NodeJob) -> None:
        self.run = parse_keys(job.keys).run
        for puppet, changes in zip(self.puppets, self.hellos, strict=True):
            self.arrive(puppet.peer, [m.encode(puppet.hello(self.run, **changes))])

    def restart(self, node: int) -> bool:
        self.restarted.append(node)
        return False

    def status(self) -> str:
        return "puppets"

    def failure(self) -> str | None:
        return None

    def logs(self) -> dict[str, str]:
        return {}

    def script(self, job: NodeJob) -> str:
        return ""

    # As a socket.

    def send(self, peer: bytes, frames: Sequence[Any]) -> bool:
        message = m.decode_from_head(frames)
        self.told.append((peer, message))
        for puppet in self.puppets:
            if puppet.peer == peer:
                for answer in puppet.answers(message, frames[1:]):
                    self.arrive(peer, answer)
                return True
        return False

    def expect(self, size: int) -> None:
        """Nobody sends too much here."""

    def arrive(self, peer: bytes, frames: Frames) -> None:
        """A message of a node is on its way."""
        self._waiting.append((peer, join(frames)))

    def receive(self, limit_s: float) -> tuple[bytes, Frames] | None:
        return self._waiting.popleft() if self._waiting else None

    def close(self, limit_s: float = 0.0) -> None:
        self.closed = True

    def refusals(self, peer: bytes) -> list[str]:
        """Why the head told a peer to go."""
        return [each.reason for to, each in self.told if to == peer and isinstance(each, m.Refuse)]


def arrives_again(theatre: Theatre, index: int, peer: bytes) -> None:
    """Another process says that it is this node."""
    another = Puppet(index)
    another.peer = peer
    theatre.puppets.append(another)
    theatre.arrive(peer, [m.encode(another.hello(theatre.run, incarnation=f"of {peer!r}"))])


class Head:
    """A head and its arena. The memory lives as long as somebody holds them, so they are let go at the end."""

    node: RemoteNode
    arena: Arena


@contextlib.contextmanager
def on_stage(
    monkeypatch: pytest.MonkeyPatch,
    theatre: Theatre,
    num_envs: int = 4,
    wait_s: float | None = 60.0,
    silence_s: float = 10.0,
) -> Iterator[Head]:
    """A head that has started with these nodes."""
    monkeypatch.setattr(joining, "Hub", lambda keys, host, port, **options: theatre)
    order = BuildOrder([["X-v0", {}, []]], [0] * num_envs, AutoresetMode.NEXT_STEP, True)
    head = Head()
    cluster = Tcp(nodes=len(theatre.puppets), wait_s=wait_s, silence_s=silence_s)
    head.node = RemoteNode(order, num_envs, cluster, theatre)
    try:
        head.node.start(60.0)
        leaves = [tuple(leaves_of(space) or ()) for space in (OBSERVATION, ACTION)]
        head.arena = Arena.create(ArenaSpec(num_envs, len(head.node.blocks), leaves[0], leaves[1]))
        head.node.bind(head.arena, OBSERVATION, ACTION)
        yield head
    finally:
        head.node.close(0.0)
        vars(head).clear()
