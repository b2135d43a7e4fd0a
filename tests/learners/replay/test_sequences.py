"""The memory of sequences beside one that is slow and obvious."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterenv.errors import ConfigError
from clusterenv.learners.replay.cutting import Cutting
from clusterenv.learners.replay.sequences import SequenceReplay
from clusterenv.spaces import Leaf
from tests.learners.kit import vectors
from tests.learners.replay.kit import ACTION, SPACE, SlowLanes, Step, World, batch_of, state_before

SLOTS, STEPS = 2, 60
STATE = (Leaf((2,), np.dtype(np.float64)),)


def replay_of(cutting: Cutting, **changes: Any) -> SequenceReplay:
    given = {"slots": SLOTS, "capacity": SLOTS * STEPS, **cutting._asdict(), **changes}
    return SequenceReplay(SPACE, ACTION, STATE, **given)


@st.composite
def cuttings(draw: st.DrawFn) -> Cutting:
    length = draw(st.integers(1, 8))
    return Cutting(length, draw(st.integers(0, 8)), draw(st.integers(0, length - 1)))


@st.composite
def histories(draw: st.DrawFn) -> list[Any]:
    world = World(SLOTS, draw(st.integers(0, 2**31)), ends=draw(st.sampled_from([0.0, 0.1, 0.4])))
    plays = []
    for _ in range(draw(st.integers(1, 12))):
        slot = draw(st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=3))
        batch = world.play(draw(st.integers(1, 20)), slot, [draw(st.integers(0, 5)) == 0 for _ in slot])
        if draw(st.integers(0, 5)):  # sometimes nobody gets to know what was played
            plays.append(batch)
    return plays


def slow_sequences(lane: list[Step], cutting: Cutting) -> dict[int, tuple[int, int]]:
    """Of one lane, by the first step to learn from: the first step of burn-in, and the one after the last."""
    found = {}
    begins = [k for k, step in enumerate(lane) if step.begins]
    for begin, stop in itertools.pairwise([*begins, len(lane)]):
        start = begin if lane[begin].first else begin + cutting.burn_in
        covered = start
        while covered < stop:
            end = min(start + cutting.length, stop)
            if end - start == cutting.length or lane[stop - 1].ended:
                found[start] = (max(begin, start - cutting.burn_in), end)
            covered, start = end, start + cutting.stride
    return found


def after(step: Step) -> float:
    """What follows a sequence that ends with this step."""
    return 0.0 if step.terminated else step.after


def row(sample: Any, b: int) -> list[tuple[Any, ...]]:
    """What a drawn sequence holds at each index."""
    data = sample.data
    columns = (data.obs, data.action, data.reward, data.terminated, data.truncated, data.first, data.mask)
    return [tuple(column[i, b].item() for column in columns) for i in range(len(data.action))]


def slow_row(lane: list[Step], cutting: Cutting, first: int, start: int, stop: int) -> list[tuple[Any, ...]]:
    rows = []
    for k in range(start - cutting.burn_in, start + cutting.length):
        if first <= k < stop:
            step = lane[k]
            told = (step.obs, step.action, step.reward, step.terminated, step.truncated, step.first, k >= start)
        else:
            told = (after(lane[k - 1]) if k == stop else 0.0, 0, 0.0, False, False, False, False)
        rows.append(told)
    return rows


@settings(max_examples=200)
@given(cuttings(), histories(), st.booleans())
def test_draws_what_a_slow_memory_holds(cutting: Cutting, plays: list[Any], prioritized: bool) -> None:
    replay, slow = replay_of(cutting, prioritized=prioritized, alpha=0.0), SlowLanes(SLOTS)
    ids: list[int] = []
    for batch in plays:
        ids += replay.add(batch).tolist()
        slow.add(batch)
    expected = {}
    for slot, lane in enumerate(slow.lanes):
        for start, (first, stop) in slow_sequences(lane, cutting).items():
            assert start * SLOTS + slot in ids or first < len(lane) - STEPS
            if first >= len(lane) - STEPS:
                expected[start * SLOTS + slot] = (first, stop)
    assert len(set(ids)) == len(ids)
    assert len(replay) == len(expected)
    if not expected:
        return
    sample = replay.sample(40 * len(expected))
    assert set(sample.ids.tolist()) == expected.keys()
    for number, b in {number: b for b, number in enumerate(sample.ids.tolist())}.items():
        (start, slot), (first, stop) = divmod(number, SLOTS), expected[number]
        lane = slow.lanes[slot]
        assert row(sample, b) == slow_row(lane, cutting, first, start, stop)
        assert sample.data.burn_in[b] == start - first
        assert sample.data.obs[cutting.burn_in + stop - start, b] == after(lane[stop - 1])
        assert not sample.data.obs[cutting.burn_in + stop - start + 1 :, b].any()
        state = state_before(np.float64(lane[first].obs), lane[first].first)
        assert np.array_equal(sample.data.state[0][b], state)
        # With fewer steps of burn-in than others it begins with its episode: an unroll forgets the padding there.
        assert start - first == cutting.burn_in or lane[first].first


@pytest.mark.parametrize("layout", vectors("r2d2_sequences")["layouts"], ids=lambda each: str(each["episode_length"]))
def test_cuts_as_worked_out_beforehand(layout: dict[str, Any]) -> None:
    told = vectors("r2d2_sequences")
    cutting, steps = Cutting(told["m"], told["burn_in"], told["overlap"]), layout["episode_length"]
    obs, flags = np.arange(1.0, steps + 2)[:, None], np.zeros((steps, 1), bool)
    terminated, first = flags.copy(), np.zeros((steps + 1, 1), bool)
    terminated[-1], first[0], first[-1] = True, True, True
    batch = batch_of(
        obs=obs,
        action=np.ones((steps, 1), np.int64),
        reward=np.ones((steps, 1)),
        terminated=terminated,
        truncated=flags,
        first=first,
        final_obs=np.full(1, 1e6),
        final_at=(np.array([steps - 1]), np.array([0])),
        slot=np.zeros(1, np.int64),
        worker_lost=np.zeros(1, bool),
        states=(state_before(obs, first)[:-1],),
    )
    replay = replay_of(cutting, slots=1, capacity=400)
    ids = replay.add(batch)
    assert ids.tolist() == [sequence["train_start"] for sequence in layout["sequences"]]
    sample = replay.sample(100)
    for sequence in layout["sequences"]:
        b = sample.ids.tolist().index(sequence["train_start"])
        assert sample.data.burn_in[b] == sequence["burn_in_length"]
        assert (~sample.data.mask[cutting.burn_in :, b]).sum() == sequence["padded_steps"]
        at = sequence["stored_state_time"]
        state = state_before(obs[at, 0], first[at, 0])
        assert np.array_equal(sample.data.state[0][b], state)


def test_new_priorities_count_and_stale_ones_do_not() -> None:
    world = World(1, ends=0.0)
    world.first[0] = True
    replay = replay_of(Cutting(4, 2, 0), slots=1, capacity=12, prioritized=True, alpha=1.0)
    assert replay.add(world.play(12, [0])).tolist() == [0, 4, 8]
    replay.update(np.array([0, 4, 8]), np.array([0.0, 1000.0, 0.0]))
    replay.update(np.array([1]), np.array([10.0**9]))  # no sequence starts there
    sample = replay.sample(50)
    assert (sample.ids == 4).all()
    assert (sample.weights == 1).all()
    assert replay.add(world.play(4, [0])).tolist() == [12]
    # The burn-in of the one at 4 began at 2, and steps 0 to 3 are gone; the one at 12 took the place of the one at 0.
    replay.update(np.array([8, 12, 4, 0]), np.array([1000.0, 0.0, 10.0**9, 10.0**9]))
    assert len(replay) == 2
    assert (replay.sample(50).ids == 8).all()


def test_what_comes_too_late_is_not_taken() -> None:
    world = World(1, ends=0.0)
    world.first[0] = True
    replay = replay_of(Cutting(4, 2, 0), slots=1, capacity=12)
    assert replay.add(world.play(3, [0])).tolist() == []
    # Of 15 steps 3 are gone, and with them the burn-in of the one at 4.
    assert replay.add(world.play(12, [0])).tolist() == [8]
    assert set(replay.sample(20).ids.tolist()) == {8}


def test_nothing_is_kept_beside_the_lanes_for_longer_than_needed() -> None:
    world = World(SLOTS, ends=0.3)
    replay = replay_of(Cutting(6, 3, 2))
    sizes = set()
    for turn in range(60):
        replay.add(world.play(10, [0, 1]))
        if turn > 20:
            sizes.add(replay.nbytes)
    assert len(sizes) == 1


def test_without_state_none_is_asked_for() -> None:
    world = World(SLOTS)
    batch = world.play(20, [0, 1])
    batch.states = None
    with pytest.raises(ConfigError, match="every_state=True"):
        replay_of(Cutting(4, 2, 2)).add(batch)
    replay = SequenceReplay(SPACE, ACTION, slots=SLOTS, capacity=100, length=4)
    replay.add(batch)
    assert replay.sample(3).data.state == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"overlap": 4}, "overlap=4"),
        ({"length": 0}, "length=0"),
        ({"burn_in": -1}, "burn_in=-1"),
        ({"capacity": 100.0}, r"capacity=100\.0 .* whole number"),
        ({"capacity": 20}, "at least 24"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        replay_of(Cutting(4, 2, 2), **changes)


def test_what_cannot_be_done_says_what_to_do() -> None:
    replay = replay_of(Cutting(4, 2, 2))
    with pytest.raises(LookupError, match="Add batches first"):
        replay.sample(1)
    with pytest.raises(ConfigError, match="is -1"):
        replay.update(np.array([0]), np.array([-1.0]))
    replay.add(World(SLOTS).play(20, [0, 1]))
    for count in (0, -1):
        with pytest.raises(ConfigError, match=f"count={count}"):
            replay.sample(count)
    with pytest.raises(ConfigError, match=r"\(3,\), and priorities \(2,\)"):
        replay.update(np.arange(3), np.ones(2))


@pytest.mark.parametrize("slot", [-1, SLOTS])
def test_steps_of_a_slot_that_is_not_there_are_refused_before_anything_is_written(slot: int) -> None:
    batch, replay = World(SLOTS).play(20, [0, 0, 1]), replay_of(Cutting(4, 2, 2))
    batch.slot[2] = slot
    with pytest.raises(ConfigError, match=f"slot {slot}, .* 0 to {SLOTS - 1}"):
        replay.add(batch)
    assert len(replay) == 0


@pytest.mark.parametrize("bad", [np.nan, -np.inf, 1e300])
def test_rewards_that_are_not_finite_are_refused_before_anything_is_written(bad: float) -> None:
    batch, replay = World(SLOTS).play(20, [0, 0, 1]), replay_of(Cutting(4, 2, 2))
    batch.reward[3, 2] = bad
    with pytest.raises(ConfigError, match=rf"slot 1 is {re.escape(str(bad))} at step 3 .* environment, which gave it"):
        replay.add(batch)
    assert len(replay) == 0
