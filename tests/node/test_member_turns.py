"""What a node says and hears, turn by turn, over a connection that is made up."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from clusterenv.node import member
from clusterenv.node.member import Member, Membership
from clusterenv.transport.security import make_keys
from clusterenv.transport.sockets import Address
from clusterenv.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Sequence


class Wire:
    """A connection that takes what fits, and brings what the test says.

    Attributes:
        full: whether it takes nothing.
        taken: what it has taken.
        news: what happens to it next: "up", "down" or "refused".
        coming: what arrives next.
    """

    def __init__(self) -> None:
        self.full = False
        self.taken: list[m.FromNode] = []
        self.news: list[str] = []
        self.coming: list[m.Message] = []

    def send(self, frames: Sequence[Any], limit_s: float = 0.0) -> bool:
        if not self.full:
            self.taken.append(m.decode_from_node(frames))
        return not self.full

    def receive(self) -> list[Any] | None:
        return [m.encode(self.coming.pop(0))] if self.coming else None

    def events(self) -> list[str]:
        news, self.news = self.news, []
        return news

    def wait(self, limit_s: float, descriptors: Sequence[int] = (), others: Sequence[int] = ()) -> bool:
        return True


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


def kinds(said: Sequence[m.FromNode]) -> list[type]:
    return [type(each) for each in said]


class Node:
    """A node that has been let in, on a clock that the test moves."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.wire = clock, Wire()
        wire: Any = self.wire
        membership = Membership(heads=[], keys=make_keys().node, name="here")
        self.member = Member(membership, wire, Address("127.0.0.1", 1))
        self.wire.news = ["up"]
        self.turn(m.Welcome(silence_s=10.0, beat_s=2.0))
        assert kinds(self.turn(m.Heard())) == [m.Beat]

    def turn(self, *coming: m.Message, after_s: float = 1.0) -> list[m.FromNode]:
        """Let it serve what comes, after a while; what it says."""
        self.clock.now += after_s
        self.wire.coming += coming
        before = len(self.wire.taken)
        self.member._turn()
        return self.wire.taken[before:]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    clock = Clock()
    monkeypatch.setattr(member, "time", clock)
    return Node(clock)


def build(number: int) -> m.Build:
    """A request that cannot be carried out, and is answered so."""
    return m.Build(number=number, settled=0, blocks=[(0, 2), (4, 6)], recipes=b"", limit_s=1.0, worker_memory="")


def test_it_beats_again_only_when_the_last_beat_was_heard(node: Node) -> None:
    """A head that is busy for hours does not find thousands of them."""
    assert kinds(node.turn(after_s=2.0)) == [m.Beat]
    assert node.turn(after_s=100.0) == []
    assert node.turn(m.Heard(), after_s=0.1) == []  # at the next look
    assert kinds(node.turn(after_s=2.0)) == [m.Beat]


def test_a_beat_does_not_overtake_what_waits(node: Node) -> None:
    node.wire.full = True
    node.turn(build(1))
    node.wire.full = False
    assert kinds(node.turn(after_s=2.0)) == [m.Answer]
    assert kinds(node.turn(after_s=2.0)) == [m.Beat]


def test_after_a_broken_connection_it_says_who_it_is_and_all_that_may_be_lost(node: Node) -> None:
    (answer,) = node.turn(build(1))
    node.wire.news = ["down"]
    node.turn()
    node.wire.news = ["up"]
    hello, again, *_ = node.turn()
    assert isinstance(hello, m.Hello)
    assert again == answer


def test_what_waited_for_a_connection_that_is_gone_is_not_sent_twice(node: Node) -> None:
    node.wire.full = True
    node.turn(build(1))
    node.wire.news = ["down"]
    node.turn()
    node.wire.full, node.wire.news = False, ["up"]
    said = kinds(node.turn()) + kinds(node.turn(after_s=0.1))
    assert said.count(m.Answer) == 1


def test_a_node_that_drains_takes_nothing_new(node: Node) -> None:
    node.member._take_signal(signal.SIGTERM, None)
    assert node.turn(build(1)) == []


def test_a_drain_comes_to_an_end(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(node.member._service), "idle", property(lambda service: False))
    node.member._take_signal(signal.SIGTERM, None)
    node.turn()
    assert not node.member._leaving
    node.turn(after_s=member._DRAIN_S)
    assert node.member._leaving
