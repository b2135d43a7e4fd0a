"""step: what goes in, what comes out, and what is refused before any environment moves."""

from __future__ import annotations

import copy
import logging
import pickle
import threading
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from clusterenv.errors import ActionError, ConfigError, EnvError, ResultError
from tests.env.kit import (
    BadEnv,
    ReusingEnv,
    SpaceEnv,
    TextSpace,
    WalkEnv,
    assert_same,
    describe,
    gated,
    inside,
    trajectory,
)
from tests.zoo import CountingEnv, counting

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterenv import ClusterEnv

    Make = Callable[..., ClusterEnv]


RULE = r"\(observation, reward, terminated, truncated, info\)"


class ArrayLike:
    """Something that is not an array but can become one, like a tensor."""

    def __init__(self, values: list[int]) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self.values, dtype=dtype)


def test_types_shapes_and_dtypes(calm: ClusterEnv) -> None:
    calm.reset(seed=1)
    result = calm.step(np.array([0, 1, 2, 0]))
    assert type(result) is tuple
    observations, rewards, terminated, truncated, infos = result
    assert observations in calm.observation_space
    assert_same(rewards, np.array([0.0, 1.0, 2.0, 0.0]))
    assert_same(terminated, np.zeros(4, dtype=np.bool_))
    assert_same(truncated, np.zeros(4, dtype=np.bool_))
    assert_same(infos, {"action": np.array([0, 1, 2, 0]), "_action": np.ones(4, dtype=np.bool_)})


def test_every_slot_gets_its_own_action(calm: ClusterEnv) -> None:
    calm.reset()
    observations, rewards, *_ = calm.step([2, 0, 1, 2])
    np.testing.assert_array_equal(observations, [[0, 1], [1, 1], [2, 1], [3, 1]])
    np.testing.assert_array_equal(rewards, [2, 0, 1, 2])


@pytest.mark.parametrize(
    "actions",
    [
        [2, 0, 1, 2],
        (2, 0, 1, 2),
        np.array([2, 0, 1, 2], dtype=np.int32),
        np.array([2, 0, 1, 2], dtype=np.uint8),
        [np.int64(2), np.int64(0), np.int64(1), np.int64(2)],
        np.array([[2, 9], [0, 9], [1, 9], [2, 9]])[:, 0],
        ArrayLike([2, 0, 1, 2]),
    ],
    ids=["list", "tuple", "int32", "uint8", "numpy-ints", "strided", "array-like"],
)
def test_actions_in_many_forms(calm: ClusterEnv, actions: Any) -> None:
    calm.reset()
    np.testing.assert_array_equal(calm.step(actions)[1], [2, 0, 1, 2])


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 255, (2,), np.uint8),
        spaces.Box(0, 9, (), np.uint32),
        spaces.Box(-1, 1, (2,), np.float16),
        spaces.MultiDiscrete([3, 300], dtype=np.uint16),
        spaces.MultiBinary(3),
        spaces.Discrete(3, start=1),
    ],
    ids=str,
)
def test_actions_as_lists_of_python_numbers(make_here: Make, space: Any) -> None:
    envs = make_here([lambda: SpaceEnv(spaces.Discrete(3), space)] * 2)
    envs.reset(seed=0)
    envs.action_space.seed(0)
    actions = envs.action_space.sample()
    as_array = envs.step(actions)[4]["got"].tolist()
    assert envs.step(actions.tolist())[4]["got"].tolist() == as_array


@pytest.mark.parametrize("bad", [[[1, 256], [0, 0]], [[1, 2], [-1, 0]]])
def test_numbers_that_would_wrap_around_are_refused(make_here: Make, bad: Any) -> None:
    envs = make_here([lambda: SpaceEnv(spaces.Discrete(3), spaces.Box(0, 255, (2,), np.uint8))] * 2)
    envs.reset(seed=0)
    with pytest.raises(ActionError):
        envs.step(bad)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_in_float64_arrive_in_the_dtype_of_the_space(make: Make, dtype: Any) -> None:
    envs = make([lambda: SpaceEnv(spaces.Discrete(2), spaces.Box(-1, 1, (1,), dtype))] * 2)
    envs.reset(seed=1)
    given = np.full((2, 1), 0.1)
    for actions in (given, given.tolist()):
        got = envs.step(actions)[4]["got"]
        assert got[0] == describe(given[0].astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.bool_])
