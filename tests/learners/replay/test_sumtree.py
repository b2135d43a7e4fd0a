"""The sum tree beside a running sum over a list."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.learners.replay.sumtree import SumTree
from tests.learners.kit import vectors

VECTORS = vectors("prioritized_replay")["sum_tree"]
NUMBERS = st.one_of(st.just(0.0), st.integers(1, 50).map(float))
UPDATES = st.lists(st.tuples(st.integers(0, 10**6), NUMBERS), min_size=1, max_size=40)


def test_finds_what_was_worked_out_beforehand() -> None:
    tree = SumTree(len(VECTORS["leaf_priorities"]))
    tree.set(np.arange(8), np.array(VECTORS["leaf_priorities"]))
    assert tree.total == VECTORS["total"]
    assert tree.find(np.array(VECTORS["queries"])).tolist() == VECTORS["expected_index"]


@given(st.integers(1, 700), UPDATES, st.lists(st.floats(0, 1, exclude_max=True), min_size=1))
def test_finds_what_a_running_sum_finds(leaves: int, updates: list[tuple[int, float]], shares: list[float]) -> None:
    tree, numbers = SumTree(leaves), np.zeros(leaves)
    for at, number in updates:
        numbers[at % leaves] = number
    tree.set(np.array([at % leaves for at, _ in updates]), np.array([number for _, number in updates]))
    assert tree.total == numbers.sum()
    assert np.array_equal(tree[np.arange(leaves)], numbers)
    if tree.total:
        points = np.floor(np.array(shares) * tree.total)  # whole numbers, so that both sums are exact
        sums = numbers.cumsum()
        assert tree.find(points).tolist() == [int((sums > point).argmax()) for point in points]


@given(st.integers(1, 700), st.integers(0, 2**31))
def test_what_is_empty_is_never_found(leaves: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    numbers = random.random(leaves) ** 30 * (random.random(leaves) < 0.1)  # over many orders of magnitude
    numbers[random.integers(leaves)] = 1e-9
    tree = SumTree(leaves)
    tree.set(np.arange(leaves), numbers)
    points = np.append(random.random(200), [1.0, np.nextafter(1.0, 2.0), 0.0]) * tree.total
    assert (numbers[tree.find(points)] > 0).all()


def test_rounding_does_not_add_up() -> None:
    tree = SumTree(1000)
    random = np.random.default_rng(0)
    for _ in range(2000):
        tree.set(random.integers(1000, size=50), random.random(50) * 1e6)
    tree.set(np.arange(1000), 0.0)
    assert tree.total == 0.0
    tree.set(np.array([3]), 1e-6)
    assert tree.total == 1e-6


@pytest.mark.parametrize("leaves", [1, 2, 3, 1000, 1024, 1025])
def test_its_memory_is_at_most_four_numbers_a_leaf(leaves: int) -> None:
    assert 16 * leaves <= SumTree(leaves).nbytes < 32 * leaves
