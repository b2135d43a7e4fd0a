"""The bookkeeping of requests: single facts. The state machine next door looks for sequences that break it."""

from __future__ import annotations

import numpy as np
import pytest

from clusterenv.cluster.gather import Gather


class Batch:
    """Four slots on two workers, with the arrays that the arena would hold."""

    def __init__(self) -> None:
        self.want = np.zeros(4, dtype=np.uint32)
        self.have = np.zeros(4, dtype=np.uint32)
        self.gather = Gather([range(2), range(2, 4)], self.want, self.have)

    def answer(self, *slots: int) -> None:
        """The workers of these slots answer."""
        self.have[list(slots)] = self.want[list(slots)]


def slots(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    return np.array(numbers, dtype=np.intp)


@pytest.fixture
def batch() -> Batch:
    return Batch()


def test_slots_know_their_worker(batch: Batch) -> None:
    assert batch.gather.worker_of.tolist() == [0, 0, 1, 1]


def test_asking_all_marks_every_slot_as_wanted(batch: Batch) -> None:
    assert batch.gather.ask_all() is None
    assert (batch.want != batch.have).all()
    assert batch.gather.in_flight == 4


def test_asking_wakes_the_workers_of_the_slots_once_each(batch: Batch) -> None:
    assert batch.gather.ask(slots(3, 2), 0.0)[0] == [1]
    assert batch.gather.ask(slots(1), 0.0)[0] == [0]
    assert batch.gather.in_flight == 3


class Interrupted:
    """Ctrl-C at the first look."""

    def __getitem__(self, slots: object) -> None:
        raise KeyboardInterrupt


def test_what_an_interrupt_kept_from_being_asked_for_is_not_wanted(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker would step it with the next request of another slot, and nobody would get that step."""
    batch.gather.ask(slots(2), 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(batch.gather, "_sent", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            batch.gather.ask(slots(0), 0.0)
    assert batch.have[0] != batch.want[0]
    batch.gather.count_again()
    assert (batch.have != batch.want).tolist() == [False, False, True, False]
    assert batch.gather.in_flight == 1


def test_only_answered_slots_are_ready(batch: Batch) -> None:
    batch.gather.ask(slots(0, 2), 0.0)
    batch.answer(2)
    assert batch.gather.ready().tolist() == [2]


def test_idle_slots_are_never_ready(batch: Batch) -> None:
    assert batch.gather.ready().tolist() == []


def test_slots_asked_for_first_are_ready_first(batch: Batch) -> None:
    for moment, slot in enumerate((2, 0, 3, 1)):
        batch.gather.ask(slots(slot), float(moment))
    batch.answer(0, 1, 2, 3)
    assert batch.gather.ready().tolist() == [2, 0, 3, 1]


def test_a_slot_is_handed_over_once(batch: Batch) -> None:
    batch.gather.ask(slots(0, 1), 0.0)
    batch.answer(0, 1)
    batch.gather.hand_over(slots(0))
    assert batch.gather.ready().tolist() == [1]
    assert batch.gather.in_flight == 1
    assert batch.gather.pending(slots(0, 1, 2)).tolist() == [1]


def test_a_loss_answers_for_slots_under_way(batch: Batch) -> None:
    batch.gather.ask(slots(0, 2), 0.0)
    assert batch.gather.lose(range(2), reported=True) == [0]
    assert batch.gather.ready().tolist() == [0]


def test_an_idle_slot_tells_its_loss_at_the_next_request_without_a_step(batch: Batch) -> None:
    assert batch.gather.lose(range(2), reported=True) == []
    assert batch.gather.any_broken
    workers, lost = batch.gather.ask(slots(1, 2), 0.0)
    assert (workers, lost.tolist()) == ([1], [1])
    assert batch.gather.ready().tolist() == [1]
    assert batch.gather.any_broken, "slot 0 has not told its loss yet"


def test_a_loss_is_told_once(batch: Batch) -> None:
    batch.gather.lose(range(2), reported=True)
    first = batch.gather.ask_all()
    assert first is not None
    assert first.tolist() == [0, 1]
    batch.answer(2, 3)
    batch.gather.hand_over_all()
    assert batch.gather.ask_all() is None
    assert not batch.gather.any_broken


def test_an_answer_that_was_reported_is_kept_and_the_loss_comes_after_it(batch: Batch) -> None:
    batch.gather.ask(slots(0), 0.0)
    batch.answer(0)
    assert batch.gather.lose(range(2), reported=True) == []
    batch.gather.hand_over(batch.gather.ready())
    assert batch.gather.ask(slots(0), 1.0)[1].tolist() == [0]


def test_an_answer_whose_report_is_missing_is_lost(batch: Batch) -> None:
    batch.gather.ask(slots(0), 0.0)
    batch.answer(0)
    assert batch.gather.lose(range(2), reported=False) == [0]
    assert batch.gather.ask(slots(1), 0.0)[1].tolist() == [1], "the idle slot is broken, not lost"


def test_mended_slots_have_nothing_to_tell(batch: Batch) -> None:
    batch.gather.lose(range(2), reported=True)
    batch.gather.mend([0])
    assert batch.gather.any_broken
    batch.gather.mend(slots(1))
    assert not batch.gather.any_broken
    assert batch.gather.ask_all() is None


def test_forgotten_requests_are_neither_pending_nor_wanted(batch: Batch) -> None:
    batch.gather.ask(slots(0, 3), 0.0)
    batch.gather.forget_requests()
    assert batch.gather.in_flight == 0
    assert (batch.want == batch.have).all()
    assert batch.gather.ready().tolist() == []


def test_overdue_names_the_workers_that_have_not_answered(batch: Batch) -> None:
    batch.gather.ask(slots(0), 0.0)
    batch.gather.ask(slots(1, 2), 5.0)
    assert batch.gather.overdue(10.0, 6.0) == [0]
    assert batch.gather.overdue(12.0, 6.0) == [0, 1]
    batch.answer(0, 1)
    assert batch.gather.overdue(12.0, 6.0) == [1]


def test_what_is_answered_but_not_taken_is_not_overdue(batch: Batch) -> None:
    batch.gather.ask(slots(0), 0.0)
    batch.answer(0)
    assert batch.gather.overdue(100.0, 1.0) == []


def test_request_numbers_go_round_without_looking_answered(batch: Batch) -> None:
    batch.gather._number = 0xFFFFFFFE
    for _ in range(4):
        batch.gather.ask_all()
        assert (batch.want != batch.have).all()
        batch.answer(0, 1, 2, 3)
        batch.gather.hand_over_all()


def test_steps_count_what_was_asked_in_both_ways(batch: Batch) -> None:
    for _ in range(3):
        batch.gather.ask_all()
        batch.answer(0, 1, 2, 3)
        batch.gather.hand_over_all()
    batch.gather.ask(slots(1, 2), 0.0)
    assert [batch.gather.steps(slot) for slot in range(4)] == [3, 4, 4, 3]
    batch.gather.count_from_here([1, 3])
    assert [batch.gather.steps(slot) for slot in range(4)] == [3, 0, 4, 0]
    assert [batch.gather.steps_ever(slot) for slot in range(4)] == [3, 4, 4, 3]
    batch.gather.forget_requests()
    batch.gather.ask_all()
    assert [batch.gather.steps(slot) for slot in range(4)] == [4, 1, 5, 1]
