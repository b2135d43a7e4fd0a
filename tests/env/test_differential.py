"""ClusterEnv against SyncVectorEnv, value for value: spaces, seeds, modes, actions and infos drawn by Hypothesis.

The environments follow a script that comes with the options of a reset (`kit.SpaceEnv`), so that one batch on workers
serves many examples.
"""

from __future__ import annotations

import copy
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import Phase, given, settings

from clusterenv import ClusterEnv
from tests.env.kit import SpaceEnv, assert_same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Spaces.


def boxes() -> st.SearchStrategy[Any]:
    shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
    floats = st.builds(
        lambda shape, dtype, low: spaces.Box(low, 3, shape, dtype),
        shapes,
        st.sampled_from([np.float16, np.float32, np.float64]),
        st.sampled_from([-np.inf, -2.0, 0.0]),
    )
    integers = st.builds(
        lambda shape, dtype: spaces.Box(0, 100, shape, dtype),
        shapes,
        st.sampled_from([np.uint8, np.int8, np.int16, np.int32, np.int64, np.uint32]),
    )
    return st.one_of(floats, integers, st.builds(_bits, shapes))


def _bits(shape: tuple[int, ...]) -> Any:
    return spaces.Box(0, 1, shape, np.bool_)


def multidiscrete() -> st.SearchStrategy[Any]:
    def build(ranges: list[tuple[int, int]], dtype: Any) -> Any:
        sizes, starts = zip(*ranges, strict=True)
        return spaces.MultiDiscrete(np.array(sizes), start=np.array(starts), dtype=dtype)

    pairs = st.tuples(st.integers(1, 5), st.integers(-3, 3))
    return st.builds(build, st.lists(pairs, min_size=1, max_size=3), st.sampled_from([np.int64, np.int32]))


def array_spaces() -> st.SearchStrategy[Any]:
    return st.one_of(
        boxes(),
        st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 6), st.integers(-3, 3)),
        multidiscrete(),
        st.builds(spaces.MultiBinary, st.one_of(st.integers(1, 4), st.just((2, 2)))),
    )


def object_spaces() -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(lambda low, more: spaces.Text(low + more, min_length=low), st.integers(0, 3), st.integers(1, 4)),
        st.builds(lambda inner, stack: spaces.Sequence(inner, stack=stack), array_spaces(), st.booleans()),
        st.builds(lambda one, other: spaces.OneOf((one, other)), array_spaces(), array_spaces()),
        st.just(spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3))),
    )


def any_space() -> st.SearchStrategy[Any]:
    names = st.sampled_from(["a", "b", "c", "key with spaces"])
    return st.recursive(
        st.one_of(array_spaces(), array_spaces(), object_spaces()),
        lambda inner: st.one_of(
            st.dictionaries(names, inner, min_size=1, max_size=3).map(spaces.Dict),
            st.lists(inner, min_size=1, max_size=3).map(lambda items: spaces.Tuple(tuple(items))),
        ),
        max_leaves=4,
    )


# Infos. Gymnasium takes the dtype of a key from the first slot that has it, so a key keeps its kind; within one kind
# anything goes.

_KINDS: dict[str, st.SearchStrategy[Any]] = {
    "int": st.one_of(st.integers(-100, 100), st.booleans()),
    "float": st.floats(width=32),
    "number": st.one_of(st.integers(-9, 9), st.floats(-9, 9), st.booleans()),
    "bool": st.booleans(),
    "int8": st.integers(-100, 100).map(np.int8),
    "float32": st.floats(width=32).map(np.float32),
    "numpy_bool": st.booleans().map(np.bool_),
    "vector": st.floats(width=16).map(lambda value: np.array([value, 1.0])),
    "image": st.integers(0, 255).map(lambda value: np.full((2, 1), value, dtype=np.uint8)),
    "scalar": st.integers(0, 9).map(np.array),
    "text": st.one_of(st.text(string.printable, max_size=5), st.none()),
    "object": st.one_of(st.none(), st.just([1, "two"]), st.just(()), st.binary(max_size=3), st.just(1j)),
}