def test_bits_may_be_floats(make: Make, dtype: Any) -> None:
    space, bits = spaces.MultiBinary(3), np.array([[0, 1, 1], [1, 0, 0]], np.int8)
    assert all(row in space for row in bits.astype(np.float32)), "what Gymnasium takes for an element"
    envs = make([lambda: SpaceEnv(spaces.Discrete(3), space)] * 2)
    envs.reset()
    assert_same(envs.step(bits.astype(dtype))[4], envs.step(bits)[4])


@pytest.mark.parametrize("bad", [0.5, 2.0, -1.0, np.nan, np.inf])
def test_floats_that_are_no_bits_are_refused(make_here: Make, bad: float) -> None:
    envs = make_here([lambda: SpaceEnv(spaces.Discrete(3), spaces.MultiBinary(2))] * 2)
    envs.reset()
    with pytest.raises(ActionError, match=r"in row 1 is out of range: the space allows 0 and 1"):
        envs.step(np.array([[0.0, 1.0], [1.0, bad]]))


def test_actions_arrive_as_sync_vector_env_hands_them_over(make: Make) -> None:
    action_space = spaces.Dict(
        {
            "b": spaces.Discrete(4, start=2),
            "a": spaces.Tuple((spaces.Box(-1, 1, (2, 2), np.float16), spaces.MultiBinary(3))),
            "c": spaces.MultiDiscrete([3, 4]),
        }
    )

    def factory() -> SpaceEnv:
        return SpaceEnv(spaces.Discrete(3), action_space)

    ours, theirs = make([factory] * 3), SyncVectorEnv([factory] * 3)
    assert_same(trajectory(ours, 5, seed=3), trajectory(theirs, 5, seed=3))


def test_an_environment_may_keep_its_action(make: Make) -> None:
    envs = make([lambda: ReusingEnv(length=10)] * 2)
    envs.reset()
    given = [np.full((2, 2), float(number)) for number in range(3)]
    for actions in given:
        envs.step(actions)
    for kept in envs.get_attr("kept"):
        assert_same(kept, [actions[0] for actions in given])


def test_the_actions_of_the_caller_are_left_alone(calm: ClusterEnv) -> None:
    calm.reset()
    actions = np.array([2, 0, 1, 2])
    calm.step(actions)
    np.testing.assert_array_equal(actions, [2, 0, 1, 2])
    actions.flags.writeable = False
    calm.step(actions)


def test_results_are_copies(calm: ClusterEnv) -> None:
    calm.reset()
    first = calm.step([2, 2, 2, 2])
    kept = [np.copy(part) for part in first[:4]]
    calm.step([0, 0, 0, 0])
    for part, before in zip(first[:4], kept, strict=True):
        np.testing.assert_array_equal(part, before)
    first[1][:] = 77
    np.testing.assert_array_equal(calm.step([1, 1, 1, 1])[1], [1, 1, 1, 1])


def test_nested_observations_are_copies(make: Make) -> None:
    space = spaces.Dict(a=spaces.Box(0, 1, (2,)), b=spaces.Tuple((spaces.Discrete(1000),)))
    envs = make([lambda: SpaceEnv(space)] * 2)
    envs.reset(seed=1)
    first = envs.step([0, 0])[0]
    kept = {"a": first["a"].copy(), "b": (first["b"][0].copy(),)}
    envs.step([0, 0])
    assert_same(first, kept)


