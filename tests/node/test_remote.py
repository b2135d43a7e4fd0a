"""The head's own part: which nodes it gives up, and when, however seldom it looks."""

from __future__ import annotations

import time
import types
from typing import TYPE_CHECKING

import pytest

from clusterenv.node import remote
from clusterenv.node.joining import AT_ONCE
from clusterenv.node.records import CODEC
from clusterenv.wire import messages as m
from tests.node.puppets import Puppet, Theatre, on_stage

if TYPE_CHECKING:
    from collections.abc import Callable

SILENCE_S = 10.0


@pytest.fixture
def sleep(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets time pass for the head, without waiting for it."""
    skew = [0.0]
    monkeypatch.setattr(remote, "time", types.SimpleNamespace(monotonic=lambda: time.monotonic() + skew[0]))

    def pass_time(seconds: float) -> None:
        skew[0] += seconds

    return pass_time


def beat(theatre: Theatre, puppet: Puppet) -> None:
    theatre.arrive(puppet.peer, [m.encode(m.Beat(progress=[], seen=0))])


@pytest.mark.parametrize("away_s", [0.3, 1.2, 3.0, 60.0])
def test_a_silent_node_is_found_however_seldom_the_head_looks(
    monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], None], away_s: float
) -> None:
    """As a learner does whose updates take this long."""
    theatre = Theatre()
    with on_stage(monkeypatch, theatre, silence_s=SILENCE_S) as head:
        for _ in range(int(SILENCE_S / away_s) + 3):
            sleep(away_s)
            beat(theatre, theatre.puppets[1])
            head.node.look()
        (loss,) = head.node.losses()
        assert loss.cause.startswith("its node puppet0 has been silent for ")
        assert [head.node.alive(worker) for worker in range(2)] == [False, True]


def test_who_has_spoken_while_the_head_was_away_is_not_silent(
    monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], None]
) -> None:
    theatre = Theatre()
    with on_stage(monkeypatch, theatre, silence_s=SILENCE_S) as head:
        for _ in range(5):
            sleep(20 * SILENCE_S)
            for _ in range(50):
                beat(theatre, theatre.puppets[1])
            beat(theatre, theatre.puppets[0])
            for _ in range(51):
                sleep(0.3)  # long enough for a look at every message
                assert head.node.wait_any(0.0)
            head.node.look()
        assert head.node.losses() == []


def test_a_head_that_was_stopped_gives_its_socket_time_to_read(
    monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], None]
) -> None:
    theatre = Theatre()
    with on_stage(monkeypatch, theatre, silence_s=SILENCE_S) as head:
        for _ in range(3):
            sleep(20 * SILENCE_S)
            head.node.look()  # nothing has come through yet
            for puppet in theatre.puppets:
                beat(theatre, puppet)
            sleep(0.3)
            head.node.look()
        assert head.node.losses() == []


def test_one_who_says_much_does_not_keep_the_head_from_looking(
    monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], None]
) -> None:
    theatre = Theatre()
    with on_stage(monkeypatch, theatre, silence_s=SILENCE_S) as head:
        for _ in range(3):
            sleep(SILENCE_S)
            for _ in range(AT_ONCE + 10):
                beat(theatre, theatre.puppets[1])
            head.node.look()
        (loss,) = head.node.losses()
        assert loss.cause.startswith("its node puppet0 has been silent for ")


def test_a_replacement_that_is_lost_while_another_is_built_is_one_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    theatre = Theatre()
    with on_stage(monkeypatch, theatre) as head:
        for worker, puppet in enumerate(theatre.puppets):
            theatre.arrive(puppet.peer, [m.encode(m.Lost(worker=0, life=0, cause="first"))])
            head.node.look()
            head.node.replace(worker, [1, 2])
        assert [loss.cause for loss in head.node.losses()] == ["first", "first"]
        for puppet in theatre.puppets:
            (asked,) = (message for message in puppet.heard if isinstance(message, m.Replace))
            built = m.Answer(number=asked.number, value=CODEC.pack([None, 1]))
            theatre.arrive(puppet.peer, [m.encode(built)])
            if puppet.index == 0:
                theatre.arrive(puppet.peer, [m.encode(m.Lost(worker=0, life=1, cause="second"))])
        assert head.node.ready([0, 1], 30.0) == {}
        assert [(loss.worker, loss.cause) for loss in head.node.losses()] == [(0, "second")]
