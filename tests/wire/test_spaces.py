"""Spaces on the wire: all of Gymnasium's come back equal, others are refused, and bad data makes none."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings

from clusterenv.errors import ProtocolError, ResultError
from clusterenv.wire.plain import Codec
from clusterenv.wire.spaces import space_from_data, space_to_data

if TYPE_CHECKING:
    import random

CODEC = Codec()

SPACES: list[spaces.Space[Any]] = [
    spaces.Box(-1, 1, (2, 3)),
    spaces.Box(-np.inf, np.inf, (2,), np.float64),
    spaces.Box(np.array([-np.inf, 0], "f4"), np.array([1, np.inf], "f4"), dtype=np.float32),
    spaces.Box(0, 255, (4, 4, 3), np.uint8),
    spaces.Box(-np.inf, np.inf, (2,), np.int32),
    spaces.Box(np.array([-np.inf, 3]), np.array([5, 9]), dtype=np.int64),
    spaces.Box(0, 1, (), np.float16),
    spaces.Box(0, 1, (0, 3)),
    spaces.Box(0, 1, (2,), np.bool_),
    spaces.Discrete(3),
    spaces.Discrete(5, start=-2, dtype=np.int32),
    spaces.Discrete(200, dtype=np.uint8),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), dtype=np.int8, start=np.array([[1, -1], [0, 2]])),
    spaces.MultiBinary(4),
    spaces.MultiBinary([2, 3]),
    spaces.Text(9, min_length=2, charset="zäb"),
    spaces.Text(3),
    spaces.Tuple([]),
    spaces.Tuple([spaces.Discrete(2), spaces.Tuple([spaces.MultiBinary(1)])]),
    spaces.Dict(),
    spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Box(0, 1, (1,))}, sort_keys=False),
    spaces.Dict([("z", spaces.Discrete(2)), ("a", spaces.Dict(k=spaces.Discrete(3)))]),
    spaces.Sequence(spaces.Box(0, 1, (2,))),
    spaces.Sequence(spaces.Dict(a=spaces.MultiBinary(3)), stack=True),
    spaces.Graph(spaces.Box(-1, 1, (3,)), spaces.Discrete(4)),
    spaces.Graph(spaces.Discrete(4), None),
    spaces.OneOf([spaces.Discrete(2), spaces.Text(3)]),
]


def facts(space: Any) -> Any:
    """What a space is, exactly: Gymnasium's own comparison lets some of it pass."""
    inner: list[Any] = []
    if isinstance(space, spaces.Dict):
        inner = [(key, facts(part)) for key, part in space.spaces.items()]
    elif isinstance(space, (spaces.Tuple, spaces.OneOf)):
        inner = [facts(part) for part in space.spaces]
    elif isinstance(space, spaces.Sequence):
        inner = [facts(space.feature_space), space.stack]
    elif isinstance(space, spaces.Graph):
        inner = [facts(space.node_space), space.edge_space and facts(space.edge_space)]
    elif isinstance(space, spaces.Box):
        bounds = (space.low, space.high, space.bounded_below, space.bounded_above)
        inner = [(bound.dtype, bound.shape, bound.tobytes()) for bound in bounds]
    elif isinstance(space, spaces.Text):
        inner = [space.character_list]
    return type(space), space.dtype, space.shape, repr(space), inner


def again(space: spaces.Space[Any]) -> spaces.Space[Any]:
    back: spaces.Space[Any] = CODEC.unpack(CODEC.pack(space))
    return back


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_comes_back(space: spaces.Space[Any]) -> None:
    back = again(space)
    assert back == space
    assert facts(back) == facts(space)
    back.seed(3)
    space.seed(3)
    assert str(back.sample()) == str(space.sample())


def test_the_facts_differ_for_different_spaces() -> None:
    assert len({repr(facts(space)) for space in SPACES}) == len(SPACES)


NUMBERS = st.sampled_from(["i1", "u1", "i4", "i8", "f2", "f4", "f8"])
SHAPES = st.lists(st.integers(0, 3), max_size=3)


@st.composite
def boxes(draw: st.DrawFn) -> spaces.Box[Any]:
    dtype, shape = np.dtype(draw(NUMBERS)), tuple(draw(SHAPES))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    low = rng.integers(0, 50, shape).astype(dtype)
    high = rng.integers(50, 100, shape).astype(dtype)
    if dtype.kind == "f" and draw(st.booleans()):
        high = np.full(shape, np.inf, dtype)
    return spaces.Box(low, high, dtype=dtype)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=3).map(spaces.Tuple),
        st.lists(inner, min_size=1, max_size=3).map(spaces.OneOf),
        st.dictionaries(st.text(max_size=3), inner, max_size=3).map(lambda parts: spaces.Dict([*parts.items()])),
        inner.map(spaces.Sequence),
    )


@given(st.recursive(st.one_of(boxes(), st.sampled_from(SPACES)), nested, max_leaves=6))
@settings(max_examples=150)
def test_any_space_comes_back(space: spaces.Space[Any]) -> None:
    assert facts(again(space)) == facts(space)


