"""Calls into the environments, and what cannot travel."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from clusterenv import EnvError, ResultError
from tests.conformance.kit import NUM_ENVS, QUIET, abroad, actions, beyond, reference, slots
from tests.env.kit import assert_same

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterenv import ClusterEnv

    Make = Callable[..., ClusterEnv]


def test_methods_and_attributes(next_step: ClusterEnv) -> None:
    assert next_step.call("scaled", 2.0, by=3.0) == (6.0, 7.0, 8.0, 9.0, 10.0)
    assert next_step.call("scaled", 1, indices=[4, 0]) == (5.0, 1.0)
    assert next_step.get_attr("slot") == (0, 1, 2, 3, 4)
    assert next_step.get_attr("length", indices=3) == (12,)
    next_step.call_async("scaled", 1.5)
    assert next_step.call_wait(timeout=20.0) == (1.5, 2.5, 3.5, 4.5, 5.5)


def test_values_of_all_kinds_come_back_as_they_were(next_step: ClusterEnv) -> None:
    values: list[Any] = [
        {"a": [1, (2.5, None), {3}], 4: b"\x00\xff", (5, "six"): {"seven": "é"}},
        np.arange(6, dtype=np.uint16).reshape(2, 3),
        [np.float32(1.5), np.int64(-3), np.bool_(True)],
        2**100,
        float("nan"),
    ]
    next_step.set_attr("kept", values)
    for found, value in zip(next_step.get_attr("kept"), values, strict=True):
        assert_same(found, value)


def test_attributes_of_some(next_step: ClusterEnv) -> None:
    next_step.set_attr("mark", 0)
    next_step.set_attr("mark", [3, 4], indices=[3, 1])
    next_step.set_attr("mark", "all of these", indices=[2])
    assert next_step.get_attr("mark") == (0, 4, "all of these", 3, 0)


def test_pictures(dressed: ClusterEnv) -> None:
    dressed.reset(seed=1)
    pictures = dressed.render()
    assert pictures is not None
    assert dressed.render_mode == "rgb_array"
    for slot, picture in enumerate(pictures):
        assert_same(picture, np.full((2, 2, 3), slot, np.uint8))
    assert_same(dressed.call("render", indices=[4])[0], pictures[4])


def test_generators_and_seeds(next_step: ClusterEnv) -> None:
    theirs = reference(slot_kwargs=slots())
    for envs in (next_step, theirs):
        envs.reset(seed=40)
    assert next_step.np_random_seed == theirs.np_random_seed == (40, 41, 42, 43, 44)
    for mine, other in zip(next_step.np_random, theirs.np_random, strict=True):
        assert mine.integers(2**40) == other.integers(2**40)


def test_a_method_that_raises(next_step: ClusterEnv) -> None:
    next_step.reset(seed=1)
    with pytest.raises(LookupError, match="nothing in slot 2") as caught:
        next_step.call("fail")
    assert isinstance(caught.value, EnvError)
    assert caught.value.slot == 2
    assert "raise LookupError" in caught.value.remote_traceback
    with pytest.raises(AttributeError, match="no_such_thing"):
        next_step.get_attr("no_such_thing")
    next_step.step(actions(next_step))  # nothing is broken


@beyond
def test_a_result_that_cannot_travel(next_step: ClusterEnv) -> None:
    with pytest.raises(ResultError, match=r"the result of 'secret' cannot .* '_thread.lock'"):
        next_step.call("secret", "lock")
    assert next_step.call("secret", "lock", indices=[0, 4]) == ({"plain": 1, "key": None},) * 2


@abroad
def test_a_result_that_is_no_plain_data(next_step: ClusterEnv) -> None:
    with pytest.raises(ResultError, match=r"'secret' cannot travel to another host: .*Thing at .*\['key'\]"):
        next_step.call("secret", "thing")
    assert next_step.call("secret", "thing", indices=[0]) == ({"plain": 1, "key": None},)


@beyond
def test_an_argument_that_cannot_travel(next_step: ClusterEnv) -> None:
    before = next_step.get_attr("slot")
    with pytest.raises(ResultError):
        next_step.call("scaled", threading.Lock())
    with pytest.raises(ResultError):
        next_step.set_attr("slot", [threading.Lock()] * NUM_ENVS)
    assert next_step.get_attr("slot") == before


@abroad
def test_an_info_that_is_no_plain_data(next_step: ClusterEnv) -> None:
    refuses(next_step, "thing", lambda: next_step.step(actions(next_step)))
    refuses(next_step, "thing", lambda: send_and_receive(next_step))


@beyond
def test_an_info_that_cannot_travel(next_step: ClusterEnv) -> None:
    refuses(next_step, "lock", lambda: next_step.step(actions(next_step)))
    refuses(next_step, "lock", lambda: send_and_receive(next_step))


def test_an_info_that_contains_itself(next_step: ClusterEnv, same_step: ClusterEnv) -> None:
    for envs in (next_step, same_step):
        refuses(envs, "itself", functools.partial(envs.step, actions(envs)), "deep or within itself at .*'again'")
        refuses(envs, "itself", functools.partial(send_and_receive, envs), "deep or within itself at .*'again'")


def refuses(envs: ClusterEnv, kind: str, step: Callable[[], Any], why: str = "") -> None:
    """A step of slot 4 has an info that cannot travel: the error names it, and a reset makes all whole."""
    envs.reset(seed=QUIET)
    envs.set_attr("misbehave", kind, indices=[4])
    with pytest.raises(ResultError, match=f"info key '{kind}' .*{why}.*plain data") as caught:
        step()
    assert isinstance(caught.value, EnvError)
    assert (caught.value.slot, caught.value.seed, caught.value.step) == (4, QUIET + 4, 1)
    envs.reset(seed=QUIET)
    np.testing.assert_array_equal(envs.step(actions(envs))[0][:, 1], 1)


def send_and_receive(envs: ClusterEnv) -> Any:
    """The second half of a step of slots 0 and 4."""
    envs.send([1, 1], slots=[0, 4])
    return envs.recv(2)


@beyond
def test_options_that_cannot_travel(next_step: ClusterEnv) -> None:
    next_step.reset(seed=1)
    with pytest.raises(ResultError):
        next_step.reset(options={"lock": threading.Lock()})
    observations, _ = next_step.reset(seed=1)
    np.testing.assert_array_equal(observations[:, 1], 0)
