"""First priorities: the same as a slow twin makes of everything that was ever played."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterenv.learners.common.rescaling import squash, unsquash
from clusterenv.learners.r2d2.acted import Acted
from clusterenv.learners.r2d2.config import R2D2Config
from clusterenv.learners.replay.sequences import SequenceReplay
from tests.learners.replay.kit import ACTION, SPACE, SlowLanes, World

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


def memory() -> SequenceReplay:
    return SequenceReplay(
        SPACE, ACTION, slots=SLOTS, capacity=3000, length=LENGTH, burn_in=2, overlap=OVERLAP, prioritized=True
    )


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
    ends=st.sampled_from([0.05, 0.3, 0.7]),
    plan=st.lists(
        st.tuples(st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=4), st.booleans(), st.integers(0, 4)),
        min_size=1,
        max_size=8,
    ),
)
def test_agrees_with_a_slow_twin(seed: int, ends: float, plan: list[tuple[list[int], bool, int]]) -> None:
    told, world = config(stream_buffers=4), World(SLOTS, seed, ends=ends)
    acted, slow, replay = Acted(told), SlowLanes(SLOTS), memory()
    for slot, breaks, told_of in plan:
        batch = thoughtful(world, slot, [breaks, *([False] * (len(slot) - 1))])
        if not told_of:  # sometimes nobody gets to know what was played
            continue
        acted.add(batch)
        slow.add(batch, np.take_along_axis(batch.params, batch.action[..., None], -1)[..., 0], batch.params.max(-1))
        start, lane = np.divmod(replay.add(batch), SLOTS)
        expected = [by_hand(told, slow.lanes[n], k) for n, k in zip(lane.tolist(), start.tolist(), strict=True)]
        found = acted.priorities(lane, start)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_of_what_is_too_old_nothing_is_known() -> None:
    acted, world = Acted(config(stream_buffers=1)), World(SLOTS, ends=0.0)
    for _ in range(4):
        acted.add(thoughtful(world, [0]))
    found = acted.priorities(np.array([0, 0, 0]), np.array([0, 5, 6]))
    assert np.isnan(found).tolist() == [True, True, False]


def test_a_single_step_that_was_truncated_has_no_priority_yet() -> None:
    acted, world = Acted(config()), World(SLOTS, ends=0.0)
    batch = thoughtful(world, [0])
    batch.truncated[0, 0] = batch.first[1, 0] = True
    acted.add(batch)
    assert np.isnan(acted.priorities(np.array([0, 0]), np.array([0, 1]))).tolist() == [True, False]


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_it_weighs_the_largest_error_against_the_mean(eta: float) -> None:
    told = config(eta=eta, n_step=1, gamma=0.0)
    acted, world = Acted(told), World(SLOTS, ends=0.0)
    batch = thoughtful(world, [1])
    batch.params[:] = 0.0
    batch.reward[:, 0] = [0.0, 3.0, 0.0, 0.0, 0.0]
    acted.add(batch)
    largest = float(squash(torch.tensor(3.0)))
    expected = largest if eta else largest / LENGTH
    assert acted.priorities(np.array([1]), np.array([0])).tolist() == pytest.approx([expected])


def test_an_episode_that_was_torn_is_not_led_on() -> None:
    told, world = config(gamma=0.9, n_step=1), World(SLOTS, ends=0.0)
    acted = Acted(told)
    world.first[0] = False
    acted.add(thoughtful(world, [0]))
    thoughtful(world, [0])  # which gets lost
    acted.add(thoughtful(world, [0]))
    # Step 4 led to what nobody told of; what was thought of step 5 has nothing to do with it.
    assert np.isnan(acted.priorities(np.array([0, 0]), np.array([4, 5]))).tolist() == [True, False]


def test_an_observation_of_parts_goes_on_if_all_of_them_do() -> None:
    world = World(SLOTS, ends=0.0)
    batches = [thoughtful(world, [0]) for _ in range(2)]
    for batch in batches:
        batch.obs, batch.first[:] = {"a": batch.obs, "b": (np.zeros_like(batch.obs),)}, False
    for changed, known in ((0.0, True), (1.0, False)):
        acted = Acted(config(n_step=1))
        acted.add(batches[0])
        batches[1].obs["b"][0][0, 0] = changed
        acted.add(batches[1])
        assert np.isfinite(acted.priorities(np.array([0]), np.array([4]))).tolist() == [known]
