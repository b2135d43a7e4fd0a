"""Spaces in flat arrays: what goes in row by row comes out as Gymnasium would batch it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.spaces import Leaf, array_spaces, assemble, fitted, leaves_of, row_writer, take_apart

SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)
FLOATS = st.sampled_from([np.float16, np.float32, np.float64])
INTEGERS = st.sampled_from([np.uint8, np.int16, np.int64])

FLAT: st.SearchStrategy[Space[Any]] = st.one_of(
    st.builds(lambda shape, dtype: spaces.Box(-1.0, 1.0, shape, dtype), SHAPES, FLOATS),
    st.builds(lambda shape, dtype: spaces.Box(0, 100, shape, dtype), SHAPES, INTEGERS),
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-3, 3)),
    st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 5), min_size=1, max_size=4)),
    st.builds(spaces.MultiBinary, st.integers(1, 5)),
    st.builds(spaces.MultiBinary, st.lists(st.integers(1, 3), min_size=1, max_size=2)),
)
TREES: st.SearchStrategy[Space[Any]] = st.recursive(
    FLAT,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
        st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3).map(spaces.Dict),
    ),
    max_leaves=5,
)


def arrays_for(space: Space[Any], rows: int) -> list[Any]:
    leaves = leaves_of(space)
    assert leaves is not None
    return [np.zeros((rows, *leaf.shape), leaf.dtype) for leaf in leaves]


@given(space=TREES, rows=st.integers(1, 4), seed=st.integers(0, 2**31))
def test_rows_come_out_as_gymnasium_batches_them(space: Space[Any], rows: int, seed: int) -> None:
    space.seed(seed)
    values = [space.sample() for _ in range(rows)]
    arrays = arrays_for(space, rows)
    write = row_writer(space, arrays)
    for row, value in enumerate(values):
        write(row, value)
    empty: Any = create_empty_array(space, rows)
    expected = concatenate(space, values, empty)
    assert data_equivalence(assemble(space, arrays), expected, exact=True)
    assert assemble(space, arrays) in batch_space(space, rows)


@given(space=TREES, rows=st.integers(1, 4), seed=st.integers(0, 2**31))
def test_a_batch_taken_apart_is_its_leaves_in_order(space: Space[Any], rows: int, seed: int) -> None:
    batched = batch_space(space, rows)
    batched.seed(seed)
    batch = batched.sample()
    parts = take_apart(space, batch)
    leaves = leaves_of(space)
    assert leaves is not None
    assert [(part.shape, part.dtype) for part in parts] == [((rows, *leaf.shape), leaf.dtype) for leaf in leaves]
    assert data_equivalence(assemble(space, parts), batch, exact=True)


@given(space=TREES)
def test_every_leaf_has_its_space(space: Space[Any]) -> None:
    leaves = leaves_of(space)
    assert leaves is not None
    assert [Leaf(tuple(leaf.shape or ()), np.dtype(leaf.dtype)) for leaf in array_spaces(space)] == leaves


def test_assembling_does_not_copy() -> None:
    space = spaces.Dict(a=spaces.Discrete(3), b=spaces.Tuple([spaces.Box(0, 1, (2,))]))
    arrays = arrays_for(space, 2)
    batch = assemble(space, arrays)
    assert batch["a"] is arrays[0]
    assert batch["b"][0] is arrays[1]


def test_the_order_of_leaves_is_that_of_the_space() -> None:
    space = spaces.Tuple([spaces.Dict(z=spaces.Discrete(2), a=spaces.MultiBinary(2)), spaces.Box(0, 1, (3, 1))])
    assert [leaf.shape for leaf in leaves_of(space) or []] == [(), (2,), (3, 1)]


class Odd(spaces.Box):
    """A subclass may mean something that its array does not hold."""


NOT_ARRAYS = {
    "text": spaces.Text(5),
    "sequence": spaces.Sequence(spaces.Discrete(3)),
    "graph": spaces.Graph(spaces.Box(0, 1, (2,)), None),
    "one of": spaces.OneOf([spaces.Discrete(2), spaces.Box(0, 1, (1,))]),
    "a subclass": Odd(0, 1, (2,)),
    "in a tuple": spaces.Tuple([spaces.Discrete(2), spaces.Text(3)]),
    "in a dict": spaces.Dict(a=spaces.Sequence(spaces.Discrete(2)), b=spaces.Discrete(2)),
}


@pytest.mark.parametrize("space", NOT_ARRAYS.values(), ids=NOT_ARRAYS.keys())
def test_spaces_without_a_fixed_size_have_no_leaves(space: Space[Any]) -> None:
    assert leaves_of(space) is None


def test_a_box_of_objects_has_no_leaves() -> None:
    space: Any = spaces.Box(0, 1, (2,))
    space.dtype = np.dtype(object)
    assert leaves_of(space) is None


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3)])
def test_an_empty_box_is_a_leaf_without_elements(shape: tuple[int, ...]) -> None:
    space = spaces.Box(0, 1, shape)
    arrays = arrays_for(space, 3)
    row_writer(space, arrays)(1, np.zeros(shape, np.float32))
    assert assemble(space, arrays).shape == (3, *shape)


@pytest.mark.parametrize(
    "value",
    [np.zeros(3, np.float32), np.zeros((2, 1), np.float32), np.float32(1.0), [[1.0], [2.0]], None],
    ids=["longer", "another rank", "a scalar", "nested", "None"],
)
def test_a_value_of_another_shape_is_refused(value: Any) -> None:
    arrays = arrays_for(spaces.Box(0, 1, (2,)), 2)
    write = row_writer(spaces.Box(0, 1, (2,)), arrays)
    with pytest.raises(ValueError, match=r"shape .* but its space says \(2,\)"):
        write(0, value)
    assert not arrays[0].any(), "a refused value must not be written"


@pytest.mark.parametrize("bad", [{"a": 1}, {"a": 1, "b": (1, np.ones(3))}, {"a": 1, "b": (1,)}])
def test_a_nested_value_of_which_one_part_is_refused_leaves_nothing_behind(bad: Any) -> None:
    space = spaces.Dict(a=spaces.Discrete(3), b=spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (2,))]))
    arrays = arrays_for(space, 2)
    with pytest.raises((ValueError, LookupError)):
        row_writer(space, arrays)(0, bad)
    assert not any(array.any() for array in arrays)


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Box(0, 255, (2,), np.uint8), np.zeros(2, np.float32)),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([1.0, 2.0])),
        (spaces.Box(0, 1, (2,)), np.zeros(2, np.complex128)),
        (spaces.Box(0, 1, (2,)), np.array(["a", "b"])),
        (spaces.Discrete(3), 1.5),
        (spaces.Discrete(3), np.float64(1.0)),
        (spaces.MultiBinary(2), np.zeros(2)),
    ],
    ids=["float for uint8", "float64 for uint8", "complex", "text", "float for Discrete", "np.float64", "MultiBinary"],
)
def test_a_value_of_another_kind_is_refused(space: Space[Any], value: Any) -> None:
    arrays = arrays_for(space, 2)
    with pytest.raises(TypeError, match=r"dtype .* does not fit the"):
        row_writer(space, arrays)(1, value)
    assert not arrays[0].any()


@pytest.mark.parametrize(
    ("space", "value", "stored"),
    [
        (spaces.Box(0, 1, (2,)), np.array([0.5, 1.0]), [0.5, 1.0]),
        (spaces.Box(0, 1, (2,)), [0, 1], [0.0, 1.0]),
        (spaces.Box(0, 1, ()), 0.25, 0.25),
        (spaces.Discrete(3), 2, 2),
        (spaces.Discrete(3), np.int32(2), 2),
        (spaces.Discrete(3), np.array(2), 2),
        (spaces.MultiBinary(2), [True, False], [1, 0]),
    ],
    ids=["float64 for float32", "a list", "a Python float", "an int", "int32", "a 0-d array", "bools"],
)
def test_a_value_that_fits_without_changing_kind_is_taken(space: Space[Any], value: Any, stored: Any) -> None:
    arrays = arrays_for(space, 2)
    row_writer(space, arrays)(1, value)
    assert arrays[0][1].tolist() == stored


def test_fitted_checks_a_whole_batch() -> None:
    assert fitted([1, 2], (2,), np.dtype(np.int64)).tolist() == [1, 2]
    with pytest.raises(ValueError, match=r"\(3,\).*\(2,\)"):
        fitted([1, 2, 3], (2,), np.dtype(np.int64))


def test_taking_apart_needs_every_part() -> None:
    with pytest.raises(ValueError, match="got 1 parts for a Tuple space of 2"):
        take_apart(spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)]), ([0],))
    with pytest.raises(ValueError, match="the key 'b' of the Dict space is missing"):
        take_apart(spaces.Dict(a=spaces.Discrete(2), b=spaces.Discrete(2)), {"a": [0]})


def test_a_row_is_a_copy_of_the_value() -> None:
    space = spaces.Box(0, 1, (2,))
    arrays = arrays_for(space, 1)
    value = np.array([0.5, 0.5], np.float32)
    row_writer(space, arrays)(0, value)
    value[:] = 0.0
    assert arrays[0].tolist() == [[0.5, 0.5]]
