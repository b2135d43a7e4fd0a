"""The way back of a lost host: who takes its place, how often that is tried, and how long it may take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from gymnasium.vector import AutoresetMode

from clusterenv.cluster.restart import LIMITS, Fault, Tries
from clusterenv.errors import LaunchError
from clusterenv.node import returning
from clusterenv.node.host import Host
from clusterenv.node.returning import Return
from clusterenv.wire import messages as m
from clusterenv.wire.envs import BuildOrder
from tests.node.puppets import Head, Puppet, Theatre, arrives_again, on_stage

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT_S, START_S = 60.0, 300.0


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Door:
    """Where nodes come in."""

    wait_s = WAIT_S

    def __init__(self) -> None:
        self.waiting: Host | None = None
        self.problem: str | None = None

    def newcomer(self, lost: Host) -> Host | None:
        return self.waiting

    def launcher_problem(self) -> str | None:
        return self.problem

    def last_words(self) -> str:
        return "Last words."


class Deaf:
    def send(self, peer: bytes, frames: Any) -> bool:
        return True


def host(index: int) -> Host:
    hub: Any = Deaf()
    return Host(0, hub, b"%d" % index, Puppet(index).hello("run"), range(1), [range(2)], lives=[0])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(returning, "time", made)
    return made


@pytest.fixture
def door() -> Door:
    return Door()


def way_back(door: Any, *, patient: bool = False) -> Return:
    order = BuildOrder([["X-v0", {}, []]], [0, 0], AutoresetMode.NEXT_STEP, True)
    return Return(door, host(0), order, (None, None), START_S, patient=patient, tries=Tries())


def test_nobody_comes(clock: Clock, door: Door) -> None:
    coming = way_back(door)
    clock.now += WAIT_S
    assert not coming.progress()
    clock.now += 0.1
    with pytest.raises(LaunchError, match=r"the place of puppet0 did not come back within 60.0 s. Last words."):
        coming.progress()
    assert not coming.may_try_again(LaunchError("x"))


def test_a_patient_one_waits_until_somebody_hurries(clock: Clock, door: Door) -> None:
    coming = way_back(door, patient=True)
    clock.now += 100 * WAIT_S
    assert not coming.progress()
    coming.hurry()
    clock.now += WAIT_S
    assert not coming.progress()
    clock.now += 0.1
    with pytest.raises(LaunchError, match="did not come back"):
        coming.progress()


def test_the_launcher_knows_why_nobody_comes(clock: Clock, door: Door) -> None:
    coming, door.problem = way_back(door), "no such partition"
    assert not coming.progress()  # its words may be about the node before
    clock.now += WAIT_S - 1
    with pytest.raises(LaunchError, match="a node could not come back: no such partition"):
        coming.progress()


def test_one_that_builds_has_a_limit_too(clock: Clock, door: Door) -> None:
    door.waiting = host(1)
    coming = way_back(door, patient=True)
    assert not coming.progress()
    clock.now += START_S
    assert not coming.progress()
    clock.now += 0.1
    with pytest.raises(LaunchError, match=r"did not build within 300.0 s"):
        coming.progress()


def test_one_that_is_lost_while_it_builds_may_be_followed_by_another(clock: Clock, door: Door) -> None:
    door.waiting = host(1)
    coming = way_back(door)
    coming.progress()
    door.waiting.give_up("its node was killed", Fault.CRASH)
    with pytest.raises(LaunchError, match=r"its node was killed\. Last words\.") as caught:
        coming.progress()
    assert coming.may_try_again(caught.value)


# With a head and its nodes.


def test_another_that_is_lost_while_one_comes_back_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    theatre = Theatre()
    with on_stage(monkeypatch, theatre) as head:
        first, second = theatre.puppets
        theatre.puppets[:] = [second]
        theatre.arrive(first.peer, [m.encode(m.Leave(reason="signal SIGTERM"))])
        arrives_again(theatre, 0, b"peer 7")
        head.node.listen()
        assert [loss.worker for loss in head.node.losses()] == [0]
        theatre.arrive(second.peer, [m.encode(m.Leave(reason="signal SIGTERM"))])
        head.node.replace(0, [None, None])
        assert head.node.ready([0], 30.0) == {}
        assert head.node.alive(0)
        assert [loss.worker for loss in head.node.losses()] == [1]


def cannot_build(message: m.Message, frames: Any) -> list[Any]:
    """What a puppet answers that builds nothing."""
    return [[m.encode(m.Answer(number=message.number, error="no such thing"))]] if isinstance(message, m.Build) else []


def test_a_node_that_came_back_and_cannot_build_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another is asked for. That its launcher has none is no news beside what was wrong."""
    theatre = Theatre()
    with on_stage(monkeypatch, theatre) as head:
        theatre.puppets.pop(0)
        arrives_again(theatre, 0, b"peer 7")
        theatre.puppets[-1].lie = cannot_build
        head.node.listen()
        head.node.replace(0, [None, None])
        with pytest.raises(LaunchError, match="no such thing"):
            head.node.ready([0], 30.0)
        assert theatre.refusals(b"peer 7") == ["given up: its node puppet0 could not be built again"]
        assert theatre.restarted == [0]
        with pytest.raises(LaunchError, match="its launcher cannot start it again"):
            head.node.replace(0, [None, None])
        assert theatre.restarted == [0, 0], "the next try asks for a fresh one"


