"""What a gradient step looks at in a batch, and what a network says about it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from clusterenv.learners.common import trees, unrolls
from clusterenv.learners.common.networks import make_network
from clusterenv.policy.distributions import Categorical
from tests.learners.batches import N, T, made_up

LSTM = 4


def played(*ends: tuple[int, int], lstm: bool = False) -> Any:
    """A batch with truncated episodes at these places."""
    source = np.random.default_rng(len(ends))
    truncated = np.zeros((T, N), bool)
    times, slots = (np.array([end[axis] for end in ends], np.int64) for axis in (0, 1))
    truncated[times, slots] = True
    first = np.zeros((T + 1, N), bool)
    first[times + 1, slots] = True
    state = tuple(source.normal(size=(N, LSTM)).astype(np.float32) for _ in range(2)) if lstm else ()
    return made_up(
        truncated=truncated,
        first=first,
        final_obs=source.normal(size=(len(ends), 3)).astype(np.float32),
        final_at=(times, slots),
        state=state,
    )


ENDS = [(0, 1), (1, 0), (1, 1), (2, 0), (3, 1), (3, 0)]


@pytest.mark.parametrize("lstm", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 6])
def test_filling_up_changes_nothing_that_a_network_says(count: int, lstm: bool) -> None:
    batch = played(*ENDS[:count], lstm=lstm)
    network = make_network(spaces.Box(-1, 1, (3,)), spaces.Discrete(2), body="mlp", lstm=LSTM if lstm else 0)
    plain, filled = (
        unrolls.read(network, unrolls.material(batch, few_shapes=few_shapes)) for few_shapes in (False, True)
    )
    assert isinstance(network.distribution, Categorical)
    for expected, found in zip(plain, filled, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert (plain.next_value != 0).all()  # truncated episodes count on their last observation


def test_there_are_few_shapes() -> None:
    def shapes(count: int, *, few_shapes: bool) -> tuple[torch.Size, ...]:
        material = unrolls.material(played(*ENDS[:count]), few_shapes=few_shapes)
        return tuple(tensor.shape for tensor in trees.leaves(material))

    assert len({shapes(count, few_shapes=False) for count in range(7)}) == 7
    found = [shapes(count, few_shapes=True) for count in range(7)]
    assert len(set(found)) == 3  # with room for 2, 4 and 8
    assert found[0] == found[2]
    assert found[3] == found[4]


def test_what_is_filled_up_leaves_the_batch_alone() -> None:
    batch = played((0, 1))
    unrolls.material(batch, few_shapes=True)
    assert len(batch.final_obs) == len(batch.final_at[0]) == 1


def test_observations_of_several_parts_are_filled_up_too() -> None:
    parts = {"seen": np.zeros((1, 3), np.float32), "image": np.ones((1, 2, 2), np.uint8)}
    batch = made_up(final_obs=parts, final_at=(np.array([1]), np.array([0])))
    found = unrolls.material(batch, few_shapes=True).final_obs
    assert found["seen"].shape == (N, 3)
    assert found["image"].shape == (N, 2, 2)
    assert found["image"].dtype == torch.uint8
    assert found["image"][0].all()
    assert not found["image"][1].any()
