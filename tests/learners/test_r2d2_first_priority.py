"""First priorities: the same as a slow twin makes of everything that was ever played."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterenv.errors import ConfigError
from clusterenv.learners.common.rescaling import squash, unsquash
from clusterenv.learners.r2d2.config import R2D2Config
from clusterenv.learners.r2d2.loss import first_priority
from clusterenv.learners.replay.sequences import SequenceReplay
from clusterenv.policy.categorical import values_at
from tests.learners.replay.kit import ACTION, SPACE, SlowLanes, World

if TYPE_CHECKING:
    import pathlib

SLOTS, LENGTH, OVERLAP, STEPS = 3, 4, 2, 5


def config(**changes: Any) -> R2D2Config:
    fixed: dict[str, Any] = {
        "num_envs": SLOTS,
        "length": LENGTH,
        "overlap": OVERLAP,
        "burn_in": 2,
        "rollout_steps": STEPS,
        "n_step": 3,
        "gamma": 0.9,
    }
    return R2D2Config(**{**fixed, **changes})


def memory(capacity: int = 3000) -> SequenceReplay:
    return SequenceReplay(
        SPACE, ACTION, slots=SLOTS, capacity=capacity, length=LENGTH, burn_in=2, overlap=OVERLAP, prioritized=True
    )


def add(replay: SequenceReplay, batch: Any) -> Any:
    """The ids of what is complete."""
    return replay.add(batch, values_at(batch.params, batch.action), batch.params.max(-1))


def priorities(replay: SequenceReplay, told: R2D2Config, slot: Any, start: Any) -> list[float]:
    acted = map(torch.from_numpy, replay.acted(np.array(start) * SLOTS + np.array(slot)))
    found: list[float] = first_priority(
        *acted, gamma=told.gamma, n=told.n_step, epsilon=told.rescaling, eta=told.eta
    ).tolist()
    return found


def thoughtful(world: World, slot: list[int], lost: list[bool] | None = None) -> Any:
    """A batch of a policy with three Q-values."""
    batch = world.play(STEPS, slot, lost)
    batch.action %= 3
    batch.params = world.random.normal(size=(STEPS, len(slot), 3)).astype(np.float32)
    return batch


def by_hand(told: R2D2Config, lane: list[Any], start: int) -> float:
    """The priority of the sequence that starts there, of the steps whose error is known; NaN if there is none."""
    steps = []
    for k in range(start, min(start + told.length, len(lane))):
        steps.append(k)
        if lane[k].ended:
            break
    last = steps[-1]
    if not lane[last].terminated and (lane[last].truncated or last + 1 == len(lane)):
        steps.pop()  # nobody acted on what follows
    sizes = []
    for k in steps:
        total, weight = 0.0, 1.0
        for j in range(k, min(k + told.n_step, steps[-1] + 1)):
            total += weight * lane[j].reward
            weight *= told.gamma
        if not lane[j].terminated:
            total += weight * float(unsquash(torch.tensor(lane[j + 1].best)))
        sizes.append(abs(float(squash(torch.tensor(total))) - lane[k].taken))
    return math.nan if not sizes else told.eta * max(sizes) + (1 - told.eta) * sum(sizes) / len(sizes)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    capacity=st.sampled_from([SLOTS * 12, 3000]),  # the smaller one is full after two fragments
    ends=st.sampled_from([0.05, 0.3, 0.7]),
    plan=st.lists(
        st.tuples(st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=4), st.booleans(), st.integers(0, 4)),
        min_size=1,
        max_size=8,
    ),
)
def test_agrees_with_a_slow_twin(
    seed: int, capacity: int, ends: float, plan: list[tuple[list[int], bool, int]]
) -> None:
    told, world, slow, replay = config(), World(SLOTS, seed, ends=ends), SlowLanes(SLOTS), memory(capacity)
    for slot, breaks, told_of in plan:
        batch = thoughtful(world, slot, [breaks, *([False] * (len(slot) - 1))])
        if not told_of:  # sometimes nobody gets to know what was played
            continue
        slow.add(batch, values_at(batch.params, batch.action), batch.params.max(-1))
        start, lane = np.divmod(add(replay, batch), SLOTS)
        oldest = [max(0, len(steps) - capacity // SLOTS) for steps in slow.lanes]
        expected = [
            by_hand(told, slow.lanes[n], k) if k >= oldest[n] else math.nan
            for n, k in zip(lane.tolist(), start.tolist(), strict=True)
        ]
        np.testing.assert_allclose(priorities(replay, told, lane, start), expected, rtol=1e-4, atol=1e-5)


def test_a_single_step_that_was_truncated_has_no_priority_yet() -> None:
    replay, batch = memory(), thoughtful(World(SLOTS, ends=0.0), [0])
    batch.truncated[0, 0] = batch.first[1, 0] = True
    batch.final_at, batch.final_obs = (np.array([0]), np.array([0])), np.array([99.0])
    add(replay, batch)
    assert np.isnan(priorities(replay, config(), [0, 0], [0, 1])).tolist() == [True, False]


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_it_weighs_the_largest_error_against_the_mean(eta: float) -> None:
    replay, batch = memory(), thoughtful(World(SLOTS, ends=0.0), [1])
    batch.params[:] = 0.0
    batch.reward[:, 0] = [0.0, 3.0, 0.0, 0.0, 0.0]
    add(replay, batch)
    largest = float(squash(torch.tensor(3.0)))
    expected = largest if eta else largest / LENGTH
    found = priorities(replay, config(eta=eta, n_step=1, gamma=0.0), [1], [0])
    assert found == pytest.approx([expected])


def test_an_episode_that_was_torn_is_not_led_on() -> None:
    world, replay = World(SLOTS, ends=0.0), memory()
    world.first[0] = False
    add(replay, thoughtful(world, [0]))
    thoughtful(world, [0])  # which gets lost
    add(replay, thoughtful(world, [0]))
    # Step 4 led to what nobody told of; what was thought of step 5 has nothing to do with it.
    assert np.isnan(priorities(replay, config(n_step=1), [0, 0], [4, 5])).tolist() == [True, False]


def test_what_nobody_told_has_no_priority() -> None:
    world, replay = World(SLOTS, ends=0.0), memory()
    replay.add(thoughtful(world, [0]))
    assert np.isnan(priorities(replay, config(), [0], [0])).all()
    # Of the next fragment it is known, also of the sequences that began before it.
    add(replay, thoughtful(world, [0]))
    assert np.isnan(priorities(replay, config(), [0, 0, 0], [0, 4, 5])).tolist() == [True, False, False]


def test_a_memory_that_was_loaded_knows_it_too(tmp_path: pathlib.Path) -> None:
    world, replay, other = World(SLOTS, ends=0.1), memory(), memory()
    for _ in range(3):
        ids = add(replay, thoughtful(world, [0, 1, 2]))
    replay.save(tmp_path)
    other.load(tmp_path)
    for one, two in zip(replay.acted(ids), other.acted(ids), strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_memory_that_draws_all_alike_keeps_no_values() -> None:
    replay = SequenceReplay(SPACE, ACTION, slots=SLOTS, capacity=3000, length=LENGTH)
    with pytest.raises(ConfigError, match="prioritized=True"):
        replay.acted(np.array([0]))