def must_go(message: m.Message, frames: Any) -> list[Any]:
    """What a puppet answers whose host is taken back before it has built anything."""
    return [[m.encode(m.Leave(reason="signal SIGTERM", preempted=True))]] if isinstance(message, m.Build) else []


class Revolving(Theatre):
    """Whoever is started again comes at once, and the first so many do not get to the end.

    Args:
        bad: how many.
        lie: what they answer.
    """

    def __init__(self, bad: int, lie: Callable[[m.Message, Any], list[Any]] = cannot_build) -> None:
        super().__init__()
        self.bad, self.lie = bad, lie

    def restart(self, node: int) -> bool:
        super().restart(node)
        arrives_again(self, node, b"peer %d" % (10 + len(self.restarted)))
        if len(self.restarted) <= self.bad:
            self.puppets[-1].lie = self.lie
        return True

    def lose_the_first(self, head: Head, *, patient: bool) -> None:
        first = self.puppets.pop(0)
        self.arrive(first.peer, [m.encode(m.Leave(reason="signal SIGTERM"))])
        head.node.listen()
        assert [loss.worker for loss in head.node.losses()] == [0]
        head.node.replace(0, [None, None], patient=patient)


def test_a_node_that_is_lost_again_while_it_builds_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    theatre = Revolving(bad=LIMITS[Fault.CRASH] - 1)
    with on_stage(monkeypatch, theatre) as head:
        theatre.lose_the_first(head, patient=False)
        assert head.node.ready([0], 30.0) == {}
        assert head.node.alive(0)
        assert theatre.restarted == [0] * LIMITS[Fault.CRASH]


def test_a_node_that_never_builds_is_tried_so_often_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    theatre = Revolving(bad=100)
    with on_stage(monkeypatch, theatre) as head:
        theatre.lose_the_first(head, patient=False)
        with pytest.raises(LaunchError, match="no such thing"):
            head.node.ready([0], 30.0)
        assert theatre.restarted == [0] * LIMITS[Fault.CRASH]


def test_nodes_that_must_go_before_they_have_built_have_a_budget_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theatre = Revolving(bad=LIMITS[Fault.PREEMPTION] - 1, lie=must_go)
    with on_stage(monkeypatch, theatre) as head:
        theatre.lose_the_first(head, patient=False)
        assert head.node.ready([0], 30.0) == {}
        assert theatre.restarted == [0] * LIMITS[Fault.PREEMPTION]


def test_that_budget_has_an_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    theatre = Revolving(bad=100, lie=must_go)
    with on_stage(monkeypatch, theatre) as head:
        theatre.lose_the_first(head, patient=False)
        with pytest.raises(LaunchError, match="left: signal SIGTERM"):
            head.node.ready([0], 30.0)
        assert theatre.restarted == [0] * LIMITS[Fault.PREEMPTION]


def test_a_patient_place_stays_open_and_starts_no_more_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    theatre = Revolving(bad=100)
    with on_stage(monkeypatch, theatre) as head:
        theatre.lose_the_first(head, patient=True)
        for _ in range(20):
            head.node.listen()
            assert head.node.built([0]) == {}
        assert theatre.restarted == [0] * LIMITS[Fault.CRASH]
        arrives_again(theatre, 0, b"peer 99")  # whoever comes by himself may have the place
        for _ in range(20):
            head.node.listen()
            head.node.built([0])
        assert head.node.alive(0)