def infos(depth: int = 2) -> st.SearchStrategy[Any]:
    """Up to three keys, which may be nested."""
    kinds = dict(_KINDS) if depth == 0 else {**_KINDS, "nested": infos(depth - 1)}
    # Numbers of mixed types are the interesting ones: whose type does the key take?
    names = [*sorted(kinds), *["number"] * 6]
    pairs = st.sampled_from(names).flatmap(lambda name: st.tuples(st.just(name), kinds[name]))
    return st.lists(pairs, max_size=3).map(dict)


REWARDS = [0, 1.5, -3, True, np.float32(0.1), 1e300, float("nan"), float("-inf"), np.int8(7), np.array(2.5)]
FLAGS = [*[(False, False)] * 3, (True, False), (False, True), (True, True), (np.bool_(True), 0)]


@st.composite
def scripts(draw: st.DrawFn, num_envs: int) -> list[Any]:
    """For each slot: the info of its resets, then what its steps return, over and over."""
    pool = draw(st.lists(infos(), min_size=1, max_size=5))
    some = st.sampled_from(pool)
    steps = st.lists(st.tuples(st.sampled_from(REWARDS), st.sampled_from(FLAGS), some), min_size=1, max_size=5)
    slots = draw(st.lists(st.tuples(some, steps), min_size=num_envs, max_size=num_envs))
    return [[info, *((reward, *flags, told) for reward, flags, told in rest)] for info, rest in slots]


# What the user does.


@dataclass(frozen=True)
class Move:
    """A step, or a reset of some slots."""

    kind: str
    seed: Any = None
    mask: Any = None


def moves(num_envs: int) -> st.SearchStrategy[list[Move]]:
    seeds = st.one_of(
        st.none(),
        st.integers(0, 2**31),
        st.lists(st.one_of(st.none(), st.integers(0, 99)), min_size=num_envs, max_size=num_envs),
    )
    masks = st.lists(st.booleans(), min_size=num_envs, max_size=num_envs).filter(any).map(np.array)
    some = st.one_of(
        st.just(Move("step")),
        st.just(Move("step")),
        st.just(Move("halves")),
        st.just(Move("send")),
        st.builds(Move, st.just("reset"), seeds),
        st.builds(Move, st.just("reset"), seeds, masks),
    )
    return st.lists(some, min_size=1, max_size=10)


def play(ours: ClusterEnv, theirs: SyncVectorEnv[Any, Any], seed: int, script: Any, plan: list[Move]) -> None:
    """Make the same moves in both; every answer must be the same."""
    options = {"script": script}
    assert_same(ours.reset(seed=seed, options=options), theirs.reset(seed=seed, options=copy.deepcopy(options)))
    ours.action_space.seed(seed)
    for number, move in enumerate(plan):
        if move.kind == "reset":
            _reset_both(ours, theirs, move.seed, move.mask)
            continue
        answer = _step_both(ours, theirs, move.kind, f"move {number}, {move.kind}")
        ended = answer[2] | answer[3]
        if ours.autoreset_mode is AutoresetMode.DISABLED and ended.any():
            _reset_both(ours, theirs, None, ended)


def _reset_both(ours: ClusterEnv, theirs: SyncVectorEnv[Any, Any], seed: Any, mask: Any) -> None:
    first, second = ({} if mask is None else {"reset_mask": mask.copy()} for _ in range(2))
    assert_same(ours.reset(seed=seed, options=first), theirs.reset(seed=seed, options=second), "reset")


