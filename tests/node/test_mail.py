"""Messages to workers on other hosts: an answer counts only for the request, and the life, that it belongs to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterenv.errors import ProtocolError
from clusterenv.node.base import Message
from clusterenv.node.crew import Crew
from clusterenv.node.host import Host
from clusterenv.node.lending import Lending
from clusterenv.node.mail import Mail
from clusterenv.node.records import CODEC
from clusterenv.wire import messages as m
from clusterenv.worker.actor import Fragment
from clusterenv.worker.loop import Reply
from tests.faults.interrupts import interrupted_everywhere
from tests.node.puppets import Puppet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FRAGMENT = CODEC.pack(Reply(Fragment(0, 4)))


class Deaf:
    """A socket of the head behind which nobody is."""

    def send(self, peer: bytes, frames: Sequence[Any]) -> bool:
        return True


class Memory(Lending):
    """Notes the fragments that it is to take."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[range] = []

    def take_fragment(self, arena: Any, block: range, fragment: Fragment, frames: Sequence[Any]) -> None:
        self.taken.append(block)


class Office:
    """Mail to two workers of one host."""

    def __init__(self) -> None:
        hub: Any = Deaf()
        self.host = Host(0, hub, b"peer", Puppet(0).hello("run"), range(2), [range(2), range(2, 4)], lives=[0, 0])
        self.crew, self.memory = Crew(), Memory()
        self.crew.assemble([self.host], self.host.blocks)
        arena: Any = None
        self.mail = Mail(self.crew, self.memory, arena)

    def answer(self, number: int, value: bytes = b"", error: str = "") -> None:
        handler = self.host.handler_of(number)
        assert handler is not None
        handler(m.Answer(number=number, value=value, error=error), [])


@pytest.fixture
def office() -> Office:
    return Office()


def test_a_fragment_is_taken(office: Office) -> None:
    office.mail.tell(1, (0, True, False))
    office.answer(1, FRAGMENT)
    assert office.memory.taken == [range(2, 4)]
    assert [worker for worker, _ in office.mail.take_played()] == [1]


def replaced(office: Office) -> None:
    office.host.lives[1] += 1


def on_another_host(office: Office) -> None:
    office.host.generation += 1


def lost(office: Office) -> None:
    office.crew.alive[1] = False


@pytest.mark.parametrize("change", [replaced, on_another_host, lost])
def test_a_fragment_of_an_earlier_life_reaches_no_memory(office: Office, change: Any) -> None:
    """Its replacement fills the same columns."""
    office.mail.tell(1, (0, True, False))
    change(office)
    office.answer(1, FRAGMENT)
    assert office.memory.taken == []
    assert not office.mail.has_played


def test_a_fragment_in_another_buffer_is_refused(office: Office) -> None:
    office.mail.tell(1, (1, True, False))
    with pytest.raises(ProtocolError, match="buffer 0 was filled in place of 1"):
        office.answer(1, FRAGMENT)


def test_the_answer_to_a_call_that_was_given_up_is_dropped(office: Office) -> None:
    for value in (1, 2):
        office.mail.post({0: Message("call", ([0], f"attribute {value}", (), {}))})
    office.answer(1, CODEC.pack(Reply(["old"])))
    assert office.mail.owes(0)
    office.answer(2, CODEC.pack(Reply(["new"])))
    assert office.mail.take_replies([0])[0].value == ["new"]


def test_nobody_waits_for_the_reply_of_a_worker_that_was_lost(office: Office) -> None:
    """The node answers without a value: why, it tells as a loss."""
    office.mail.post({0: Message("call", ([0], "attribute", (), {}))})
    office.answer(1)
    assert not office.mail.owes(0)
    assert office.mail.take_replies([0]) == {}


def test_a_lost_worker_is_told_nothing(office: Office) -> None:
    office.crew.alive[1] = False
    office.mail.tell(1, (0, True, False))
    office.mail.post({1: Message("call", ([0], "attribute", (), {}))})
    assert office.host.handler_of(1) is None
    assert not office.mail.owes(1)


class Listening:
    """A socket of the head that counts what it is given."""

    def __init__(self) -> None:
        self.sent = 0

    def send(self, peer: bytes, frames: Sequence[Any]) -> bool:
        self.sent += 1
        return True


SENDING = ("node/mail.py", "node/host.py", "cluster/requests.py")


def lend(office: Office) -> None:
    memory: Any = SimpleNamespace(number=7)
    office.mail.lend(dict.fromkeys(range(2), Message("share", (None,))), memory)


POSTS: dict[str, Callable[[Office], None]] = {
    "post": lambda office: office.mail.post({0: Message("call", ([0], "attribute", (), {}))}),
    "lend": lend,
}


@pytest.mark.parametrize("act", POSTS.values(), ids=POSTS.keys())
def test_after_an_interrupt_who_was_asked_owes_a_reply(
    office: Office, act: Callable[[Office], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a reset would ask before the call has come to its end, and wait for an answer in vain."""
    monkeypatch.setattr(office.memory, "data_of", lambda message, memory: {})
    hub: Any = Listening()
    office.host.hub = hub
    number = 0
    for where in interrupted_everywhere(lambda: act(office), *SENDING, opcodes=True):
        assert office.mail.owes(0) == (hub.sent > number), where
        if hub.sent > number:
            number = hub.sent
            office.answer(number, error="refused")
            office.host.settle(number)
        assert not office.mail.owes(0)
    assert number > 1, "some interrupts came when it had been sent"
