"""call, get_attr, set_attr, render and the random generators, by slot."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TimeLimit, TransformReward

from clusterenv.errors import ConfigError, EnvError, ResultError
from tests.env.kit import WalkEnv, assert_same
from tests.zoo import CountingEnv, counting

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterenv import ClusterEnv

    Make = Callable[..., ClusterEnv]


class TalkingEnv(CountingEnv):
    """Has things to call."""

    def echo(self, *args: Any, **kwargs: Any) -> Any:
        """What it got."""
        return args, kwargs

    def fail(self) -> None:
        """Raise in slot 2 only."""
        if self.slot == 2:
            raise LookupError("nothing here")

    def lock(self) -> Any:
        """Something that cannot travel."""
        return threading.Lock()


def talking(num_envs: int) -> list[Any]:
    return [_talking(slot) for slot in range(num_envs)]


def _talking(slot: int) -> Callable[[], TalkingEnv]:
    return lambda: TalkingEnv(slot)


# call.


def test_call_a_method(calm: ClusterEnv) -> None:
    assert calm.call("double", 4) == (8, 8, 8, 8)
    assert calm.call("double", value=5) == (10, 10, 10, 10)


def test_call_reads_what_is_not_callable(calm: ClusterEnv) -> None:
    assert calm.call("slot") == (0, 1, 2, 3)


def test_call_works_before_the_first_reset(make: Make) -> None:
    assert make(counting(2)).call("slot") == (0, 1)


def test_call_passes_arguments_as_they_are(make: Make) -> None:
    envs = make(talking(3))
    arguments = (1, "two", np.array([3.0]), {"four": [5]})
    for result in envs.call("echo", *arguments, six=(7,)):
        assert_same(result, (arguments, {"six": (7,)}))


def test_call_with_indices_answers_in_their_order(calm: ClusterEnv) -> None:
    assert calm.call("slot", indices=[3, 0]) == (3, 0)
    assert calm.call("slot", indices=2) == (2,)
    assert calm.call("slot", indices=np.array([1, 2])) == (1, 2)
    assert calm.call("slot", indices=None) == (0, 1, 2, 3)


def test_call_with_indices_leaves_the_others_alone(make: Make) -> None:
    envs = make(counting(4))
    envs.reset()
    envs.call("__setattr__", "slot", 9, indices=[1, 3])
    assert envs.get_attr("slot") == (0, 9, 2, 9)


@pytest.mark.parametrize(
    ("indices", "kind"),
    [
        ([4], ValueError),
        ([-1], ValueError),
        ([1, 1], ValueError),
        ([], TypeError),
        ([0.0], TypeError),
        ("0", TypeError),
        ([True, False], TypeError),
        ([[0, 1]], TypeError),
    ],
)
def test_wrong_indices_are_refused(calm: ClusterEnv, indices: Any, kind: type[Exception]) -> None:
    for act in (
        lambda: calm.call("slot", indices=indices),
        lambda: calm.get_attr("slot", indices=indices),
        lambda: calm.set_attr("slot", 1, indices=indices),
        lambda: calm.call_async("slot", indices=indices),
    ):
        with pytest.raises(kind, match="indices") as caught:
            act()
        assert isinstance(caught.value, ConfigError)
    assert calm.get_attr("slot") == (0, 1, 2, 3)


@pytest.mark.parametrize("name", ["reset", "step", "close", "_setattr", "_check_spaces"])
def test_methods_with_a_name_of_their_own_are_not_for_call(calm: ClusterEnv, name: str) -> None:
    message = f"Trying to call function `{name}` with `call`, use `{name}` directly instead"
    with pytest.raises(ValueError, match=message):
        calm.call(name)
    with pytest.raises(ValueError, match=message):
        calm.call_async(name)


@pytest.mark.parametrize("name", [None, 3, "", "two words", b"slot", ["slot"]])
def test_a_name_must_be_a_name(calm: ClusterEnv, name: Any) -> None:
    with pytest.raises(TypeError, match="name="):
        calm.call(name)


def test_a_missing_attribute_is_the_error_of_its_slot(calm: ClusterEnv) -> None:
    with pytest.raises(AttributeError, match="no_such_thing") as caught:
        calm.call("no_such_thing")
    assert isinstance(caught.value, EnvError)
    assert caught.value.slot in range(4)
    assert calm.get_attr("slot") == (0, 1, 2, 3)


@pytest.mark.parametrize("on_loss", ["raise", "restart"])
def test_an_error_in_a_call_costs_nothing(make: Make, on_loss: str) -> None:
    envs = make(talking(4), on_loss=on_loss)
    envs.reset(seed=1)
    envs.step([1] * 4)
    with pytest.raises(LookupError, match="nothing here") as caught:
        envs.call("fail")
    assert isinstance(caught.value, EnvError)
    assert (caught.value.slot, caught.value.seed, caught.value.step) == (2, 3, 1)
    observations, *_ = envs.step([1] * 4)
    np.testing.assert_array_equal(observations[:, 1], [2, 2, 2, 2])


def test_a_result_that_cannot_travel_is_told(make_local: Make) -> None:
    envs = make_local(talking(2))
    envs.reset()
    with pytest.raises(ResultError, match="lock"):
        envs.call("lock")
    np.testing.assert_array_equal(envs.step([1, 1])[1], [1, 1])


def test_an_argument_that_cannot_travel_is_told_and_nobody_is_asked(make_local: Make) -> None:
    envs = make_local(talking(2))
    envs.reset()
    with pytest.raises(ResultError, match="lock"):
        envs.call("echo", threading.Lock())
    with pytest.raises(ResultError, match="lock"):
        envs.set_attr("slot", [1, threading.Lock()])
    with pytest.raises(ResultError, match="lock"):
        envs.reset(options={"x": threading.Lock()})
    assert envs.get_attr("slot") == (0, 1)
    envs.reset()
    np.testing.assert_array_equal(envs.step([1, 1])[1], [1, 1])


def test_lambdas_travel_both_ways(make_local: Make) -> None:
    envs = make_local(talking(2))
    (((function,), _), _) = envs.call("echo", lambda number: number + 1)
    assert function(1) == 2


_SCRIPT = """
import gymnasium, numpy, clusterenv
from gymnasium import spaces

