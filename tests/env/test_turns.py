"""Ctrl-C at every moment of a call: the batch can be used again, and nothing is taken for what it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from gymnasium.error import NoAsyncCallError

from clusterenv import ConfigError
from tests.env.policies import Linear
from tests.faults.interrupts import interrupted_everywhere
from tests.faults.kit import LIMIT_S, patient
from tests.zoo import counting

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterenv import ClusterEnv

    Make = Callable[..., ClusterEnv]

# Where the state of a call is kept.
PARTS = ("env/turns", "env/vector", "env/engine", "env/detaching", "env/players", "cluster/gather", "node/inproc")
OURS = tuple(f"clusterenv/{part}.py" for part in PARTS)
ZEROS, ONES = [[0, 0], [1, 0], [2, 0], [3, 0]], [[0, 1], [1, 1], [2, 1], [3, 1]]


def in_halves(envs: ClusterEnv) -> None:
    envs.step_async([1] * 4)
    envs.step_wait()


def send_and_receive(envs: ClusterEnv) -> None:
    envs.send([1] * 4)
    envs.recv(4)


ACTS: dict[str, Callable[[ClusterEnv], Any]] = {
    "reset": lambda envs: envs.reset(seed=1),
    "step": lambda envs: envs.step([1] * 4),
    "halves": in_halves,
    "send": send_and_receive,
    "call": lambda envs: envs.call("double", 2),
    "set_attr": lambda envs: envs.set_attr("length", 100),
    "rollout": lambda envs: envs.rollout(2),
    "publish": lambda envs: envs.publish(),
    "detach": lambda envs: envs.detach(),
}


def goes_on(envs: ClusterEnv) -> None:
    """After a reset everything is in its place."""
    assert envs.reset(seed=0)[0].tolist() == ZEROS
    assert envs.step([1] * 4)[0].tolist() == ONES
    assert envs.call("double", 3) == (6,) * 4
    envs.reset(seed=0)
    if envs._detached is None:
        envs.attach(Linear(choices=3), seed=0, sync="always")
    assert envs.rollout(2).obs[:, :, 1].tolist() == [[0] * 4, [1] * 4, [2] * 4]
    envs.reset(seed=0)


@pytest.mark.parametrize("name", [name for name in ACTS if name != "halves"])  # after the first a reset is refused
def test_a_reset_helps_wherever_the_interrupt_came(make: Make, name: str) -> None:
    envs = make(counting(4, length=100), timeouts=patient())
    goes_on(envs)
    for where in interrupted_everywhere(lambda: ACTS[name](envs), *OURS):
        try:
            goes_on(envs)
        except Exception as error:
            raise AssertionError(f"after an interrupt at {where}") from error


def test_a_reset_helps_after_an_interrupt_in_a_stream(make: Make) -> None:
    def stream() -> None:
        with envs.stream(2, slots=4) as batches:
            next(batches)

    envs = make(counting(4, length=100), timeouts=patient())
    goes_on(envs)
    for where in interrupted_everywhere(stream, *OURS, every=5):
        try:
            goes_on(envs)
        except Exception as error:
            raise AssertionError(f"after an interrupt at {where}") from error


WAITS: dict[str, tuple[Callable[[ClusterEnv], Any], Any]] = {
    "reset": (lambda envs: envs.reset_wait()[0].tolist(), ZEROS),
    "step": (lambda envs: envs.step_wait()[0].tolist(), ONES),
    "halves": (lambda envs: envs.step_wait()[0].tolist(), ONES),
    "send": (lambda envs: sorted(envs.recv(envs._engine.gather.in_flight or 1, LIMIT_S)[0].tolist()), ONES),
    "call": (lambda envs: envs.call_wait(), (4,) * 4),
}


@pytest.mark.parametrize("name", WAITS)
def test_the_second_half_of_what_was_interrupted_is_right_or_refused(make: Make, name: str) -> None:
    envs = make(counting(4, length=100), timeouts=patient())
    envs.reset(seed=0)
    wait, right = WAITS[name]
    for where in interrupted_everywhere(lambda: ACTS[name](envs), *OURS):
        try:
            assert wait(envs) == right, where
        except NoAsyncCallError:
            pass
        except Exception as error:
            raise AssertionError(f"after an interrupt at {where}") from error
        envs.reset(seed=0)


def test_a_call_inside_a_call_is_refused(make_here: Make) -> None:
    envs = make_here(counting(2))
    envs.reset(seed=0)
    with envs._turns, pytest.raises(ConfigError, match="two threads at once"):  # as an environment in this process may
        envs.step([1, 1])
    assert envs.step([1, 1])[0].tolist() == [[0, 1], [1, 1]]
