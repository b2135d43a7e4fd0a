"""Memory for fragments: both sides find the same columns, and those of different slots and buffers do not meet."""

from __future__ import annotations

import dataclasses
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.spaces import Leaf
from clusterenv.transport.fragments import Columns, Fragments, FragmentSpec
from clusterenv.transport.shared import SharedArrays

if TYPE_CHECKING:
    from collections.abc import Iterator

T, N, P = 5, 4, 3
SPEC = FragmentSpec(
    buffers=2,
    steps=T,
    num_envs=N,
    num_workers=2,
    observation=(Leaf((2,), np.dtype(np.float32)), Leaf((), np.dtype(np.int64))),
    state=(Leaf((6,), np.dtype(np.float32)),),
    action=Leaf((2, 2), np.dtype(np.float32)),
    params=P,
    has_value=True,
)


@contextmanager
def created(spec: FragmentSpec = SPEC) -> Iterator[Fragments]:
    made = Fragments.create(spec)
    yield made
    made.close()


def arrays(columns: Columns) -> list[Any]:
    parts = [part for part in columns if part is not None]
    return [array for part in parts for array in (part if isinstance(part, list) else [part])]


def test_shapes_and_dtypes() -> None:
    with created() as fragments:
        columns = fragments.columns(1, range(1, 3))
        assert [array.shape for array in columns.obs] == [(T + 1, 2, 2), (T + 1, 2)]
        assert [array.shape for array in columns.final] == [(T, 2, 2), (T, 2)]
        assert [array.dtype for array in columns.obs] == [np.float32, np.int64]
        assert [array.shape for array in columns.state] == [(2, 6)]
        assert columns.action.shape == (T, 2, 2, 2)
        assert columns.params.shape == (T, 2, P)
        assert columns.first.shape == (T + 1, 2)
        for name in (
            "reward",
            "terminated",
            "truncated",
            "logp",
            "version",
            "value",
            "episode_return",
            "episode_length",
        ):
            assert getattr(columns, name).shape == (T, 2)
        kinds = {name: getattr(columns, name).dtype.str for name in ("reward", "logp", "params", "value", "version")}
        assert kinds == {"reward": "<f8", "logp": "<f4", "params": "<f4", "value": "<f4", "version": "<i8"}


def test_columns_are_views_of_one_memory() -> None:
    with created() as fragments:
        for number, array in enumerate(arrays(fragments.columns(1, range(1, 3)))):
            array[...] = number + 1
        for number, array in enumerate(arrays(fragments.columns(1, range(N)))):
            mine = array[1:3] if array.ndim == 2 and array.shape == (N, 6) else array[:, 1:3]
            assert (mine == np.array(number + 1).astype(array.dtype)).all()
            assert np.count_nonzero(array) == np.count_nonzero(mine), "the neighbours' columns are untouched"
        assert not any(array.any() for array in arrays(fragments.columns(0, range(N)))), "and so is the other buffer"


def test_the_whole_buffer_is_the_columns_side_by_side() -> None:
    with created() as fragments:
        fragments.columns(0, range(2)).reward[:] = 1.0
        fragments.columns(0, range(2, 4)).reward[:] = 2.0
        assert fragments.columns(0, range(N)).reward.tolist() == [[1.0, 1.0, 2.0, 2.0]] * T


def test_both_sides_see_progress_and_stop() -> None:
    with created() as fragments:
        other = Fragments(SPEC, SharedArrays.attach(SPEC.layout(), os.dup(fragments.memory.fd)))
        other.progress[1] += 7
        fragments.stop[0] = 1
        assert fragments.progress.tolist() == [0, 7]
        assert other.stop.tolist() == [1, 0]
        assert abs(other.progress.ctypes.data - other.stop.ctypes.data) >= 64, "they do not share a cache line"
        other.close()


def test_a_policy_without_value_or_state_takes_no_memory_for_them() -> None:
    spec = dataclasses.replace(SPEC, has_value=False, state=())
    assert {field.name for field in SPEC.layout()} - {field.name for field in spec.layout()} == {"value", "state0"}
    with created(spec) as made:
        columns = made.columns(0, range(N))
        assert columns.value is None
        assert columns.state == []


def test_the_state_before_every_step_takes_memory_only_if_it_is_kept() -> None:
    spec = dataclasses.replace(SPEC, every_state=True)
    assert {field.name for field in spec.layout()} - {field.name for field in SPEC.layout()} == {"states0"}
    with created(spec) as kept, created() as not_kept:
        columns = kept.columns(1, range(1, 3))
        assert columns.states is not None
        assert [array.shape for array in columns.states] == [(T, 2, 6)]
        assert [array.dtype for array in columns.states] == [np.float32]
        columns.states[0][...] = 1.0
        everything = kept.columns(1, range(N)).states
        assert everything is not None
        assert everything[0].any(axis=(0, 2)).tolist() == [False, True, True, False]
        assert not_kept.columns(1, range(1, 3)).states is None


def test_equal_specs_are_equal() -> None:
    assert dataclasses.replace(SPEC) == SPEC
    assert dataclasses.replace(SPEC, steps=T + 1) != SPEC