class FancyBox(spaces.Box[Any]):
    pass


@pytest.mark.parametrize(
    "space",
    [FancyBox(0, 1), spaces.Tuple([FancyBox(0, 1)]), spaces.Dict(a=spaces.Sequence(FancyBox(0, 1)))],
    ids=["alone", "in a tuple", "deeper"],
)
def test_a_space_of_the_users_own_is_named(space: spaces.Space[Any]) -> None:
    with pytest.raises(ResultError, match=r"the space .*test_spaces.FancyBox is not one of Gymnasium's own"):
        space_to_data(space)
    with pytest.raises(ResultError, match=r"cannot travel to another host: the space .*FancyBox.* at \['space'\];"):
        CODEC.pack({"space": space})


def box(**changes: Any) -> list[Any]:
    ones, flags = np.ones(2, np.float32), np.ones(2, bool)
    parts = {"dtype": "<f4", "low": -ones, "high": ones, "below": flags, "above": flags, **changes}
    return ["Box", *parts.values()]


def test_the_box_that_the_next_test_damages_is_sound() -> None:
    assert space_from_data(box()) == spaces.Box(-1, 1, (2,))


def deep(levels: int) -> Any:
    data: Any = ["Discrete", 2, 0, "<i8"]
    for _ in range(levels):
        data = ["Tuple", [data]]
    return data


def copies(levels: int, inner: Any) -> Any:
    for _ in range(levels):
        inner = ["Sequence", inner, True]
    return inner


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "Box",
        ["Boxes"],
        [["Box"]],
        ["Box"],
        ["Space", None, None],
        box(dtype="|O"),
        box(dtype="<f8"),
        box(dtype="<c8", low=np.ones(2, "c8"), high=np.ones(2, "c8")),
        box(low=np.ones(3, np.float32)),
        box(low=-1.0),
        box(low=[-1.0, -1.0]),
        box(low=np.array([np.nan, 0], np.float32)),
        box(below=np.ones(2)),
        box(above=np.ones(3, bool)),
        ["Discrete", 0, 0, "<i8"],
        ["Discrete", 3, 0, "<f4"],
        ["Discrete", 300, 0, "|i1"],
        ["Discrete", 3.0, 0, "<i8"],
        ["Discrete", True, 0, "<i8"],
        ["Discrete", 3, "0", "<i8"],
        ["Discrete", 2**70, 0, "<i8"],
        ["MultiDiscrete", [2, 3], [0, 0]],
        ["MultiDiscrete", np.array([2, 3]), np.array([0])],
        ["MultiDiscrete", np.array([2, 3]), np.array([0, 0], "i4")],
        ["MultiDiscrete", np.array([2.0]), np.array([0.0])],
        ["MultiBinary", 0],
        ["MultiBinary", -1],
        ["MultiBinary", [2**70]],
        ["MultiBinary", "3"],
        ["Text", 3, 4, "ab"],
        ["Text", 3, 1, ["ab"]],
        ["Text", "3", 1, "ab"],
        ["Tuple", None],
        ["Tuple", [None]],
        ["OneOf", []],
        ["Dict", [["a", ["Discrete", 2, 0, "<i8"]]] * 2, True],
        ["Dict", [["a"]], True],
        ["Dict", [[[], ["Discrete", 2, 0, "<i8"]]], True],
        ["Dict", [], 1],
        ["Sequence", ["Discrete", 2, 0, "<i8"], 1],
        ["Graph", None, None],
        deep(40),
        copies(5, ["Discrete", 2, 0, "<i8"]),
        copies(1, ["MultiBinary", 2**40]),
        ["Graph", ["MultiBinary", [2**20, 2**20]], None],
    ],
    ids=lambda data: str(data)[:40],
)
def test_bad_data_makes_no_space(data: Any) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            space_from_data(data)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_nesting_that_is_allowed() -> None:
    assert isinstance(space_from_data(deep(25)), spaces.Tuple)
    assert isinstance(space_from_data(copies(3, ["MultiBinary", 4096])), spaces.Sequence)


def test_what_the_other_side_would_refuse_is_not_sent() -> None:
    with pytest.raises(ResultError, match=r"another host would not take: .* 5000 switches"):
        space_to_data(spaces.Sequence(spaces.MultiBinary(5000), stack=True))


@given(st.sampled_from(SPACES), st.randoms(use_true_random=False))
@settings(max_examples=300)
def test_damaged_spaces(space: spaces.Space[Any], rng: random.Random) -> None:
    data = space_to_data(space)
    holders = [data]
    while rng.random() < 0.7 and (inner := [part for part in holders[-1] if isinstance(part, list) and part]):
        holders.append(rng.choice(inner))
    holder = holders[-1]
    junk: list[Any] = [None, -1, 2**63, "x", b"", [], {}, 0.5, True, np.zeros(3), ["Discrete", 2, 0, "<i8"], "<f4"]
    holder[rng.randrange(len(holder))] = rng.choice(junk)
    try:
        made = space_from_data(data)
    except ProtocolError:
        return
    assert isinstance(made, spaces.Space)
