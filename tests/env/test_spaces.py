"""Spaces: every kind that Gymnasium knows, custom ones, and the three observation modes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from clusterenv.errors import ConfigError, SpaceMismatch
from tests.env.kit import SpaceEnv, TextSpace, WalkEnv, assert_same, trajectory
from tests.zoo import CountingEnv, counting

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterenv import ClusterEnv

    Make = Callable[..., ClusterEnv]

ARRAYS: dict[str, Any] = {
    "box-float16": spaces.Box(-1, 1, (3,), np.float16),
    "box-float32": spaces.Box(-np.inf, np.inf, (2, 3), np.float32),
    "box-float64": spaces.Box(0, 1, (), np.float64),
    "box-uint8": spaces.Box(0, 255, (4, 5, 3), np.uint8),
    "box-int8": spaces.Box(-128, 127, (1,), np.int8),
    "box-int64": spaces.Box(-(2**40), 2**40, (2,), np.int64),
    "box-bool": spaces.Box(0, 1, (3,), np.bool_),
    "box-empty": spaces.Box(0, 1, (0,), np.float32),
    "box-empty-rows": spaces.Box(0, 1, (2, 0), np.float32),
    "discrete": spaces.Discrete(5),
    "discrete-start": spaces.Discrete(3, start=-7),
    "multidiscrete": spaces.MultiDiscrete([3, 4, 5]),
    "multidiscrete-start": spaces.MultiDiscrete([3, 4], start=[10, -2]),
    "multidiscrete-int32": spaces.MultiDiscrete(np.array([[3, 4], [5, 6]]), dtype=np.int32),
    "multibinary": spaces.MultiBinary(6),
    "multibinary-shape": spaces.MultiBinary((2, 3)),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1, (2,)))),
    "dict": spaces.Dict(b=spaces.Box(0, 1, (2,)), a=spaces.Discrete(3)),
    "nested": spaces.Dict(
        outer=spaces.Tuple((spaces.Dict(inner=spaces.MultiBinary(2)), spaces.Tuple((spaces.Discrete(2),)))),
        image=spaces.Box(0, 255, (2, 2, 1), np.uint8),
    ),
}
OBJECTS: dict[str, Any] = {
    "text": spaces.Text(8),
    "graph": spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(4)),
    "graph-without-edges": spaces.Graph(spaces.Discrete(3), None),
    "sequence": spaces.Sequence(spaces.Box(0, 1, (2,))),
    "sequence-stacked": spaces.Sequence(spaces.Box(0, 1, (2,)), stack=True),
    "oneof": spaces.OneOf((spaces.Discrete(3), spaces.Box(0, 1, (2,)))),
    "custom": TextSpace(),
    "dict-with-text": spaces.Dict(text=spaces.Text(4), box=spaces.Box(0, 1, (2,)), n=spaces.Discrete(3)),
    "tuple-with-sequence": spaces.Tuple((spaces.Sequence(spaces.Discrete(9)), spaces.MultiBinary(2))),
    "dict-with-custom": spaces.Dict(a=TextSpace(), b=spaces.Box(0, 1, (2,), np.float16)),
}
EVERYTHING = {**ARRAYS, **OBJECTS}


def of_space(observation: Any, action: Any = None) -> Callable[[], SpaceEnv]:
    return lambda: SpaceEnv(observation, action)


def run_both(ours: ClusterEnv, factories: list[Any], steps: int = 8, **kwargs: Any) -> None:
    """The same answers as SyncVectorEnv, for a run over several episodes."""
    theirs = SyncVectorEnv(factories, **kwargs)
    assert ours.single_observation_space == theirs.single_observation_space
    assert ours.observation_space == theirs.observation_space
    assert ours.single_action_space == theirs.single_action_space
    assert ours.action_space == theirs.action_space
    answers = trajectory(ours, steps, seed=11)
    assert_same(answers, trajectory(theirs, steps, seed=11))
    for answer in answers:
        assert answer[0] in ours.observation_space


@pytest.mark.parametrize("name", EVERYTHING)
def test_observations_in_one_process(make_here: Make, name: str) -> None:
    factories = [of_space(EVERYTHING[name])] * 3
    run_both(make_here(factories), factories)


@pytest.mark.parametrize("name", ["box-float16", "box-bool", "box-empty", "nested", *OBJECTS])
def test_observations_of_workers(make_local: Make, name: str) -> None:
    factories = [of_space(EVERYTHING[name])] * 3
    run_both(make_local(factories), factories)


def test_all_array_spaces_of_workers_at_once(make_local: Make) -> None:
    factories = [of_space(spaces.Dict(ARRAYS))] * 5
    run_both(make_local(factories), factories)


@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
def test_objects_in_the_other_modes(make_here: Make, name: str, mode: str) -> None:
    factories = [of_space(OBJECTS[name])] * 2
    steps = 2 if mode == "Disabled" else 8
    run_both(make_here(factories, autoreset_mode=mode), factories, steps, autoreset_mode=mode)


@pytest.mark.parametrize("name", EVERYTHING)
def test_actions_in_one_process(make_here: Make, name: str) -> None:
    factories = [of_space(spaces.Discrete(3), EVERYTHING[name])] * 3
    run_both(make_here(factories), factories)


@pytest.mark.parametrize("name", ["box-float16", "multibinary-shape", "nested", *OBJECTS])
def test_actions_of_workers(make_local: Make, name: str) -> None:
    factories = [of_space(spaces.Discrete(3), EVERYTHING[name])] * 3
    run_both(make_local(factories), factories)


def test_objects_on_both_sides(make: Make) -> None:
    factories = [of_space(OBJECTS["dict-with-text"], OBJECTS["graph"])] * 3
    run_both(make(factories), factories)


def test_a_masked_reset_keeps_objects_of_other_slots(make: Make) -> None:
    factories = [of_space(OBJECTS["text"])] * 3
    ours, theirs = make(factories), SyncVectorEnv(factories)
    for envs in (ours, theirs):
        envs.reset(seed=3)
        envs.step(np.zeros(3, dtype=np.int64))
    chosen = np.array([False, True, False])
    assert_same(ours.reset(options={"reset_mask": chosen}), theirs.reset(options={"reset_mask": chosen.copy()}))


def test_the_dtype_of_the_space_wins(make: Make) -> None:
    class Loose(CountingEnv):
        def _observe(self) -> Any:
            return [float(self.slot), self.steps]  # a list, where the space says a float32 array

    factories = [Loose] * 2
    ours, theirs = make(factories), SyncVectorEnv(factories)
    assert_same(trajectory(ours, 4, seed=0), trajectory(theirs, 4, seed=0))


# Observation modes.


def test_same_refuses_different_observation_spaces(make: Make) -> None:
    factories = [lambda: WalkEnv(3), lambda: WalkEnv(3), lambda: WalkEnv(4)]
    with pytest.raises(SpaceMismatch, match=r"slot 2.*slot 0.*observation_mode='different'") as caught:
        make(factories)
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize("space", [spaces.Dict({}), spaces.Tuple(()), spaces.Dict(a=spaces.Tuple(()))])
def test_an_action_space_without_parts_is_refused(make: Make, space: spaces.Space[Any]) -> None:
    with pytest.raises(SpaceMismatch, match=r"the action space .* has no parts"):
        make([of_space(spaces.Box(0, 1, (2,)), space)])


@pytest.mark.parametrize("odd", [1, 3])
def test_action_spaces_must_be_the_same_in_every_mode(make: Make, odd: int) -> None:
    box = spaces.Box(0, 1, (2,))
    factories = [of_space(box, spaces.Discrete(3 if slot == odd else 2)) for slot in range(4)]
    for mode in ("same", "different", (spaces.Box(0, 1, (4, 2)), box)):
        with pytest.raises(SpaceMismatch, match=f"action space of slot {odd}"):
            make(factories, observation_mode=mode)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (spaces.Box(0, 1, (2,)), spaces.Box(-5, 3, (2,))),
        (spaces.Discrete(3), spaces.Discrete(5, start=-1)),
        (spaces.MultiDiscrete([3, 4]), spaces.MultiDiscrete([5, 2])),
        (
            spaces.Dict(a=spaces.Box(0, 1, (2,)), b=spaces.Discrete(2)),
            spaces.Dict(a=spaces.Box(0, 9, (2,)), b=spaces.Discrete(4)),
        ),
        (spaces.Tuple((spaces.Discrete(3),)), spaces.Tuple((spaces.Discrete(7),))),
    ],
    ids=["box", "discrete", "multidiscrete", "dict", "tuple"],
)
def test_different_batches_spaces_of_one_shape(make_here: Make, first: Any, second: Any) -> None:
    factories = [of_space(first), of_space(second), of_space(first)]
    ours = make_here(factories, observation_mode="different")
    assert ours.observation_mode == "different"
    run_both(ours, factories, observation_mode="different")


def test_different_on_workers(make_local: Make) -> None:
    factories = [of_space(spaces.Box(-1, high, (2,))) for high in (1, 2, 3)]
    run_both(make_local(factories, observation_mode="different"), factories, observation_mode="different")


@pytest.mark.parametrize("second", [spaces.Box(0, 1, (3,)), spaces.Box(0, 1, (2,), np.float64), spaces.Discrete(2)])
def test_different_refuses_another_shape_or_dtype(make: Make, second: Any) -> None:
    with pytest.raises(SpaceMismatch):
        make([of_space(spaces.Box(0, 1, (2,))), of_space(second)], observation_mode="different")


def test_spaces_given_by_hand(make: Make) -> None:
    batched, single = spaces.Box(-9, 9, (3, 2)), spaces.Box(-9, 9, (2,))
    factories = [of_space(spaces.Box(0, high, (2,))) for high in (1, 2, 3)]
    ours = make(factories, observation_mode=(batched, single))
    assert ours.observation_space == batched
    assert ours.single_observation_space == single
    run_both(ours, factories, observation_mode=(batched, single))


def test_spaces_given_by_hand_must_fit(make: Make) -> None:
    by_hand = (spaces.Box(-9, 9, (2, 3)), spaces.Box(-9, 9, (3,)))
    with pytest.raises(SpaceMismatch, match="shape and dtype"):
        make([of_space(spaces.Box(0, 1, (2,)))] * 2, observation_mode=by_hand)


def test_spaces_given_by_hand_must_be_spaces(make_here: Make) -> None:
    with pytest.raises(TypeError, match="to be Spaces"):
        make_here(counting(2), observation_mode=("same", "different"))


@pytest.mark.parametrize("mode", ["unknown", None, 3, (spaces.Discrete(2),), spaces.Discrete(2)])
def test_an_unknown_observation_mode_is_refused(make_here: Make, mode: Any) -> None:
    with pytest.raises(ConfigError, match="Invalid `observation_mode`"):
        make_here(counting(2), observation_mode=mode)


# Attributes.


def test_the_batch_has_the_spaces_of_gymnasium(calm: ClusterEnv) -> None:
    assert calm.single_observation_space == spaces.Box(0.0, 1e6, (2,), np.float32)
    assert calm.observation_space == spaces.Box(0.0, 1e6, (4, 2), np.float32)
    assert calm.single_action_space == spaces.Discrete(3)
    assert calm.action_space == spaces.MultiDiscrete([3, 3, 3, 3])
    assert calm.num_envs == 4
    assert calm.unwrapped is calm


def test_large_observations_survive(make_local: Make) -> None:
    space = spaces.Box(0, 255, (256, 256, 3), np.uint8)
    factories = [of_space(space)] * 3
    run_both(make_local(factories), factories, steps=3)


def test_large_objects_survive(make_local: Make) -> None:
    factories = [of_space(spaces.Text(100_000, min_length=90_000))] * 3
    run_both(make_local(factories), factories, steps=3)