def test_an_environment_may_reuse_its_buffers(make: Make) -> None:
    ours, theirs = make([ReusingEnv] * 3), SyncVectorEnv([ReusingEnv] * 3)
    # SyncVectorEnv itself hands out the buffers as they are, so only what it copies can be compared.
    for one, other in zip(trajectory(ours, 7, seed=0), trajectory(theirs, 7, seed=0), strict=True):
        assert_same(one[0], other[0])


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([0, 1, 2], r"shape \(3,\), expected \(4,\)"),
        ([0, 1, 2, 0, 1], r"shape \(5,\), expected \(4,\)"),
        (1, r"shape \(\)"),
        ([[0], [1], [2], [0]], r"shape \(4, 1\)"),
        (
            [[0, 1], [2]],
            r"cannot be read as an array: .* part\. Pass a NumPy array.* \.float\(\) before it for bfloat16",
        ),
        ([0.0, 1.0, 2.0, 0.0], "dtype float64"),
        (["a", "b", "c", "d"], "dtype"),
        (None, r"shape \(\)"),
        ([0, 3, 0, 0], r"the action 3 in row 1 is out of range: .* 0 to 2"),
        ([0, 0, 0, -1], r"the action -1 in row 3 is out of range"),
        ({"a": 1}, "shape"),
    ],
)
def test_wrong_actions_are_refused_before_anything_moves(calm: ClusterEnv, actions: Any, message: str) -> None:
    calm.reset(seed=0)
    with pytest.raises(ActionError, match=message) as caught:
        calm.step(actions)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(ActionError):
        calm.step_async(actions)
    np.testing.assert_array_equal(calm.step([1] * 4)[0][:, 1], [1, 1, 1, 1])


@pytest.mark.parametrize("bad", [np.nan, -np.nan])
def test_an_action_that_is_not_a_number_is_refused(make: Make, bad: float) -> None:
    envs = make([WalkEnv] * 2)
    envs.reset(seed=0)
    actions = np.zeros((2, 3), dtype=np.float32)
    actions[1, 2] = bad
    with pytest.raises(ActionError, match="row 1 is not a number"):
        envs.step(actions)


def test_box_actions_out_of_bounds_are_the_business_of_the_environment(make: Make) -> None:
    envs = make([ReusingEnv] * 2)
    envs.reset()
    actions = np.array([[1e9, -1e9], [np.inf, 0.0]])
    np.testing.assert_array_equal(envs.step(actions)[0], actions)


@pytest.mark.parametrize(
    ("dtype", "bad", "says"),
    [
        (np.int8, 300, r"300.* in row 1 is out of range: .* -128 to 127"),
        (np.int8, -129, "-129.* in row 1"),
        (np.uint8, -1, "-1.* in row 1 is out of range: .* 0 to 255"),
        (np.uint8, 256, "256.* in row 1"),
        (np.int64, 2**63, f"{2**63}.* in row 1"),
    ],
)
def test_box_actions_that_their_dtype_cannot_hold_are_refused(make: Make, dtype: Any, bad: int, says: str) -> None:
    envs = make([lambda: SpaceEnv(spaces.Discrete(3), spaces.Box(0, 100, (1,), dtype))] * 2)
    envs.reset(seed=0)
    actions = np.array([[1], [bad]], np.uint64 if bad > 2**62 else np.int64)
    with pytest.raises(ActionError, match=says):
        envs.step(actions)
    infos = envs.step([[1], [120]])[4]
    assert ["120" in text for text in infos["got"]] == [False, True], "beyond the bounds, and within the dtype"


def test_a_part_of_a_nested_action_that_is_missing_or_wrong_is_refused(make: Make) -> None:
    space = spaces.Dict(a=spaces.Discrete(3), b=spaces.Tuple((spaces.Box(0, 1, (2,)), spaces.MultiBinary(2))))
    envs = make([lambda: SpaceEnv(spaces.Discrete(3), space)] * 2)
    envs.reset(seed=0)
    good = {"a": [0, 1], "b": (np.zeros((2, 2)), [[0, 1], [1, 1]])}
    bad: list[tuple[dict[str, Any], str]] = [
        ({"a": [0, 1]}, "'b'"),
        ({**good, "a": [0, 5]}, "out of range"),
        ({**good, "b": (np.zeros((2, 2)),)}, "1 parts"),
        ({**good, "b": (np.zeros((2, 3)), [[0, 1], [1, 1]])}, r"\(2, 3\)"),
        ({**good, "b": (np.zeros((2, 2)), [[0, 2], [1, 1]])}, "out of range"),
    ]
    for actions, message in bad:
        with pytest.raises(ActionError, match=message):
            envs.step(actions)
    infos = envs.step(good)[4]
    assert [text.count("int64:") for text in infos["got"]] == [1, 1]


