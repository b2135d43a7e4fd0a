"""The bookkeeping of requests against a model of a few sets: any order of requests, answers and losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from clusterenv.cluster.gather import Gather
from clusterenv.cluster.slots import split


@dataclass
class Asked:
    """A request in the model: when it was sent, its number, whether it is answered, and as what."""

    at: int
    number: int
    answered: bool = False
    lost: bool = False


class GatherMachine(RuleBasedStateMachine):
    """Rules are what head and workers may do; the model holds what the user must see."""

    @initialize(num_envs=st.integers(1, 7), workers=st.integers(1, 4))
    def start(self, num_envs: int, workers: int) -> None:
        self.blocks = split(num_envs, workers)
        self.want = np.zeros(num_envs, dtype=np.uint32)
        self.have = np.zeros(num_envs, dtype=np.uint32)
        self.gather = Gather(self.blocks, self.want, self.have)
        self.clock = 0
        self.lock_step = False  # a request for all slots is waited for as a whole, by nobody's clock
        self.asked: dict[int, Asked] = {}
        self.broken: set[int] = set()
        self.taken: set[tuple[int, int]] = set()
        self.owner = {slot: worker for worker, block in enumerate(self.blocks) for slot in block}

    # What the head does.

    @precondition(lambda self: len(self.asked) < len(self.want) and not (self.asked and self.lock_step))
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        idle = sorted(set(range(len(self.want))) - set(self.asked))
        chosen = data.draw(st.lists(st.sampled_from(idle), min_size=1, unique=True))
        self.clock += data.draw(st.integers(0, 2))
        self.lock_step = False
        workers, lost = self.gather.ask(np.array(chosen, dtype=np.intp), float(self.clock))
        self._remember(chosen, lost.tolist())
        assert lost.tolist() == [slot for slot in chosen if self.asked[slot].lost]
        assert workers == sorted({self.owner[slot] for slot in chosen if not self.asked[slot].lost})

    @precondition(lambda self: not self.asked)
    @rule()
    def ask_all(self) -> None:
        broken = set(self.broken)
        lost = self.gather.ask_all()
        self.lock_step = True
        assert (lost is None) == (not broken)
        self._remember(range(len(self.want)), [] if lost is None else lost.tolist())
        assert {slot for slot, asked in self.asked.items() if asked.lost} == broken

    @rule(data=st.data())
    def hand_over(self, data: st.DataObject) -> None:
        ready = self.gather.ready()
        count = data.draw(st.integers(0, len(ready)))
        for slot in ready[:count].tolist():
            asked = self.asked.pop(slot)
            assert asked.answered, "a slot was handed over before its answer"
            assert (slot, asked.number) not in self.taken, "a slot was handed over twice for one request"
            self.taken.add((slot, asked.number))
        self.gather.hand_over(ready[:count])

    @precondition(lambda self: all(asked.answered for asked in self.asked.values()))
    @rule()
    def hand_over_all(self) -> None:
        self.gather.hand_over_all()
        self.asked.clear()

    @precondition(lambda self: not self.asked)
    @rule(data=st.data())
    def mend(self, data: st.DataObject) -> None:
        slots = data.draw(st.lists(st.integers(0, len(self.want) - 1), min_size=1, unique=True))
        self.gather.mend(slots)
        self.broken -= set(slots)

    @rule()
    def forget(self) -> None:
        self.gather.forget_requests()
        self.asked.clear()

    # What workers do.

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        worker = data.draw(st.integers(0, len(self.blocks) - 1))
        for slot in self.blocks[worker]:
            if slot in self.asked and not self.asked[slot].answered and data.draw(st.booleans()):
                self.have[slot] = self.want[slot]
                self.asked[slot].answered = True

    @rule(data=st.data(), reported=st.booleans())
    def lose(self, data: st.DataObject, reported: bool) -> None:
        worker = data.draw(st.integers(0, len(self.blocks) - 1))
        block = self.blocks[worker]
        expected = [slot for slot in block if slot in self.asked and not (self.asked[slot].answered and reported)]
        assert self.gather.lose(block, reported=reported) == expected
        for slot in expected:
            self.asked[slot].answered = self.asked[slot].lost = True
        self.broken |= set(block) - set(expected)

    # What must hold at all times.

    @invariant()
    def in_flight_is_what_is_asked_for(self) -> None:
        everything = np.arange(len(self.want))
        assert self.gather.in_flight == len(self.asked)
        assert set(self.gather.pending(everything).tolist()) == set(self.asked)

    @invariant()
    def ready_is_what_is_answered_oldest_first(self) -> None:
        answered = [(asked.at, slot) for slot, asked in self.asked.items() if asked.answered]
        moments = [self.asked[slot].at for slot in self.gather.ready().tolist()]
        assert sorted(self.gather.ready().tolist()) == sorted(slot for _, slot in answered)
        assert self.gather.count_ready() == len(answered)
        if not self.lock_step:
            assert moments == sorted(moments)

    @invariant()
    def broken_slots_are_known(self) -> None:
        assert self.gather.any_broken == bool(self.broken)

    @invariant()
    def nothing_idle_is_wanted(self) -> None:
        unanswered = {slot for slot, asked in self.asked.items() if not asked.answered}
        assert set(np.flatnonzero(self.want != self.have).tolist()) == unanswered

    @invariant()
    def overdue_names_those_who_wait_too_long(self) -> None:
        if self.lock_step:
            return
        for limit in (0, 1, 3):
            late = {self.owner[s] for s, a in self.asked.items() if not a.answered and a.at < self.clock - limit}
            assert self.gather.overdue(float(self.clock), float(limit)) == sorted(late)

    def teardown(self) -> None:
        """Whatever happened: once every worker has answered or is lost, every slot that was asked for is ready."""
        if not hasattr(self, "gather"):
            return
        for worker, block in enumerate(self.blocks):
            if worker % 2:
                self.gather.lose(block, reported=True)
            else:
                self.have[block.start : block.stop] = self.want[block.start : block.stop]
        assert set(self.gather.ready().tolist()) == set(self.asked)

    def _remember(self, slots: Any, lost: list[int]) -> None:
        number = int(self.want[slots[0]])
        for slot in slots:
            assert int(self.want[slot]) == number, "one request has one number"
            self.asked[slot] = Asked(self.clock, number, answered=slot in lost, lost=slot in lost)
        self.broken -= set(lost)


TestGather = GatherMachine.TestCase
TestGather.settings = settings(max_examples=120, stateful_step_count=40)
