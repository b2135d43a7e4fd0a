"""A wire that does not what it should: messages between a real head and real nodes are lost, doubled or changed.

It sits in the head's socket, so a request that is dropped there is lost for the node, and a reply for the head.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clusterenv.transport.sockets import Hub
from clusterenv.wire import messages as m
from clusterenv.wire.frames import join, split

if TYPE_CHECKING:
    import pytest

Frames = list[Any]
# What becomes of a message: the messages that are passed on in its place.
Rule = Callable[[m.Message, Frames], list[Frames]]

LOSE: Rule = lambda message, frames: []  # noqa: E731
DOUBLE: Rule = lambda message, frames: [frames, frames]  # noqa: E731


class Wire:
    """The head's socket, tampered with.

    Attributes:
        sent: what the head sent, before it was tampered with.
        received: what nodes sent.
        tampered: how many messages met a rule.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[m.Message] = []
        self.received: list[m.Message] = []
        self.tampered = 0
        self._rules: list[tuple[type[m.Message], int, Callable[[Any], bool], Rule]] = []
        self._waiting: collections.deque[tuple[bytes, Frames]] = collections.deque()
        self._send, self._receive = Hub.send, Hub.receive
        wire = self

        def send(hub: Hub, peer: bytes, frames: Any) -> bool:
            message = m.decode_from_head(frames)
            wire.sent.append(message)
            done = [wire._send(hub, peer, each) for each in wire._apply(message, list(frames))]
            return all(done)

        def receive(hub: Hub, limit_s: float) -> tuple[bytes, Frames] | None:
            if not wire._waiting:
                got = wire._receive(hub, limit_s)
                if got is None:
                    return None
                peer, frames = got[0], [bytes(frame) for frame in split(got[1])]
                message = m.decode_from_node(frames)
                wire.received.append(message)
                wire._waiting.extend((peer, join(each)) for each in wire._apply(message, frames))
            return wire._waiting.popleft() if wire._waiting else None

        monkeypatch.setattr(Hub, "send", send)
        monkeypatch.setattr(Hub, "receive", receive)

    def rule(
        self, kind: type[m.Message], rule: Rule, times: int = 1, where: Callable[[Any], bool] = lambda message: True
    ) -> None:
        """The next messages of this kind meet this rule."""
        self._rules.append((kind, times, where, rule))

    def _apply(self, message: m.Message, frames: Frames) -> list[Frames]:
        for index, (kind, times, where, rule) in enumerate(self._rules):
            if isinstance(message, kind) and where(message):
                self._rules[index] = (kind, times - 1, where, rule)
                if times <= 1:
                    del self._rules[index]
                self.tampered += 1
                return rule(message, frames)
        return [frames]

    def count_sent(self, kind: type[m.Message]) -> int:
        """How many messages of this kind the head sent."""
        return sum(isinstance(message, kind) for message in self.sent)
