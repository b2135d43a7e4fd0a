"""Unrolls in the making: whatever the order in which slots answer, each unroll is what its slot lived through."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.learners.common import gathering
from clusterenv.learners.common.gathering import Answers, Gathered, Gathering
from clusterenv.spaces import Leaf
from clusterenv.transport.fragments import FragmentSpec

if TYPE_CHECKING:
    import pytest

NUMBER, ACTION = Leaf((), np.dtype(np.float32)), Leaf((), np.dtype(np.int64))
T, N = 2, 3

# What happens to a slot when it answers a step; an answer to a reset can only be fine, or lost, or have failed.
EVENTS = ("step", "step", "step", "terminates", "truncates", "continues", "fails", "is lost")


def spec(steps: int = T, slots: int = N) -> FragmentSpec:
    return FragmentSpec(1, steps, slots, 1, (NUMBER,), (), ACTION, 1, has_value=True)


@dataclass
class Life:
    """One slot, step by step, as a list would keep it: the slow and obvious way."""

    obs: list[float]
    first: list[bool]
    steps: list[dict[str, Any]] = field(default_factory=list)
    resetting: bool = False
    afresh: bool = False
    total: float = 0.0
    length: int = 0
    whole: list[tuple[list[float], list[bool], list[dict[str, Any]], bool]] = field(default_factory=list)

    def answer(self, event: str, seen: float, reward: float) -> None:
        if event == "is lost":
            self.obs, self.first, self.steps = [], [], []
            self.resetting, self.afresh, self.total, self.length = True, True, 0.0, 0
        elif self.resetting:
            if event != "fails":
                self._see(seen, first=True)
        else:
            self._step(event, seen, reward)

    def _step(self, event: str, seen: float, reward: float) -> None:
        ends = event != "step"
        self.total, self.length = self.total + reward, self.length + 1
        told = (self.total, self.length) if ends and event not in ("continues", "fails") else None
        last = {"reward": reward, "terminated": event in ("terminates", "continues"), "final": seen if ends else None}
        self.steps[-1] |= last | {"told": told, "truncated": event in ("truncates", "fails")}
        if ends:
            self.resetting = True
            if event != "continues":
                self.total, self.length = 0.0, 0
        else:
            self._see(seen, first=False)

    def _see(self, seen: float, *, first: bool) -> None:
        self.resetting = False
        self.obs.append(seen)
        self.first.append(first)
        if len(self.obs) == T + 1:
            self.whole.append((self.obs, self.first, self.steps, self.afresh))
            self.obs, self.first, self.steps, self.afresh = [seen], [first], [], False


rounds = st.lists(
    st.lists(st.sampled_from(EVENTS) | st.none(), min_size=N, max_size=N).filter(any), min_size=6, max_size=30
)


@given(rounds, st.integers(1, 5))
def test_every_unroll_is_what_its_slot_lived_through(rounds: list[list[str | None]], every: int) -> None:
    """However long whole unrolls wait until they are gathered, some of them cut apart."""
    unrolls = Gathering(spec(), spare=every * N)
    lives = [Life([float(slot)], [True]) for slot in range(N)]
    asked = unrolls.begin([np.arange(N, dtype=np.float32)])
    gathered, waiting = [], []
    clock = 10.0
    for number, events in enumerate(rounds):
        act(unrolls, lives, asked, number)
        slots = np.array([slot for slot in range(N) if events[slot] is not None])
        seen, reward = clock + slots.astype(np.float32), np.arange(len(slots)) + 0.5
        clock += 10
        chosen = [event for event in events if event is not None]
        for slot, event, obs, got in zip(slots, chosen, seen, reward, strict=True):
            lives[slot].answer(event, float(obs), float(got))
        asked = unrolls.answered(answers(unrolls, slots, chosen, seen, reward))
        waiting += unrolls.take()
        if waiting and number % every == 0:
            gathered.append(unrolls.gather([part for each in waiting for part in each.split(1)]))
            waiting = []
        assert sorted([*asked.act, *asked.reset]) == slots.tolist()
        assert [life.resetting for life in np.array(lives)[slots]] == [slot in asked.reset for slot in slots]
    if waiting:
        gathered.append(unrolls.gather(waiting))
    check(gathered, lives)


def act(unrolls: Gathering, lives: list[Life], asked: Any, number: int) -> None:
    """Whoever waits gets an action: the number of this round, and what follows from it."""
    actions = np.full(len(asked.act), number)
    unrolls.acted(asked.act, actions, actions / 8, actions[:, None] / 4, actions / 2, version=number)
    for slot in asked.act:
        assert lives[slot].obs[-1] == asked.obs[0][asked.act.tolist().index(slot)]
        assert lives[slot].first[-1] == asked.first[asked.act.tolist().index(slot)]
        assert (len(lives[slot].obs) == 1) == (asked.at == 0)[asked.act.tolist().index(slot)]
        lives[slot].steps.append({"action": number})


def answers(unrolls: Gathering, slots: Any, events: list[str], seen: Any, reward: Any) -> Answers:
    """As `recv` tells it: an answer to a reset has no end, apart from losses and failures."""
    fresh = unrolls._resetting[slots]
    lost, failed = (np.array([event == name for event in events]) for name in ("is lost", "fails"))
    terminated = np.array([event in ("terminates", "continues") for event in events]) & ~fresh
    truncated = (np.array([event == "truncates" for event in events]) & ~fresh) | lost | failed
    continues = np.array([event == "continues" for event in events])
    rare = (mask if mask.any() else None for mask in (lost, failed, continues))
    return Answers(slots, [seen], reward, terminated, truncated, *rare)


def check(gathered: list[Gathered], lives: list[Life]) -> None:
    found: dict[int, list[Any]] = {slot: [] for slot in range(N)}
    for each in gathered:
        for column, slot in enumerate(each.slots):
            found[slot].append((each, column, each.afresh[column]))
    for slot, life in enumerate(lives):
        assert len(found[slot]) == len(life.whole)
        for (told, at, afresh), (obs, first, steps, begun_afresh) in zip(found[slot], life.whole, strict=True):
            assert told.columns.obs[0][:, at].tolist() == obs
            assert told.columns.first[:, at].tolist() == first
            assert afresh == begun_afresh
            for t, step in enumerate(steps):
                check_step(told, t, at, step)


def check_step(told: Gathered, t: int, at: int, step: dict[str, Any]) -> None:
    number, columns = step["action"], told.columns
    assert columns.value is not None
    assert columns.action[t, at] == columns.version[t, at] == number
    assert (columns.logp[t, at], columns.params[t, at, 0], columns.value[t, at]) == (number / 8, number / 4, number / 2)
    for name in ("reward", "terminated", "truncated"):
        assert getattr(columns, name)[t, at] == step[name]
    if step["final"] is None:
        return
    ended = zip(*(columns.terminated | columns.truncated).nonzero(), strict=True)
    assert told.final[0][list(ended).index((t, at))] == step["final"]
    length = columns.episode_length[t, at]
    assert (length > 0) == (step["told"] is not None)
    if step["told"] is not None:
        assert (columns.episode_return[t, at], length) == step["told"]


def test_the_states_before_unrolls_are_asked_for_when_they_are_whole() -> None:
    asked_for = []

    def starts(slots: Any) -> list[Any]:
        asked_for.append(slots.tolist())
        return [np.full((1, len(slots), 2), 7.0)]

    unrolls = Gathering(spec(steps=1), starts, spare=2)
    asked = unrolls.begin([np.zeros(N, np.float32)])
    some, no = np.array([2, 1]), np.zeros(2, bool)
    unrolls.acted(asked.act, np.zeros(N, int), np.zeros(N), np.zeros((N, 1)), np.zeros(N), version=0)
    unrolls.answered(Answers(some, [np.ones(2, np.float32)], np.zeros(2), no, no))
    whole = unrolls.take()
    assert asked_for == [[2, 1]]
    assert unrolls.take() == []
    assert (
        unrolls.gather([part for each in whole for part in each.split(1)]).columns.state[0].tolist() == [[7.0, 7.0]] * 2
    )


def test_unrolls_of_fresh_environments_are_marked() -> None:
    unrolls = Gathering(spec(steps=1), spare=N)
    unrolls.begin([np.zeros(N, np.float32)])
    everybody, no = np.arange(N), np.zeros(N, bool)
    lost = np.array([False, True, False])
    zeros = np.zeros(N)
    unrolls.acted(everybody, np.zeros(N, int), zeros, zeros[:, None], zeros, version=3)
    unrolls.answered(Answers(everybody, [np.ones(N, np.float32)], zeros, no, lost, lost=lost))
    one = np.array([1])
    for _ in range(2):  # the reset, and a step
        unrolls.answered(Answers(one, [np.full(1, 5, np.float32)], np.ones(1), no[:1], no[:1]))
        unrolls.acted(one, np.zeros(1, int), zeros[:1], zeros[:1, None], zeros[:1], version=4)
    told = unrolls.gather(unrolls.take())
    assert told.slots.tolist() == [0, 2, 1]
    assert told.afresh.tolist() == [False, False, True]
    assert told.columns.version.tolist() == [[3, 3, 4]]
    assert told.columns.obs[0].tolist() == [[0, 0, 5], [1, 1, 5]]


def test_what_was_gathered_stays_as_it_was_while_others_play_on() -> None:
    unrolls = Gathering(spec(steps=1, slots=1), spare=1)
    one, no = np.arange(1), np.zeros(1, bool)
    unrolls.begin([np.zeros(1, np.float32)])
    told = []
    for step in range(1, 6):
        unrolls.acted(one, one, np.zeros(1), np.zeros((1, 1)), np.zeros(1), version=0)
        unrolls.answered(Answers(one, [np.full(1, step, np.float32)], np.ones(1), no, no))
        told.append(unrolls.gather(unrolls.take()))
    assert [each.columns.obs[0][:, 0].tolist() for each in told] == [[step - 1, step] for step in range(1, 6)]


def test_lanes_are_free_again_only_once_they_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread takes free lanes and plays into them at any time."""
    unrolls = Gathering(spec(steps=1, slots=1), spare=1)
    one, no = np.arange(1), np.zeros(1, bool)
    unrolls.begin([np.zeros(1, np.float32)])
    unrolls.acted(one, one, np.zeros(1), np.zeros((1, 1)), np.zeros(1), version=0)
    unrolls.answered(Answers(one, [np.ones(1, np.float32)], np.ones(1), no, no))
    copied: list[bool] = []

    def taken(part: Any, lanes: Any) -> Any:
        copied.append(not set(lanes.tolist()) & set(unrolls._free))
        return original(part, lanes)

    original = gathering._taken
    monkeypatch.setattr(gathering, "_taken", taken)
    unrolls.gather(unrolls.take())
    assert len(copied) > 8
    assert all(copied)
    assert list(unrolls._free) == [0]
