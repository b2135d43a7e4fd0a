"""A wait that ends too early: what is under way is neither lost nor taken for another step's answer."""

from __future__ import annotations

import math
import multiprocessing
from typing import TYPE_CHECKING, Any

import pytest
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError

from clusterenv import ConfigError, Timeouts, WorkerLost
from tests.faults.kit import LIMIT_S, Gate, actions, batch, hurried, patient, wait_for_answers
from tests.zoo import counting, wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable


def gated(gate: Gate, slot: int = 1, **kwargs: Any) -> list[Callable[[], Any]]:
    fns = counting(4, **kwargs)
    fns[slot] = gate.env(slot, **kwargs)
    return fns


@pytest.fixture
def gate(tmp_path: pathlib.Path) -> Gate:
    return Gate(tmp_path)


def test_step_wait_can_be_called_again(gate: Gate) -> None:
    with batch(gated(gate, infos=True)) as envs:
        envs.reset(seed=1)
        envs.step_async([0, 1, 2, 1])
        for _ in range(2):
            with pytest.raises(multiprocessing.TimeoutError, match=r"`step_wait` has timed out after 0\.05"):
                envs.step_wait(timeout=0.05)
        gate.open()
        observations, rewards, _, truncated, infos = envs.step_wait(timeout=LIMIT_S)
        assert observations.tolist() == [[slot, 1] for slot in range(4)]
        assert rewards.tolist() == [0, 1, 2, 1]
        assert infos["action"].tolist() == [0, 1, 2, 1]
        assert not truncated.any()


def test_after_a_timeout_a_new_step_must_wait(gate: Gate) -> None:
    with batch(gated(gate)) as envs:
        envs.reset(seed=1)
        envs.step_async(actions(envs))
        with pytest.raises(multiprocessing.TimeoutError):
            envs.step_wait(timeout=0.05)
        for use in (
            lambda: envs.step(actions(envs)),
            lambda: envs.step_async(actions(envs)),
            lambda: envs.send(actions(envs)),
            lambda: envs.call("double", 1.0),
            lambda: envs.set_attr("length", 3),
        ):
            with pytest.raises(AlreadyPendingCallError, match="step"):
                use()
        with pytest.raises(NoAsyncCallError):
            envs.recv()
        gate.open()
        assert envs.step_wait()[0].tolist() == [[slot, 1] for slot in range(4)]


def test_no_reply_is_taken_for_that_of_another_step(gate: Gate) -> None:
    with batch(gated(gate, infos=True)) as envs:
        envs.reset(seed=1)
        envs.step_async([2, 2, 2, 2])
        with pytest.raises(multiprocessing.TimeoutError):
            envs.step_wait(timeout=0.05)
        gate.open()
        observations, infos = envs.reset(seed=1)  # gives the step up
        assert observations.tolist() == [[slot, 0] for slot in range(4)]
        assert "action" not in infos
        observations, rewards, _, _, infos = envs.step([1, 0, 1, 0])
        assert observations.tolist() == [[slot, 1] for slot in range(4)]
        assert rewards.tolist() == [1, 0, 1, 0]
        assert infos["action"].tolist() == [1, 0, 1, 0]


def test_a_step_that_is_given_up_but_never_ends_is_ended(gate: Gate) -> None:
    with batch(gated(gate), timeouts=patient()) as envs:
        envs.reset(seed=1)
        envs.step_async(actions(envs))
        with pytest.raises(multiprocessing.TimeoutError):
            envs.step_wait(timeout=0.05)
        with hurried(envs):
            assert envs.reset(seed=1)[0].tolist() == [[slot, 0] for slot in range(4)]
        gate.open()
        assert envs.step(actions(envs))[0].tolist() == [[slot, 1] for slot in range(4)]


def test_recv_can_be_called_again(gate: Gate) -> None:
    with batch(gated(gate)) as envs:
        envs.reset(seed=1)
        envs.send(actions(envs))
        with pytest.raises(multiprocessing.TimeoutError, match=r"recv: [0-3] of min_slots=4"):
            envs.recv(min_slots=4, timeout=0.2)
        gate.open()
        observations, _, _, _, infos = envs.recv(min_slots=4, timeout=LIMIT_S)
        order = infos["env_id"].argsort()
        assert observations[order].tolist() == [[slot, 1] for slot in range(4)]


