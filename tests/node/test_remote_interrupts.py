"""Ctrl-C at every moment in which the head takes a message of a node: what it brings is here once, or comes again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from clusterenv.node.base import Message
from clusterenv.node.records import pack_report
from clusterenv.transport.arena import Command
from clusterenv.wire import messages as m
from clusterenv.worker.report import Report
from tests.faults.interrupts import interrupted_everywhere
from tests.node.puppets import Theatre, on_stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.node.puppets import Frames, Head

TAKING = "node/remote.py:_"


@pytest.fixture
def theatre() -> Theatre:
    return Theatre()


@pytest.fixture
def head(theatre: Theatre, monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    with on_stage(monkeypatch, theatre) as made:
        yield made


def with_report(message: m.Message, frames: Frames) -> list[Frames]:
    """Rows, with an info of slot 0."""
    assert isinstance(message, m.Step)
    report = pack_report(Report(infos=[(0, {"number": message.number})]))
    return [[m.encode(m.Rows(number=message.number, report=report)), *frames[1:]]]


def test_rows_are_here_with_what_was_reported_of_them(head: Head, theatre: Theatre) -> None:
    node, arena = head.node, head.arena
    theatre.puppets[0].lie = with_report

    def ask() -> None:
        node.reported = Report()
        arena.want += 1
        node.request(Command.STEP, [0, 1], None)

    ask()
    for where in interrupted_everywhere(node.listen, TAKING, "node/rows.py", opcodes=True):
        if (arena.have[:2] == arena.want[:2]).all():
            assert [slot for slot, _ in node.reported.infos] == [0], where
        else:
            assert not node.reported, where
        node.listen()
        arena.have[:] = arena.want
        node._stepping.clear()  # the interrupted message would come again
        ask()


def test_a_loss_is_told_if_its_worker_counts_as_lost(head: Head, theatre: Theatre) -> None:
    node = head.node
    told = [m.encode(m.Lost(worker=0, life=0, cause="it ended"))]
    theatre.arrive(b"peer 0", told)
    for where in interrupted_everywhere(node.listen, TAKING, opcodes=True):
        assert [loss.worker for loss in node.losses()] == [0] * (not node.alive(0)), where
        node._crew.alive[0] = True
        theatre.arrive(b"peer 0", told)


def test_a_fragment_is_not_taken_twice(head: Head, theatre: Theatre, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that was not settled comes again."""
    node = head.node
    taken: list[int] = []
    host = node._crew.hosts[0]

    def take(answer: m.Answer, frames: Any) -> None:
        taken.append(answer.number)

    def ask() -> None:
        number = host.ask(m.Post, take, worker=0, message=b"")
        theatre.arrive(b"peer 0", [m.encode(m.Answer(number=number))])

    monkeypatch.setattr(theatre, "send", lambda peer, frames: True)
    ask()
    for where in interrupted_everywhere(node.listen, TAKING, "node/host.py", opcodes=True):
        if taken:
            assert host.handler_of(taken[-1]) is None, where
        node.listen()
        taken.clear()
        ask()


def test_a_reply_is_here_or_owed(head: Head, theatre: Theatre) -> None:
    node = head.node
    node.post({0: Message("call", ([0, 1], "attribute", (), {}))})
    was_here = []
    for where in interrupted_everywhere(node.listen, TAKING, "node/mail.py", opcodes=True):
        was_here.append(not node._owes(0))
        if was_here[-1]:
            assert list(node.replies([0], 0.0)) == [0], where
        node.post({0: Message("call", ([0, 1], "attribute", (), {}))})
    assert set(was_here) == {True, False}, "no interrupt came before it, or none after it"