def test_actions_without_an_array_are_counted(make: Make) -> None:
    envs = make([lambda: SpaceEnv(spaces.Discrete(3), TextSpace())] * 3)
    envs.reset(seed=0)
    with pytest.raises(ActionError, match="2 actions for 3 slots"):
        envs.step(("a", "b"))
    assert envs.step(("a", "b", "c"))[4]["got"].tolist() == ["str:'a'", "str:'b'", "str:'c'"]


def test_an_action_that_cannot_travel_moves_nothing(make_local: Make) -> None:
    envs = make_local([lambda: SpaceEnv(spaces.Discrete(3), TextSpace(), length=100)] * 2)
    envs.reset(seed=0)
    with pytest.raises((ActionError, ResultError)):
        envs.step(("a", threading.Lock()))
    assert envs.get_attr("steps") == (0, 0)
    envs.step(("a", "b"))
    assert envs.get_attr("steps") == (1, 1)


# Environments that break the rules.


@pytest.mark.parametrize(
    ("returns", "kind", "message"),
    [
        ((np.zeros(2, np.float32), 0.0, False, {}), TypeError, RULE),
        (None, TypeError, RULE),
        ((np.zeros(3, np.float32), 0.0, False, False, {}), ValueError, r"shape \(3,\)"),
        ((np.zeros(2, np.complex64), 0.0, False, False, {}), TypeError, "complex64"),
        ((np.zeros(2, np.float32), "much", False, False, {}), TypeError, "reward"),
        ((np.zeros(2, np.float32), None, False, False, {}), TypeError, "reward"),
        ((np.zeros(2, np.float32), np.zeros(2), False, False, {}), TypeError, "reward"),
    ],
    ids=["four-values", "none", "shape", "dtype", "reward-text", "reward-none", "reward-array"],
)
def test_a_wrong_result_is_an_error_of_its_slot(make: Make, returns: Any, kind: type[Exception], message: str) -> None:
    envs = make([CountingEnv, lambda: BadEnv(returns)], on_loss="raise")
    envs.reset(seed=3)
    envs.step([0, 0])
    with pytest.raises(kind, match=message) as caught:
        envs.step([0, 0])
    assert isinstance(caught.value, EnvError)
    assert (caught.value.slot, caught.value.seed, caught.value.step) == (1, 4, 2)


@pytest.mark.parametrize("reward", [1, True, np.float32(1), np.int8(1), np.array(1.0), np.array([1])])
def test_any_real_number_is_a_reward(make_here: Make, reward: Any) -> None:
    envs = make_here([lambda: BadEnv((np.zeros(2, np.float32), reward, False, False, {}))])
    envs.reset()
    envs.step([0])
    assert_same(envs.step([0])[1], np.array([1.0]))


@pytest.mark.parametrize("flag", [np.bool_(True), 1, "yes"])
def test_flags_are_true_or_false(make_here: Make, flag: Any) -> None:
    envs = make_here([lambda: BadEnv((np.zeros(2, np.float32), 0.0, flag, not flag, {}))])
    envs.reset()
    envs.step([0])
    assert_same(envs.step([0])[2:4], (np.array([True]), np.array([False])))


def test_a_reward_that_is_not_finite_is_told_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    envs = make([CountingEnv, lambda: BadEnv((np.zeros(2, np.float32), np.inf, False, False, {}))])
    envs.reset()
    with caplog.at_level(logging.WARNING, logger="clusterenv"):
        for _ in range(4):
            rewards = envs.step([0, 0])[1]
    np.testing.assert_array_equal(rewards, [0, np.inf])
    assert [record.getMessage() for record in caplog.records if "reward" in record.getMessage()] == [
        "the environment in slot 1 returned the reward inf (said once)"
    ]


