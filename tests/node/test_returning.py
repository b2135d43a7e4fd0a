"""The way back of a lost host has limits of its own, and each of them ends with words."""

from __future__ import annotations

from typing import Any

import pytest

from clusterenv.cluster.restart import Fault, Tries
from clusterenv.errors import LaunchError
from clusterenv.node import returning
from clusterenv.node.host import Host
from clusterenv.node.returning import Return
from tests.node.puppets import Puppet

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
    order = ([["X-v0", {}, []]], [0, 0], None, True, "")
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