class Thing:
    def __init__(self, number):
        self.number = number

class Env(gymnasium.Env):
    observation_space = spaces.Box(0, 1, (1,))
    action_space = spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return numpy.zeros(1, numpy.float32), {"number": options["thing"].number if options else 0}
    def step(self, action):
        return numpy.zeros(1, numpy.float32), 0.0, False, False, {"thing": Thing(4)}
    def number(self, thing):
        return thing.number
    def back(self):
        return Thing(7)

envs = clusterenv.ClusterEnv([Env] * 2, cluster="local:2", on_loss="raise")
print(envs.reset(options={"thing": Thing(5)})[1]["number"])
print(envs.call("number", Thing(6)))
print([type(thing) is Thing and thing.number for thing in envs.call("back")])
print([type(thing) is Thing and thing.number for thing in envs.step([0, 0])[4]["thing"]])
envs.set_attr("kept", Thing(8))
print([thing.number for thing in envs.get_attr("kept")])
envs.close()
"""


def test_classes_of_a_script_travel_both_ways(tmp_path: Any) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["[5 5]", "(6, 6)", "[7, 7]", "[4, 4]", "[8, 8]"], done.stderr


# get_attr and set_attr.


def test_get_attr(calm: ClusterEnv) -> None:
    assert calm.get_attr("slot") == (0, 1, 2, 3)
    assert calm.get_attr("slot", indices=[2]) == (2,)


def test_set_attr_one_value_for_all(make: Make) -> None:
    envs = make(counting(3))
    envs.set_attr("length", 5)
    assert envs.get_attr("length") == (5, 5, 5)


@pytest.mark.parametrize("kind", [list, tuple])
def test_set_attr_one_value_each(make: Make, kind: Any) -> None:
    envs = make(counting(3))
    envs.set_attr("length", kind((5, 6, 7)))
    assert envs.get_attr("length") == (5, 6, 7)


def test_set_attr_an_array_is_one_value(make: Make) -> None:
    envs = make(counting(3))
    envs.set_attr("length", np.array([1, 2, 3]))
    for value in envs.get_attr("length"):
        assert_same(value, np.array([1, 2, 3]))


def test_set_attr_with_indices(make: Make) -> None:
    envs = make(counting(4))
    envs.set_attr("length", [7, 8], indices=[3, 0])
    envs.set_attr("length", 9, indices=2)
    assert envs.get_attr("length") == (8, 10, 9, 7)


@pytest.mark.parametrize("values", [[1, 2, 3], [1, 2, 3, 4, 5], (), []])
def test_set_attr_with_a_wrong_number_of_values(calm: ClusterEnv, values: Any) -> None:
    message = f"Got `{len(values)}` values for 4 environments"
    with pytest.raises(ValueError, match=message):
        calm.set_attr("slot", values)
    assert calm.get_attr("slot") == (0, 1, 2, 3)


def test_set_attr_changes_what_the_environment_does(make: Make) -> None:
    envs = make(counting(3))
    envs.reset()
    envs.set_attr("length", [1, 5, 1])
    np.testing.assert_array_equal(envs.step([0, 0, 0])[2], [True, False, True])


@pytest.mark.parametrize("name", ["gravity", "_max_episode_steps", "brand_new"])
def test_attributes_through_wrappers(make: Make, name: str) -> None:
    def factory() -> Any:
        return gymnasium.make("CartPole-v1")

    ours, theirs = make([factory] * 2), SyncVectorEnv([factory] * 2)
    for envs in (ours, theirs):
        envs.set_attr(name, [3, 4])
    assert ours.get_attr(name) == theirs.get_attr(name) == (3, 4)


def test_call_finds_methods_through_wrappers(make: Make) -> None:
    envs = make([lambda: TimeLimit(TransformReward(CountingEnv(), lambda r: r), 5)] * 2)
    assert envs.call("double", 3) == (6, 6)


# render and random numbers.


def test_render_is_one_picture_per_slot(make: Make) -> None:
    envs = make(counting(3, render_mode="rgb_array"))
    assert envs.render_mode == "rgb_array"
    envs.reset()
    pictures = envs.render()
    assert isinstance(pictures, tuple)
    for slot, picture in enumerate(pictures):
        assert_same(picture, np.full((2, 2, 3), slot, dtype=np.uint8))


def test_no_render_mode_is_none(calm: ClusterEnv) -> None:
    assert calm.render_mode is None


def test_render_as_sync_vector_env_does(make: Make) -> None:
    def factory() -> Any:
        return gymnasium.make("CartPole-v1")

    ours, theirs = make([factory] * 2), SyncVectorEnv([factory] * 2)
    for envs in (ours, theirs):
        envs.reset(seed=0)
    with pytest.warns(UserWarning, match="render") if ours.cluster.text == "inproc" else contextlib.nullcontext():
        pictures = ours.render()
    with pytest.warns(UserWarning, match="render"):
        assert_same(pictures, theirs.render())
    assert_same(pictures, (None, None))


def test_np_random_is_that_of_the_environments(make: Make) -> None:
    ours, theirs = make([WalkEnv] * 3), SyncVectorEnv([WalkEnv] * 3)
    for envs in (ours, theirs):
        envs.reset(seed=[4, 5, 6])
    assert ours.np_random_seed == theirs.np_random_seed == (4, 5, 6)
    assert isinstance(ours.np_random, tuple)
    for one, other in zip(ours.np_random, theirs.np_random, strict=True):
        assert one.bit_generator.state == other.bit_generator.state


class Pressed(CountingEnv):
    """Ctrl-C comes in a method."""

    def press(self) -> None:
        """Be interrupted."""
        signal.raise_signal(signal.SIGINT)


def test_an_interrupted_call_is_waited_for_in_vain_and_says_so(make_here: Make) -> None:
    envs = make_here([Pressed] * 2)
    with pytest.raises(KeyboardInterrupt):
        envs.call("press")
    with pytest.raises(AlreadyPendingCallError, match=r"call `call_wait` or `reset`"):
        envs.call("double", 1)
    with pytest.raises(NoAsyncCallError, match="interrupted") as caught:
        envs.call_wait()
    assert caught.value.name == "call"
    assert envs.call("double", 1) == (2, 2)