# Environments that raise.


def test_an_error_is_of_the_type_that_was_raised_and_a_reset_mends(make: Make) -> None:
    envs = make(counting(4, {2: {2: "raise"}}), on_loss="raise")
    envs.reset(seed=5)
    envs.step([1] * 4)
    with pytest.raises(ValueError, match="planned error") as caught:
        envs.step([1] * 4)
    assert isinstance(caught.value, EnvError)
    assert (caught.value.slot, caught.value.seed, caught.value.step) == (2, 7, 2)
    assert "misbehave" in caught.value.remote_traceback
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        envs.step([1] * 4)
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        envs.send([1], [0])
    observations, _ = envs.reset()
    np.testing.assert_array_equal(observations, [[0, 0], [1, 0], [2, 0], [3, 0]])
    np.testing.assert_array_equal(envs.step([1] * 4)[0][:, 1], [1, 1, 1, 1])


def test_a_slot_that_raises_is_truncated_and_goes_on_fresh(make: Make) -> None:
    envs = make(counting(3, {1: {3: "raise"}}), on_loss="restart")
    envs.reset(seed=5)
    for _ in range(2):
        envs.step([1] * 3)
    _, rewards, terminated, truncated, infos = envs.step([2] * 3)
    np.testing.assert_array_equal(rewards, [2, 0, 2])
    np.testing.assert_array_equal(terminated, [False, False, False])
    np.testing.assert_array_equal(truncated, [False, True, False])
    np.testing.assert_array_equal(infos["worker_lost"], [False, True, False])
    assert infos["env_error"][1] == "ValueError: planned error"
    observations, rewards, _, truncated, _ = envs.step([2] * 3)
    np.testing.assert_array_equal(observations, [[0, 4], [1, 0], [2, 4]])
    np.testing.assert_array_equal(rewards, [2, 0, 2])
    assert not truncated.any()


@pytest.mark.parametrize("on_loss", ["raise", "restart"])
def test_a_step_before_the_first_reset_is_the_error_of_gymnasium(make: Make, on_loss: str) -> None:
    envs = make([lambda: gymnasium.make("CartPole-v1")] * 2, on_loss=on_loss)
    with pytest.raises(gymnasium.error.ResetNeeded):
        envs.step([0, 0])
    envs.reset(seed=0)
    envs.step([0, 0])


# One user at a time.


def test_two_threads_at_once_are_refused(make_local: Make, tmp_path: Any) -> None:
    envs = make_local(gated(2, tmp_path / "gate", [0]))
    envs.reset()
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(envs.step([1, 1])))
    thread.start()
    try:
        inside(tmp_path / "gate")
        with pytest.raises(ConfigError, match="two threads"):
            envs.get_attr("slot")
    finally:
        (tmp_path / "gate").touch()
        thread.join()
    np.testing.assert_array_equal(results[0][1], [1, 1])


def test_a_batch_cannot_be_pickled_or_copied(calm: ClusterEnv) -> None:
    for act in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="make_vec"):
            act(calm)


# Actions that are not used, and one in place of many.


def test_the_action_of_a_slot_that_is_about_to_be_reset_is_not_looked_at(make: Make) -> None:
    envs = make(counting(2, length=1))
    envs.reset(seed=0)
    assert envs.step([1, 1])[2].all()
    observations, rewards, *_ = envs.step([99, -5])
    np.testing.assert_array_equal(observations[:, 1], [0, 0])
    np.testing.assert_array_equal(rewards, [0.0, 0.0])
    with pytest.raises(ActionError, match="out of range"):
        envs.step([99, 1])


def test_one_action_is_no_batch(make_here: Make) -> None:
    envs = make_here(counting(2))
    envs.reset()
    with pytest.raises(TypeError, match=r"shape \(\), expected \(2,\)"):
        envs.step(1)
