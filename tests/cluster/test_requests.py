"""Requests over a channel that loses, repeats and breaks: each is carried out once, in order, and answered once."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from clusterenv.cluster.requests import Answering, Asking, Turn

if TYPE_CHECKING:
    from collections.abc import Iterable

LIMIT_S = 5.0


class Careless(Answering[str]):
    """A planted bug: it does not remember what it has carried out."""

    def arrived(self, number: int, settled: int, others: Iterable[int] = ()) -> Turn:
        super().arrived(number, settled, others)
        return Turn.NEW


class Forgetful(Answering[str]):
    """A planted bug: it throws its answers away at once."""

    def done(self, number: int, answer: str) -> None:
        pass


class Channel(RuleBasedStateMachine):
    """Two ends, and a connection of which every message can be lost or doubled, and which can break.

    Within one connection messages keep their order, as in TCP; what was under way when it broke may still arrive.
    """

    answering_kind: Any = Answering

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.asking: Asking[tuple[int, int]] = Asking()
        self.answering = self.answering_kind()
        self.out: collections.deque[tuple[int, int]] = collections.deque()
        self.back: collections.deque[tuple[int, str]] = collections.deque()
        self.asked = 0
        self.under_way: list[int] = []
        self.executed: list[int] = []
        self.delivered: list[int] = []

    @rule()
    def ask(self) -> None:
        number = self.asking.next()
        # As `Host.ask` does: nothing open means that all before this one is settled.
        settled = min(self.asking.settled, number - 1)
        self.asked = number
        self.asking.note(number, (number, settled), self.now_s)
        self.out.append((number, settled))

    @precondition(lambda self: self.out)
    @rule(twice=st.booleans(), lost=st.booleans())
    def request_arrives(self, twice: bool, lost: bool) -> None:
        number, settled = self.out.popleft()
        for _ in range(0 if lost else 1 + twice):
            self._take(number, settled)

    def _take(self, number: int, settled: int) -> None:
        turn = self.answering.arrived(number, settled)
        if turn is Turn.NEW:
            self.executed.append(number)
            self.under_way.append(number)
        elif turn is Turn.DONE:
            self.back.append((number, self.answering.answer(number)))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def one_is_finished(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.under_way))
        self.under_way.remove(number)
        self.answering.done(number, f"answer {number}")
        self.back.append((number, f"answer {number}"))

    @precondition(lambda self: self.back)
    @rule(twice=st.booleans(), lost=st.booleans())
    def answer_arrives(self, twice: bool, lost: bool) -> None:
        number, answer = self.back.popleft()
        assert answer == f"answer {number}"
        for _ in range(0 if lost else 1 + twice):
            if self.asking.answered(number):
                self.delivered.append(number)

    @rule(late=st.booleans())
    def the_connection_breaks(self, late: bool) -> None:
        """What was under way is lost, or arrives behind what is sent over the new one."""
        out, back = (list(self.out), list(self.back)) if late else ([], [])
        self.out = collections.deque([*self.asking.everything(self.now_s), *out])
        kept = [(int(answer.split()[1]), answer) for answer in self.answering.kept()]
        self.back = collections.deque([*kept, *back])

    @rule(passed_s=st.sampled_from([0.5, LIMIT_S]))
    def time_passes(self, passed_s: float) -> None:
        self.now_s += passed_s
        self.out.extend(self.asking.overdue(self.now_s, LIMIT_S))

    @invariant()
    def each_is_carried_out_once_and_in_order(self) -> None:
        assert self.executed == list(range(1, len(self.executed) + 1))

    @invariant()
    def each_is_answered_once(self) -> None:
        assert len(set(self.delivered)) == len(self.delivered)
        assert set(self.delivered) <= set(self.executed)

    @invariant()
    def only_what_is_not_settled_is_kept(self) -> None:
        open_now = list(self.asking._open)
        assert sorted([*open_now, *self.delivered]) == list(range(1, self.asked + 1))
        kept = {int(answer.split()[1]) for answer in self.answering.kept()}
        assert len(kept) == len(self.answering.kept())
        assert kept <= set(self.executed)

    def teardown(self) -> None:
        """A channel that works from now on: everything arrives, and one more request clears the memory."""
        for _ in range(3):
            self.the_connection_breaks(late=False)
            self._run_dry()
        assert sorted(self.delivered) == list(range(1, self.asked + 1))
        assert self.asking.settled == self.asked
        self.ask()
        self._run_dry()
        assert len(self.answering.kept()) == 1, "the answers that were settled are gone"
        self.each_is_carried_out_once_and_in_order()

    def _run_dry(self) -> None:
        while self.out or self.under_way or self.back:
            while self.out:
                self._take(*self.out.popleft())
            while self.under_way:
                number = self.under_way.pop(0)
                self.answering.done(number, f"answer {number}")
                self.back.append((number, f"answer {number}"))
            while self.back:
                number, _ = self.back.popleft()
                if self.asking.answered(number):
                    self.delivered.append(number)


ENOUGH = settings(max_examples=100, stateful_step_count=30)
ONE_IS_ENOUGH = settings(ENOUGH, report_multiple_bugs=False)


@pytest.mark.fault("F31")
def test_any_channel() -> None:
    run_state_machine_as_test(Channel, settings=ENOUGH)


@pytest.mark.parametrize("planted", [Careless, Forgetful])
def test_the_property_catches_a_planted_bug(planted: type) -> None:
    broken = type("Broken", (Channel,), {"answering_kind": planted})
    with pytest.raises(AssertionError):
        run_state_machine_as_test(broken, settings=ONE_IS_ENOUGH)


def test_what_is_behind_an_overdue_request_goes_out_with_it() -> None:
    asking: Asking[str] = Asking()
    for name, at_s in (("a", 0.0), ("b", 1.0), ("c", 2.0)):
        asking.note(asking.next(), name, at_s)
    asking.answered(1)
    assert asking.overdue(5.9, LIMIT_S) == []
    assert asking.overdue(6.0, LIMIT_S) == ["b", "c"]
    assert asking.overdue(6.5, LIMIT_S) == [], "they have just gone out"
    assert asking.overdue(15.9, LIMIT_S) == [], "and are waited for twice as long"
    assert asking.overdue(16.0, LIMIT_S) == ["b", "c"]


def test_a_new_connection_gets_everything_also_what_is_not_due_yet() -> None:
    asking: Asking[str] = Asking()
    asking.note(asking.next(), "large, so it is given time", 60.0)
    asking.note(asking.next(), "small", 1.0)
    assert asking.everything(2.0) == ["large, so it is given time", "small"]


def test_a_request_from_the_future_is_not_carried_out() -> None:
    answering: Answering[str] = Answering()
    assert answering.arrived(2, 0) is Turn.BUSY
    assert answering.arrived(2**62, 0) is Turn.BUSY
    assert answering.arrived(1, 0) is Turn.NEW
    assert answering.arrived(0, 0) is Turn.BUSY


def test_a_number_that_was_never_noted_leaves_no_gap() -> None:
    asking: Asking[str] = Asking()
    asking.next()  # and then an interrupt
    asking.note(asking.next(), "first", 0.0)
    assert asking.next() == 2
    assert asking.settled == 0
    assert asking.answered(1)
    assert asking.settled == 1


def test_an_answer_that_nobody_asked_for_is_none() -> None:
    asking: Asking[str] = Asking()
    assert not asking.answered(1)
    asking.note(asking.next(), "a", 0.0)
    asking.forget()
    assert not asking.answered(1)
    assert asking.everything(0.0) == []


def test_an_answer_that_has_arrived_is_not_kept_although_one_before_it_is_open() -> None:
    asking: Asking[str] = Asking()
    answering: Answering[str] = Answering()
    for _ in range(3):  # the first takes as long as a stream
        number = asking.next()
        asking.note(number, f"request {number}", 0.0)
        answering.arrived(number, asking.settled, asking.arrived())
        if number > 1:
            answering.done(number, f"answer {number}")
            assert asking.answered(number)
    assert asking.settled == 0
    assert answering.kept() == ["answer 3"]
    answering.arrived(4, asking.settled, asking.arrived())
    assert answering.kept() == []


def test_what_the_other_side_has_taken_goes_out_again_by_itself_and_ever_more_rarely() -> None:
    asking: Asking[str] = Asking()
    for name in ("stream", "order", "unseen"):
        asking.note(asking.next(), name, {"stream": 0.0, "order": 4.0, "unseen": 4.0}[name])
    assert asking.overdue(6.0, LIMIT_S, seen=2) == ["stream"]
    assert asking.overdue(9.0, LIMIT_S, seen=2) == ["order", "unseen"]
    assert asking.overdue(11.0, LIMIT_S, seen=2) == []
    assert asking.overdue(16.0, LIMIT_S, seen=2) == ["stream"]