def test_call_wait_can_be_called_again(gate: Gate) -> None:
    with batch([gate.env(slot) for slot in range(4)]) as envs:
        envs.reset(seed=1)
        envs.call_async("wait_at_gate", 5)
        with pytest.raises(multiprocessing.TimeoutError, match="call_wait"):
            envs.call_wait(timeout=0.05)
        gate.open()
        assert envs.call_wait(timeout=LIMIT_S) == (5, 5, 5, 5)


def test_a_call_that_is_given_up_does_not_answer_the_next(gate: Gate) -> None:
    with batch([gate.env(slot) for slot in range(4)]) as envs:
        envs.reset(seed=1)
        envs.call_async("wait_at_gate", 5)
        with pytest.raises(multiprocessing.TimeoutError):
            envs.call_wait(timeout=0.05)
        gate.open()
        envs.reset(seed=1)
        assert envs.call("wait_at_gate", 6) == (6, 6, 6, 6)


def test_reset_wait_can_be_called_again(gate: Gate) -> None:
    with batch([gate.env(slot, in_reset=True) for slot in range(4)]) as envs:
        envs.reset_async(seed=3)
        with pytest.raises(multiprocessing.TimeoutError, match="reset_wait"):
            envs.reset_wait(timeout=0.05)
        gate.open()
        observations, _ = envs.reset_wait(timeout=LIMIT_S)
        assert observations.tolist() == [[slot, 0] for slot in range(4)]
        assert envs.get_attr("last_seed") == (3, 4, 5, 6)


def test_a_reset_that_is_given_up_for_another(gate: Gate) -> None:
    with batch([gate.env(slot, in_reset=True) for slot in range(4)]) as envs:
        envs.reset_async(seed=3)
        with pytest.raises(multiprocessing.TimeoutError):
            envs.reset_wait(timeout=0.05)
        gate.open()
        envs.reset(seed=30)
        assert envs.get_attr("last_seed") == (30, 31, 32, 33)
        assert envs.step(actions(envs))[0].tolist() == [[slot, 1] for slot in range(4)]


@pytest.mark.parametrize("half", ["step", "reset", "call"])
def test_a_bad_timeout_is_refused_and_the_call_is_still_under_way(half: str) -> None:
    with batch(counting(2)) as envs:
        envs.reset(seed=1)
        if half == "step":
            envs.step_async(actions(envs))
        elif half == "reset":
            envs.reset_async(seed=4)
        else:
            envs.call_async("double", 2.0)
        for timeout in (-1.0, math.nan, math.inf, "1", [1]):
            with pytest.raises(ConfigError, match="timeout="):
                getattr(envs, f"{half}_wait")(timeout=timeout)
        result = getattr(envs, f"{half}_wait")()
        if half == "call":
            assert result == (4.0, 4.0)
        else:
            assert result[0].tolist() == [[slot, int(half == "step")] for slot in range(2)]


def test_zero_looks_and_does_not_wait(gate: Gate) -> None:
    with batch(gated(gate)) as envs:
        envs.reset(seed=1)
        envs.step_async(actions(envs))
        with pytest.raises(multiprocessing.TimeoutError):
            envs.step_wait(timeout=0)
        gate.open()
        envs.step_wait()
        envs.send(actions(envs))
        envs.recv(min_slots=4)
        gate.close()
        envs.call_async("double", 2.0)
        wait_until(lambda: unless_late(lambda: envs.call_wait(timeout=0)) == (4.0,) * 4, LIMIT_S)


def unless_late(use: Callable[[], Any]) -> Any:
    try:
        return use()
    except multiprocessing.TimeoutError:
        return None


def test_none_waits_for_ever_only_where_it_was_typed(gate: Gate) -> None:
    with batch(gated(gate), timeouts=Timeouts(step_s=None, call_s=None, reset_s=None)) as envs:
        envs.reset(seed=1)
        envs.step_async(actions(envs))
        with pytest.raises(multiprocessing.TimeoutError):
            envs.step_wait(timeout=0.05)
        gate.open()
        assert envs.step_wait()[0].tolist() == [[slot, 1] for slot in range(4)]


def test_the_default_limit_names_what_was_waited_for(gate: Gate) -> None:
    says = r"no answer to a step within 0.2 s\. It was in slot 1 \(seed 2, step 1\)"
    with batch(gated(gate), timeouts=patient(), on_loss="raise") as envs:
        envs.reset(seed=1)
        envs.step_async(actions(envs))
        gate.wait()
        wait_for_answers(envs, 1)
        with hurried(envs, seconds=0.2), pytest.raises(WorkerLost, match=says):
            envs.step_wait()
