"""Which worker steps which slots: always a partition, whatever the numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.cluster.slots import split


@given(num_envs=st.integers(1, 5000), workers=st.integers(1, 1024))
def test_blocks_are_a_partition_in_order(num_envs: int, workers: int) -> None:
    blocks = split(num_envs, workers)
    assert [slot for block in blocks for slot in block] == list(range(num_envs))


@given(num_envs=st.integers(1, 5000), workers=st.integers(1, 1024))
def test_blocks_are_nearly_equal_and_none_is_empty(num_envs: int, workers: int) -> None:
    sizes = [len(block) for block in split(num_envs, workers)]
    assert len(sizes) == min(num_envs, workers)
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("num_envs", "workers", "sizes"),
    [(1, 1, [1]), (4, 2, [2, 2]), (10, 4, [3, 3, 2, 2]), (3, 8, [1, 1, 1]), (7, 7, [1] * 7)],
)
def test_sizes(num_envs: int, workers: int, sizes: list[int]) -> None:
    assert [len(block) for block in split(num_envs, workers)] == sizes