def _step_both(ours: ClusterEnv, theirs: SyncVectorEnv[Any, Any], kind: str, where: str) -> Any:
    actions = ours.action_space.sample()
    expected = theirs.step(copy.deepcopy(actions))
    if kind == "step":
        answer = ours.step(actions)
    elif kind == "halves":
        ours.step_async(actions)
        answer = ours.step_wait()
    else:
        ours.send(actions)
        answer = ours.recv(min_slots=ours.num_envs)
        np.testing.assert_array_equal(answer[4].pop("env_id"), np.arange(ours.num_envs))
    assert_same(answer, expected, where)
    return answer


def factories(num_envs: int, observation_space: Any, action_space: Any) -> list[Callable[[], SpaceEnv]]:
    def factory(slot: int) -> Callable[[], SpaceEnv]:
        return lambda: SpaceEnv(observation_space, action_space, slot)

    return [factory(slot) for slot in range(num_envs)]


# Shrinking such an example takes minutes; the message of `assert_same` says where the two differ.
PHASES = (Phase.explicit, Phase.generate)

# In this process: a new batch for every example.


@settings(max_examples=100, phases=PHASES)
@given(data=st.data())
def test_any_spaces_in_this_process(data: st.DataObject) -> None:
    num_envs = data.draw(st.integers(1, 4), "num_envs")
    made = factories(num_envs, data.draw(any_space(), "observations"), data.draw(any_space(), "actions"))
    mode = data.draw(st.sampled_from(list(AutoresetMode)), "mode")
    blocks = data.draw(st.integers(1, 3), "blocks")
    with ClusterEnv(made, cluster=f"inproc:{blocks}", autoreset_mode=mode) as ours:
        theirs = SyncVectorEnv(made, autoreset_mode=mode)
        assert ours.observation_space == theirs.observation_space
        assert ours.action_space == theirs.action_space
        seed, script = data.draw(st.integers(0, 2**31), "seed"), data.draw(scripts(num_envs), "script")
        play(ours, theirs, seed, script, data.draw(moves(num_envs), "moves"))


# On workers: a batch for every pair of spaces, kept for all its examples.

SIMPLE = spaces.Box(-1, 1, (3,), np.float32)
NESTED = spaces.Dict(
    a=spaces.Tuple((spaces.Discrete(3, start=-1), spaces.Box(0, 255, (2, 2), np.uint8))),
    b=spaces.Dict(c=spaces.MultiBinary(3), d=spaces.MultiDiscrete([2, 3])),
    e=spaces.Box(-1, 1, (), np.float16),
)
OBJECTS = spaces.Dict(text=spaces.Text(5), many=spaces.Sequence(spaces.Box(0, 1, (2,))), n=spaces.Discrete(4))
ON_WORKERS = {
    "simple-next": (SIMPLE, spaces.Discrete(4), AutoresetMode.NEXT_STEP),
    "nested-same": (NESTED, SIMPLE, AutoresetMode.SAME_STEP),
    "nested-disabled": (NESTED, NESTED, AutoresetMode.DISABLED),
    "objects-next": (OBJECTS, spaces.Text(4), AutoresetMode.NEXT_STEP),
    "objects-same": (spaces.Text(6), OBJECTS, AutoresetMode.SAME_STEP),
}
NUM_ENVS = 3

Pair = tuple[ClusterEnv, "SyncVectorEnv[Any, Any]"]


@pytest.fixture(scope="module", params=ON_WORKERS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A batch on two workers, and the reference."""
    observation_space, action_space, mode = ON_WORKERS[request.param]
    made = factories(NUM_ENVS, observation_space, action_space)
    with ClusterEnv(made, cluster="local:2", autoreset_mode=mode) as ours:
        yield ours, SyncVectorEnv(made, autoreset_mode=mode)


@settings(max_examples=50, phases=PHASES)
@given(seed=st.integers(0, 2**31), script=scripts(NUM_ENVS), plan=moves(NUM_ENVS))
def test_any_script_on_workers(pair: Pair, seed: int, script: Any, plan: list[Move]) -> None:
    play(*pair, seed, script, plan)
