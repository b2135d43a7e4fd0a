"""Environments that misbehave: what they return is stored as it is meant, or refused by name."""

from __future__ import annotations

import decimal
import fractions
import math
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from clusterenv.worker.block import as_reward
from tests.worker.kit import BOX, ScriptedEnv, bound, logged, observed

if TYPE_CHECKING:
    from collections.abc import Callable

GOOD = observed(1, 1)


def returning(*result: Any) -> ScriptedEnv:
    return ScriptedEnv(lambda env: result)


def failure_of_step(env: ScriptedEnv) -> str:
    """The text of the failure that a step of this environment gives, after which the slot goes on in a fresh one."""
    made = iter([env, ScriptedEnv()])
    with bound(lambda: next(made)) as block:
        block.reset()
        report = block.step()
        assert [failure.doing for failure in report.failures] == ["step"]
        assert block.flags == [(False, True)], "the slot comes back truncated"
        assert block.arena.reward.tolist() == [0.0]
        block.step()
        assert block.flags == [(False, False)], "the fresh environment goes on"
        error = report.failures[0].error
        return f"{type(error).__name__}: {error}"


# Observations.


def test_an_observation_outside_its_space_is_passed_on() -> None:
    with bound(lambda: returning(observed(-5, 1e9), 0.0, False, False, {})) as block:
        block.reset()
        assert not block.step().failures
        assert block.observation == [[-5, 1e9]]


BAD_OBSERVATIONS = {
    "longer": (np.zeros(3, np.float32), "ValueError: a value has shape (3,), but its space says (2,)"),
    "another rank": (np.zeros((2, 1), np.float32), "shape (2, 1)"),
    "complex": (np.zeros(2, complex), "TypeError: a value has dtype complex128"),
    "text": (np.array(["a", "b"]), "dtype <U1"),
    "objects": (np.array([None, 1], object), "dtype object"),
    "None": (None, "shape ()"),
    "a dictionary": ({"a": 1}, "shape ()"),
    "ragged": ([[1], [1, 2]], "ValueError"),
}


@pytest.mark.parametrize(("observation", "says"), BAD_OBSERVATIONS.values(), ids=BAD_OBSERVATIONS.keys())
def test_an_observation_that_does_not_fit_is_refused(observation: Any, says: str) -> None:
    assert says in failure_of_step(returning(observation, 0.0, False, False, {}))


def test_nothing_of_a_refused_observation_is_shown() -> None:
    with bound(lambda: returning(np.array([8.0, 9.0, 7.0]), 5.0, False, False, {})) as block:
        block.reset()
        block.step()
        assert block.observation == [[0, 1]]


@pytest.mark.parametrize(
    "observation",
    [np.array([1.0, 2.0]), np.array([1, 2]), [1, 2], (1.0, 2.0), np.array([1, 2], ">f4"), np.array([1, 0, 2])[::2]],
    ids=["float64", "int64", "list", "tuple", "big-endian", "non-contiguous"],
)
def test_an_observation_that_fits_without_changing_kind_is_stored(observation: Any) -> None:
    with bound(lambda: returning(observation, 0.0, False, False, {})) as block:
        block.reset()
        assert not block.step().failures
        assert block.observation == [[1, 2]]


def test_a_wrong_observation_late_in_life_is_refused_too() -> None:
    def step(env: ScriptedEnv) -> Any:
        return (np.zeros(5) if env.steps == 900 else GOOD), 0.0, False, False, {}

    with bound(lambda: ScriptedEnv(step)) as block:
        block.reset()
        for _ in range(899):
            assert not block.step().failures
        assert "shape (5,)" in str(block.step().failures[0].error)


def test_an_observation_that_is_overwritten_later_keeps_its_value() -> None:
    buffer = observed(1, 1)

    def step(env: ScriptedEnv) -> Any:
        return buffer, 0.0, False, False, {}

    with bound(lambda: ScriptedEnv(step)) as block:
        block.reset()
        block.step()
        buffer[:] = 77
        assert block.observation == [[1, 1]]


def test_a_wrong_observation_of_a_reset_is_refused() -> None:
    with bound(lambda: ScriptedEnv(on_reset=lambda env: (np.zeros(9), {}))) as block:
        report = block.reset()
        assert {str(failure.error)[:26] for failure in report.failures} == {"a value has shape (9,), bu"}


def test_a_dictionary_of_which_one_part_is_wrong_leaves_the_one_before() -> None:
    space = spaces.Dict(a=BOX, b=BOX)

    def step(env: ScriptedEnv) -> Any:
        good = observed(env.steps, env.steps)
        return {"a": good, "b": good if env.steps < 2 else np.zeros(9)}, 0.0, False, False, {}

    def make() -> ScriptedEnv:
        return ScriptedEnv(step, lambda env: ({"a": observed(0, 0), "b": observed(0, 0)}, {}), observation_space=space)

    with bound(make) as block:
        block.reset()
        block.step()
        assert len(block.step().failures) == 1
        assert [array.tolist() for array in block.arena.observation] == [[[1, 1]], [[1, 1]]]


