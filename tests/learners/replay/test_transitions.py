"""The memory of transitions beside one that is slow and obvious."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.errors import ConfigError
from clusterenv.learners.replay.transitions import TransitionReplay
from tests.learners.kit import vectors
from tests.learners.replay.kit import ACTION, SPACE, SlowLanes, World, batch_of

SLOTS = 3


def replay_of(**settings: Any) -> TransitionReplay:
    return TransitionReplay(SPACE, ACTION, **{"slots": SLOTS, "capacity": 60, "gamma": 0.9, **settings})


def everything(replay: TransitionReplay) -> dict[int, tuple[float, ...]]:
    """What can be drawn, by id, from so many draws that nothing is left out."""
    sample = replay.sample(80 * len(replay))
    columns = (sample.data.obs, sample.data.action, sample.data.reward, sample.data.discount, sample.data.next_obs)
    return dict(zip(sample.ids.tolist(), zip(*(column.tolist() for column in columns), strict=True), strict=True))


@st.composite
def histories(draw: st.DrawFn) -> tuple[World, list[Any]]:
    world = World(SLOTS, draw(st.integers(0, 2**31)), ends=draw(st.sampled_from([0.0, 0.1, 0.5])))
    plays = []
    for _ in range(draw(st.integers(1, 12))):
        slot = draw(st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=4))
        batch = world.play(draw(st.integers(1, 9)), slot, [draw(st.integers(0, 5)) == 0 for _ in slot])
        if draw(st.integers(0, 5)):  # sometimes nobody gets to know what was played
            plays.append(batch)
    return world, plays


@given(histories(), st.integers(1, 4), st.booleans(), st.booleans())
def test_draws_what_a_slow_memory_holds(history: Any, n_step: int, prioritized: bool, told: bool) -> None:
    world, plays = history
    replay, slow, complete = replay_of(n_step=n_step, prioritized=prioritized, alpha=0.0), SlowLanes(SLOTS), 0
    for batch in plays:
        values: dict[str, Any] = {}
        if told:
            taken, best = world.random.normal(size=(2, *batch.reward.shape))
            values = {"taken": taken, "best": best, "final_best": world.random.normal(size=len(batch.final_obs))}
        complete += replay.add(batch, **values)
        slow.add(batch, **values)
    expected, ever = {}, 0
    for slot, lane in enumerate(slow.lanes):
        for k, start in enumerate(lane):
            made = slow.transition(slot, k, n_step, 0.9)
            if made is None or (told and np.isnan(slow.value_after(slot, k, n_step)) and not made[3].ended):
                continue
            ever += 1
            if k >= len(lane) - 20:
                expected[k * SLOTS + slot] = (start.obs, start.action, *made[:3])
    assert complete == ever
    assert len(replay) == len(expected)
    if expected:
        found = everything(replay)
        assert found.keys() == expected.keys()
        for number, (obs, action, reward, discount, following) in found.items():
            want = expected[number]
            assert (obs, action) == want[:2]
            assert (reward, discount) == pytest.approx(want[2:4], rel=1e-5, abs=1e-5)
            assert following == want[4] or discount == 0


@given(histories(), st.integers(1, 4))
def test_first_priorities_are_errors_of_the_policy_that_acted(history: Any, n_step: int) -> None:
    world, plays = history
    replay, slow = replay_of(n_step=n_step, prioritized=True, alpha=1.0, beta=1.0), SlowLanes(SLOTS)
    for batch in plays:
        taken, best = world.random.normal(size=(2, *batch.reward.shape))
        values = {"taken": taken, "best": best, "final_best": world.random.normal(size=len(batch.final_obs))}
        replay.add(batch, **values)
        slow.add(batch, **values)
    if not len(replay):
        return
    sample = replay.sample(500)
    errors = []
    for number in sample.ids.tolist():
        k, slot = divmod(number, SLOTS)
        made = slow.transition(slot, k, n_step, 0.9)
        assert made is not None
        after = slow.value_after(slot, k, n_step)
        errors.append(abs(made[0] + made[1] * after - slow.lanes[slot][k].taken))
    known = ~np.isnan(errors)  # nobody was asked what an observation is worth after which the worker was lost
    if known.any():
        chances = (1 / sample.weights)[known]
        expected = np.array(errors)[known] + 1e-6
        ratio = chances / expected
        assert ratio == pytest.approx(np.full(len(ratio), ratio[0]), rel=1e-3)


def test_follows_the_script() -> None:
    script = vectors("nstep_transitions")
    names = [step["s"] for step in script["steps"]] + ["w2"]
    ends = {t: step["s_next"] for t, step in enumerate(script["steps"]) if step["terminated"] or step["truncated"]}
    names += ends.values()

    def column(name: str) -> Any:
        return np.array([[step[name]] for step in script["steps"]])

    first = np.array([[t == 0 or t - 1 in ends] for t in range(9)])
    batch = batch_of(
        obs=np.arange(9.0)[:, None],
        action=column("a"),
        reward=column("r"),
        terminated=column("terminated"),
        truncated=column("truncated"),
        first=first,
        final_obs=np.array([float(names.index(name)) for name in ends.values()]),
        final_at=(np.array(list(ends)), np.zeros(len(ends), np.int64)),
        slot=np.zeros(1, np.int64),
        worker_lost=np.zeros(1, bool),
    )
    replay = replay_of(slots=1, n_step=script["n"], gamma=script["gamma"])
    assert replay.add(batch) == len(script["expected"]) == len(batch.reward) - script["expected_still_pending"]
    for number, made in everything(replay).items():
        expected = script["expected"][number]
        assert (names[int(made[0])], made[1]) == (expected["s"], expected["a"])
        assert made[2:4] == pytest.approx((expected["R"], expected["bootstrap_discount"]), rel=1e-6)
        assert made[3] == 0 or names[int(made[4])] == expected["s_boot"]


@pytest.mark.parametrize("steps", [1, 4])
def test_a_lost_worker_is_no_part_of_what_comes_after(steps: int) -> None:
    world = World(1, ends=0.0)
    replay = replay_of(slots=1, n_step=3)
    before, after = world.play(4, [0]), world.play(steps, [0], [True])
    assert replay.add(before) == 2
    assert replay.add(after) == 2 + max(0, steps - 2)  # those that waited end where the worker did
    last = everything(replay)[3]
    assert last[3:] == pytest.approx((0.9, before.obs[4, 0]))


def test_what_nobody_valued_gets_the_largest_priority_so_far() -> None:
    world = World(1, ends=0.0)
    replay = replay_of(slots=1, prioritized=True, alpha=1.0, beta=1.0)
    for lost in (False, True):
        batch = world.play(3, [0], [lost])
        batch.reward[:] = 4.0
        batch.reward[0] = 9.0  # the largest error, since everything else is nothing
        replay.add(batch, taken=np.zeros((3, 1)), best=np.zeros((3, 1)))
    sample = replay.sample(4000)
    chances = dict(zip(sample.ids.tolist(), (1 / sample.weights).tolist(), strict=True))
    # What step 2 led to was seen, but its worker was lost before it could act there.
    assert [chances[k] / chances[1] for k in range(5)] == pytest.approx([9 / 4, 1, 9 / 4, 9 / 4, 1], rel=1e-4)


def test_new_priorities_count_and_stale_ones_do_not() -> None:
    world = World(1, ends=0.0)
    replay = replay_of(slots=1, capacity=10, prioritized=True, alpha=1.0, beta=1.0)
    replay.add(world.play(8, [0]))
    replay.update(np.arange(8), np.zeros(8))
    replay.update(np.array([5, 5]), np.array([1.0, 1000.0]))
    assert (replay.sample(100).ids == 5).all()
    replay.add(world.play(8, [0]))  # 16 steps, room for 10: 5 is gone, and 15 lies in its place
    replay.update(np.arange(6, 16), np.zeros(10))
    replay.update(np.array([7, 5]), np.array([1000.0, 10.0**9]))
    assert (replay.sample(100).ids == 7).all()


def test_a_step_that_has_not_been_played_has_no_priority() -> None:
    world = World(1, ends=0.0)
    replay = replay_of(slots=1, capacity=10, prioritized=True, alpha=1.0, beta=1.0)
    replay.add(world.play(10, [0]))
    replay.update(np.arange(10), np.ones(10))
    replay.update(np.array([15]), np.array([10.0**9]))  # 5 lies in its place
    assert set(replay.sample(100).ids.tolist()) == set(range(10))


def test_a_fragment_as_long_as_a_lane_leaves_nothing_of_the_one_before() -> None:
    world, replay = World(1, ends=0.0), replay_of(slots=1, capacity=6, n_step=3, prioritized=True)
    for turn in range(3):
        replay.add(world.play(6, [0]))
        assert set(replay.sample(100).ids.tolist()) == {6 * turn + k for k in range(4)}  # two have no three steps yet


def test_without_priorities_all_are_drawn_alike() -> None:
    world = World(SLOTS, ends=0.1)
    replay = replay_of(capacity=30)
    for _ in range(5):
        replay.add(world.play(7, [0, 1]))
    replay.add(world.play(4, [2]))
    sample = replay.sample(24_000)
    replay.update(sample.ids, np.arange(24_000.0))  # which changes nothing
    sample = replay.sample(24_000)
    assert (sample.weights == 1).all()
    counts = np.unique(sample.ids, return_counts=True)[1]
    assert len(counts) == len(replay) == 24
    assert counts / 1000 == pytest.approx(np.ones(24), abs=0.2)


def test_observations_keep_their_shape() -> None:
    space = spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Tuple([spaces.Discrete(5)]))
    world = World(2, ends=0.3)
    plain = world.play(6, [0, 1])

    def tree(numbers: Any) -> Any:
        return {"a": np.stack([numbers, -numbers], axis=-1).astype(np.float32), "b": (numbers.astype(np.int64),)}

    plain.obs, plain.final_obs = tree(plain.obs), tree(plain.final_obs)
    replay = TransitionReplay(space, ACTION, slots=2, capacity=20)
    replay.add(plain)
    for seen in (replay.sample(50).data.obs, replay.sample(50).data.next_obs):
        assert seen["a"].shape == (50, 2)
        assert (seen["a"][:, 0] == seen["b"][0]).all()
        assert (seen["a"][:, 1] == -seen["b"][0]).all()


def test_the_same_seed_draws_the_same() -> None:
    plays = [World(SLOTS).play(8, [0, 1, 2])]
    drawn = []
    for seed in (1, 1, 2):
        replay = replay_of(seed=seed, prioritized=True)
        replay.add(plays[0])
        drawn.append(replay.sample(20).ids.tolist())
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"capacity": 5, "n_step": 1}, "capacity of 6"),
        ({"n_step": 0}, "n_step=0"),
        ({"gamma": 1.5}, "gamma=1.5"),
        ({"gamma": -0.1}, "from 0 to 1"),
        ({"capacity": 100.0}, r"capacity=100\.0 .* whole number"),
        ({"prioritized": True, "alpha": -1.0}, "alpha=-1.0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        replay_of(**settings)


def test_what_cannot_be_done_says_what_to_do() -> None:
    world, replay = World(SLOTS), replay_of(prioritized=True)
    with pytest.raises(LookupError, match="Add batches first"):
        replay.sample(1)
    with pytest.raises(ConfigError, match="at least 63"):
        replay.add(world.play(21, [0]))
    with pytest.raises(ConfigError, match="give both"):
        replay.add(world.play(2, [0]), taken=np.zeros((2, 1)))
    with pytest.raises(ConfigError, match="best is not finite"):
        replay.add(world.play(2, [0]), taken=np.zeros((2, 1)), best=np.full((2, 1), np.nan))
    with pytest.raises(ConfigError, match="is nan"):
        replay.update(np.array([0]), np.array([np.nan]))
    with pytest.raises(ConfigError, match="are none"):
        TransitionReplay(spaces.Text(3), ACTION, slots=1, capacity=10)


@pytest.mark.parametrize("count", [0, -1, 2.5])
def test_only_a_number_of_transitions_can_be_drawn(count: Any) -> None:
    replay = replay_of()
    replay.add(World(SLOTS).play(8, [0, 1, 2]))
    with pytest.raises(ConfigError, match=f"count={count}"):
        replay.sample(count)


@pytest.mark.parametrize("prioritized", [True, False])
def test_there_must_be_a_priority_for_each_id(prioritized: bool) -> None:
    replay = replay_of(prioritized=prioritized)
    replay.add(World(SLOTS).play(8, [0, 1, 2]))
    with pytest.raises(ConfigError, match=r"\(3,\), and priorities \(2,\)"):
        replay.update(np.arange(3), np.ones(2))


@pytest.mark.parametrize("slot", [-1, SLOTS])
def test_steps_of_a_slot_that_is_not_there_are_refused_before_anything_is_written(slot: int) -> None:
    batch, replay = World(SLOTS).play(4, [0, 0, 1]), replay_of()
    batch.slot[2] = slot
    with pytest.raises(ConfigError, match=f"slot {slot}, .* 0 to {SLOTS - 1}"):
        replay.add(batch)
    assert len(replay) == 0


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        (((2, 4), (4, 2), (1,)), r"taken has the shape \(2, 4\), but must have \(4, 2\)"),
        (((4, 2), (4, 3), (1,)), r"best has the shape \(4, 3\)"),
        (((4, 2), (4, 2), (2,)), r"final_best has the shape \(2,\), but must have \(1,\)"),
    ],
)
def test_values_that_are_not_of_the_batch_are_refused(shapes: Any, said: str) -> None:
    batch, replay = World(SLOTS, ends=0.0).play(4, [0, 1]), replay_of(prioritized=True)
    batch.truncated[2, 1] = batch.first[3, 1] = True
    batch.final_at, batch.final_obs = (np.array([2]), np.array([1])), np.array([0.5])
    with pytest.raises(ConfigError, match=said):
        replay.add(batch, *(np.zeros(shape) for shape in shapes))


def test_without_a_future_only_the_first_reward_counts() -> None:
    batch, replay = World(1, ends=0.3).play(12, [0]), replay_of(slots=1, gamma=0.0, n_step=3, prioritized=True)
    replay.add(batch)
    drawn = replay.sample(50)
    assert drawn.data.reward.tolist() == batch.reward[drawn.ids, 0].tolist()
    assert not drawn.data.discount.any()


@pytest.mark.parametrize("bad", [np.nan, -np.inf, 1e300])
def test_rewards_that_are_not_finite_are_refused_before_anything_is_written(bad: float) -> None:
    batch, replay = World(SLOTS).play(4, [0, 0, 1]), replay_of()
    batch.reward[3, 2] = bad
    with pytest.raises(ConfigError, match=rf"slot 1 is {re.escape(str(bad))} at step 3 .* environment, which gave it"):
        replay.add(batch)
    assert len(replay) == 0