# Rewards.


class Tensor:
    """What a tensor of another library does when it is taken for a number."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def __float__(self) -> float:
        if len(self.values) != 1:
            raise ValueError("only one element can be a number")
        return self.values[0]


GOOD_REWARDS: dict[str, tuple[Any, float]] = {
    "an int": (3, 3.0),
    "a bool": (True, 1.0),
    "float32": (np.float32(0.5), 0.5),
    "float64": (np.float64(0.5), 0.5),
    "int64": (np.int64(-2), -2.0),
    "numpy bool": (np.bool_(True), 1.0),
    "array of one": (np.array([1.5]), 1.5),
    "0-d array": (np.array(2), 2.0),
    "infinite": (1e400, math.inf),
    "a fraction": (fractions.Fraction(1, 2), 0.5),
    "a decimal": (decimal.Decimal("0.25"), 0.25),
    "minus infinite": (-1e400, -math.inf),
}


@pytest.mark.parametrize(("reward", "stored"), GOOD_REWARDS.values(), ids=GOOD_REWARDS.keys())
def test_a_reward_is_stored_as_a_float(reward: Any, stored: float) -> None:
    with bound(lambda: returning(GOOD, reward, False, False, {})) as block:
        block.reset()
        assert not block.step().failures
        assert block.arena.reward.tolist() == [stored]


def test_nan_is_stored_as_nan() -> None:
    with bound(lambda: returning(GOOD, math.nan, False, False, {})) as block:
        block.reset()
        block.step()
        assert np.isnan(block.arena.reward).all()


BAD_REWARDS: dict[str, tuple[Any, str]] = {
    "None": (None, "the reward 'None' (NoneType) is not a real number"),
    "complex": (1 + 2j, "the reward '(1+2j)' (complex) is not a real number"),
    "numpy complex": (np.complex64(1j), "(complex64)"),
    "numpy text": (np.str_("1.0"), "the reward '1.0' (str_)"),
    "a tensor of two": (Tensor([1.0, 2.0]), "only one element"),
    "text": ("1.0", "the reward '1.0' (str)"),
    "array of two": (np.zeros(2), "(ndarray)"),
    "empty array": (np.zeros(0), "(ndarray)"),
    "complex array": (np.array([1j]), "(ndarray)"),
    "a list": ([1.0], "(list)"),
    "an integer past every float": (10**400, "OverflowError"),
    "a text of megabytes": ("x" * 10**7, "(str)"),
}


@pytest.mark.parametrize(("reward", "says"), BAD_REWARDS.values(), ids=BAD_REWARDS.keys())
def test_what_is_not_a_real_number_is_refused_as_a_reward(reward: Any, says: str) -> None:
    text = failure_of_step(returning(GOOD, reward, False, False, {}))
    assert says in text
    assert len(text) < 300


def test_as_reward_takes_anything_with_one_real_value() -> None:
    assert as_reward(Tensor([0.5])) == 0.5
    assert as_reward(np.array([[2]])) == 2.0
    assert type(as_reward(np.float32(1))) is float


# Flags.


@pytest.mark.parametrize(
    ("flag", "stored"),
    [(1, True), (0, False), (np.bool_(True), True), (np.bool_(False), False), (np.array(True), True)],
    ids=["1", "0", "np.True_", "np.False_", "0-d array"],
)
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_flags_are_taken_by_their_truth(flag: Any, stored: bool, mode: AutoresetMode) -> None:
    with bound(lambda: returning(GOOD, 1.0, flag, False, {}), mode) as block:
        block.reset()
        block.step()
        assert block.flags == [(stored, False)]
        if mode is AutoresetMode.NEXT_STEP:
            block.step()
        assert block.made[0].resets == 1 + stored


def test_both_flags_may_be_true() -> None:
    with bound(lambda: returning(GOOD, 1.0, True, True, {})) as block:
        block.reset()
        block.step()
        assert block.flags == [(True, True)]


def test_a_flag_of_two_values_is_refused() -> None:
    assert "ValueError" in failure_of_step(returning(GOOD, 1.0, np.array([True, False]), False, {}))


# Infos. How they batch is the head's business; a block hands them on.


@pytest.mark.parametrize("info", [{1: 2, (3, 4): 5}, {"_key": 1}, {"a": {"b": {"c": 1}}}, {"big": "x" * 10**6}])
def test_odd_infos_are_handed_on(info: dict[Any, Any]) -> None:
    with bound(lambda: returning(GOOD, 1.0, False, False, info)) as block:
        block.reset()
        assert block.step().infos == [(0, info)]


class Kind(dict[str, Any]):
    """A dictionary of another kind."""


def test_any_kind_of_dictionary_is_one() -> None:
    with bound(lambda: returning(GOOD, 0.0, False, False, Kind(a=1))) as block:
        block.reset()
        assert block.step().infos == [(0, {"a": 1})]


@pytest.mark.parametrize("info", [["a"], "text", 7, (1, 2)])
def test_an_info_that_is_no_dictionary_costs_its_own_slot(info: Any) -> None:
    text = failure_of_step(returning(GOOD, 0.0, False, False, info))
    assert text.startswith(f"TypeError: step() returned {str(info)!r} ({type(info).__name__}) as info")


def test_an_empty_info_costs_nothing() -> None:
    with bound(lambda: returning(GOOD, 1.0, False, False, {})) as block:
        block.reset()
        assert not block.step()


def test_the_final_info_may_hold_what_cannot_be_copied() -> None:
    lock = threading.Lock()
    with bound(lambda: returning(GOOD, 1.0, True, False, {"lock": lock}), AutoresetMode.SAME_STEP) as block:
        block.reset()
        assert block.step().infos[0][1]["final_info"]["lock"] is lock


# The old interface.


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (GOOD, "reset() returned a ndarray; Gymnasium expects (observation, info)"),
        (None, "reset() returned a NoneType"),
        ((GOOD,), "reset() returned 1 values"),
        ((GOOD, {}, {}), "reset() returned 3 values"),
        ((GOOD, None), "reset() returned a NoneType as info; Gymnasium expects a dict"),
        ([GOOD, {}], "reset() returned a list"),
    ],
    ids=["only obs", "None", "one", "three", "info None", "a list"],
)
def test_a_reset_of_the_old_interface_is_refused(result: Any, says: str) -> None:
    with bound(lambda: ScriptedEnv(on_reset=lambda env: result)) as block:
        assert says in str(block.reset().failures[0].error)


@pytest.mark.parametrize(
    "result",
    [(GOOD, 1.0, False, {}), (GOOD, 1.0, False, False, {}, 6), None, 5, GOOD],
    ids=["four", "six", "None", "a number", "only obs"],
)
def test_a_step_with_another_number_of_results_is_refused(result: Any) -> None:
    text = failure_of_step(ScriptedEnv(lambda env: result))
    assert "step() must return (observation, reward, terminated, truncated, info)" in text


def test_an_error_about_unpacking_in_the_users_code_stays_the_users() -> None:
    def step(env: ScriptedEnv) -> Any:
        three: Any = (1, 2, 3)
        one, two = three
        return one, two

    assert "step() must return" not in failure_of_step(ScriptedEnv(step))


# Exceptions of odd kinds.


class Mute(Exception):
    """Cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Holds(Exception):
    """Carries something that cannot travel."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


def raising(make: Callable[[], BaseException]) -> ScriptedEnv:
    def step(env: ScriptedEnv) -> Any:
        raise make()

    return ScriptedEnv(step)


@pytest.mark.parametrize(
    ("make", "says"),
    [(Mute, "Mute"), (lambda: Holds("x"), "RuntimeError: Holds: x"), (lambda: ValueError("x" * 10**6), "ValueError")],
    ids=["cannot be printed", "cannot be pickled", "a text of a megabyte"],
)
def test_any_exception_is_reported(make: Callable[[], Exception], says: str) -> None:
    text = failure_of_step(raising(make))
    assert says in text
    assert len(text) < 30_000


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_exit_is_not_swallowed(kind: type[BaseException]) -> None:
    with bound(lambda: raising(kind)) as block:
        block.reset()
        with pytest.raises(kind):
            block.step()


def test_a_recursion_without_end_is_reported() -> None:
    def step(env: ScriptedEnv) -> Any:
        return step(env)

    assert sys.getrecursionlimit() < 10**5
    assert "RecursionError" in failure_of_step(ScriptedEnv(step))


# Closing.


def test_a_close_that_raises_does_not_keep_a_replacement_from_its_place() -> None:
    def close(env: ScriptedEnv) -> None:
        raise RuntimeError("stuck")

    def step(env: ScriptedEnv) -> Any:
        raise ValueError("now")

    made = iter([ScriptedEnv(step, on_close=close), ScriptedEnv()])
    with bound(lambda: next(made)) as block, logged("clusterenv.worker.block") as lines:
        block.reset()
        assert [failure.recovered for failure in block.step().failures] == [True]
    assert "RuntimeError: stuck" in lines[0]
