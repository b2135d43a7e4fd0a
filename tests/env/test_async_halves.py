"""The two halves of a call: order, names and messages of errors, limits, and what comes after a limit has passed."""

from __future__ import annotations

import multiprocessing
import threading
import time
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector import SyncVectorEnv

from clusterenv import ConfigError, WorkerLost
from tests.env.kit import LIMIT_S, WalkEnv, assert_same, gated, inside
from tests.faults.interrupts import interrupted_when
from tests.faults.kit import hurried, patient, wait_for_answers
from tests.zoo import counting, wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    from clusterenv import ClusterEnv

    Make = Callable[..., ClusterEnv]

SHORT_S = 0.05
NAMES = ("reset", "step", "call")


@pytest.fixture
def gate(tmp_path: pathlib.Path) -> pathlib.Path:
    """The file that gated environments wait for."""
    return tmp_path / "gate"


def first_half(envs: ClusterEnv, name: str) -> None:
    {
        "reset": lambda: envs.reset_async(seed=1),
        "step": lambda: envs.step_async([1] * envs.num_envs),
        "call": lambda: envs.call_async("double", 4),
    }[name]()


def second_half(envs: ClusterEnv, name: str, timeout: float | None = None) -> Any:
    return getattr(envs, f"{name}_wait")(timeout)


# The halves make a whole.


def test_the_halves_answer_as_the_whole(make: Make) -> None:
    ours, theirs = make([WalkEnv] * 3), SyncVectorEnv([WalkEnv] * 3)
    ours.reset_async(seed=4)
    assert_same(ours.reset_wait(), theirs.reset(seed=4))
    ours.action_space.seed(1)
    for _ in range(30):
        actions = ours.action_space.sample()
        ours.step_async(actions)
        assert_same(ours.step_wait(timeout=LIMIT_S), theirs.step(actions))
    ours.reset_async(options={"reset_mask": np.array([True, False, True])})
    assert_same(ours.reset_wait(timeout=LIMIT_S), theirs.reset(options={"reset_mask": np.array([True, False, True])}))


def test_reset_async_takes_its_arguments_by_position(calm: ClusterEnv) -> None:
    calm.reset_async(3, {"level": 1})
    calm.reset_wait()
    assert calm.get_attr("last_seed") == (3, 4, 5, 6)
    assert calm.get_attr("last_options") == ({"level": 1},) * 4


def test_call_async(calm: ClusterEnv) -> None:
    calm.call_async("double", 4)
    assert calm.call_wait() == (8, 8, 8, 8)
    calm.call_async("double", value=5, indices=[2, 0])
    assert calm.call_wait(timeout=LIMIT_S) == (10, 10)


def test_the_first_half_does_not_wait(make_local: Make, gate: pathlib.Path) -> None:
    envs = make_local(gated(2, gate, [0, 1]))
    envs.reset()
    envs.step_async([1, 2])  # would never return if it waited for the gate
    gate.touch()
    np.testing.assert_array_equal(envs.step_wait()[1], [1, 2])


# Out of order.


@pytest.mark.parametrize("name", NAMES)
def test_a_second_half_needs_a_first(calm: ClusterEnv, name: str) -> None:
    calm.reset()
    with pytest.raises(
        NoAsyncCallError, match=f"Calling `{name}_wait` without any prior call to `{name}_async`"
    ) as caught:
        second_half(calm, name)
    assert caught.value.name == name


@pytest.mark.parametrize("name", NAMES)
def test_a_second_half_is_there_once(calm: ClusterEnv, name: str) -> None:
    calm.reset()
    first_half(calm, name)
    second_half(calm, name)
    with pytest.raises(NoAsyncCallError):
        second_half(calm, name)


@pytest.mark.parametrize("name", NAMES)
def test_the_second_half_of_another_call_is_refused(calm: ClusterEnv, name: str) -> None:
    calm.reset()
    first_half(calm, name)
    for other in NAMES:
        if other != name:
            with pytest.raises(NoAsyncCallError) as caught:
                second_half(calm, other)
            assert caught.value.name == other
    second_half(calm, name)


@pytest.mark.parametrize("pending", NAMES)
def test_nothing_starts_while_a_call_is_pending(calm: ClusterEnv, pending: str) -> None:
    calm.reset()
    first_half(calm, pending)
    starts: dict[str, Callable[[], Any]] = {
        "reset": calm.reset,
        "reset_async": calm.reset_async,
        "step": lambda: calm.step([1] * 4),
        "step_async": lambda: calm.step_async([1] * 4),
        "call": lambda: calm.call("double", 1),
        "call_async": lambda: calm.call_async("double", 1),
        "set_attr": lambda: calm.set_attr("slot", 1),
        "send": lambda: calm.send([1] * 4),
    }
    for name, start in starts.items():
        message = f"Calling `{name}` while waiting for a pending call to `{pending}` to complete"
        with pytest.raises(AlreadyPendingCallError, match=message) as caught:
            start()
        assert caught.value.name == pending
    for start in (calm.render, lambda: calm.get_attr("slot"), lambda: calm.np_random_seed):
        with pytest.raises(AlreadyPendingCallError):
            start()
    with pytest.raises(NoAsyncCallError):
        calm.recv()
    second_half(calm, pending)
    assert calm.get_attr("slot") == (0, 1, 2, 3)


def test_a_refused_first_half_leaves_nothing_pending(calm: ClusterEnv) -> None:
    calm.reset()
    starts: list[Callable[[], None]] = [
        lambda: calm.reset_async(seed=[1]),
        lambda: calm.reset_async(options={"reset_mask": np.zeros(4, dtype=np.bool_)}),
        lambda: calm.step_async([1]),
        lambda: calm.call_async("step"),
        lambda: calm.call_async("double", 1, indices=[9]),
    ]
    for start in starts:
        with pytest.raises(ValueError):
            start()
    for name in NAMES:
        with pytest.raises(NoAsyncCallError):
            second_half(calm, name)
    np.testing.assert_array_equal(calm.step([1] * 4)[1], [1] * 4)


# Limits.


def test_a_late_step_is_not_lost(make_local: Make, gate: pathlib.Path) -> None:
    envs = make_local(gated(4, gate, [2]))
    envs.reset(seed=1)
    envs.step_async([2, 2, 2, 2])
    message = f"The call to `step_wait` has timed out after {SHORT_S} second"
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(multiprocessing.TimeoutError, match=message):
            envs.step_wait(timeout=SHORT_S)
        assert time.monotonic() - began >= SHORT_S
    with pytest.raises(multiprocessing.TimeoutError):
        envs.step_wait(timeout=0)
    gate.touch()
    observations, rewards, *_ = envs.step_wait()
    np.testing.assert_array_equal(observations, [[0, 1], [1, 1], [2, 1], [3, 1]])
    np.testing.assert_array_equal(rewards, [2, 2, 2, 2])
    np.testing.assert_array_equal(envs.step([0, 1, 2, 0])[1], [0, 1, 2, 0])


def test_a_step_after_a_late_step_is_refused_and_says_what_to_do(make_local: Make, gate: pathlib.Path) -> None:
    envs = make_local(gated(4, gate, [2]))
    envs.reset(seed=1)
    envs.step_async([2, 2, 2, 2])
    with pytest.raises(multiprocessing.TimeoutError):
        envs.step_wait(timeout=SHORT_S)
    for start in (
        lambda: envs.step([1, 1, 1, 1]),
        lambda: envs.step_async([1, 1, 1, 1]),
        lambda: envs.get_attr("slot"),
        lambda: envs.send([1, 1, 1, 1]),
    ):
        with pytest.raises(AlreadyPendingCallError, match=r"`step_wait` or `reset`") as caught:
            start()
        assert caught.value.name == "step"
    gate.touch()
    np.testing.assert_array_equal(envs.step_wait()[1], [2, 2, 2, 2])


@pytest.mark.parametrize("half", [False, True])
def test_a_reset_gives_a_late_step_up(make_local: Make, gate: pathlib.Path, half: bool) -> None:
    envs = make_local(gated(4, gate, [2], infos=True))
    envs.reset(seed=1)
    envs.step_async([2, 2, 2, 2])
    with pytest.raises(multiprocessing.TimeoutError):
        envs.step_wait(timeout=SHORT_S)
    threading.Timer(SHORT_S, gate.touch).start()
    if half:
        envs.reset_async(seed=9)
        observations, infos = envs.reset_wait()
    else:
        observations, infos = envs.reset(seed=9)
    np.testing.assert_array_equal(observations, [[0, 0], [1, 0], [2, 0], [3, 0]])
    assert infos.keys() == {"started", "_started"}
    assert envs.np_random_seed == (9, 10, 11, 12)
    observations, rewards, _, _, infos = envs.step([0, 1, 2, 1])
    np.testing.assert_array_equal(observations[:, 1], [1, 1, 1, 1])
    np.testing.assert_array_equal(rewards, [0, 1, 2, 1])
    np.testing.assert_array_equal(infos["action"], [0, 1, 2, 1])


def test_a_masked_reset_does_not_swallow_a_late_step(make_local: Make, gate: pathlib.Path) -> None:
    envs = make_local(gated(4, gate, [2], length=1))
    envs.reset(seed=1)
    envs.step_async([1] * 4)
    with pytest.raises(multiprocessing.TimeoutError):
        envs.step_wait(timeout=SHORT_S)
    gate.touch()
    try:
        envs.reset(options={"reset_mask": np.array([True, False, False, False])})
    except (ConfigError, AlreadyPendingCallError):  # refused: it can still be waited for
        assert envs.step_wait()[2].all()
        return
    _, _, terminated, truncated, _ = envs.step([1] * 4)
    assert (terminated | truncated)[1:].all(), "three episodes have ended and nobody was told"


def test_a_late_reset_is_not_lost(make_local: Make, gate: pathlib.Path) -> None:
    envs = make_local(gated(4, gate, [1], "reset", infos=True))
    envs.reset_async(seed=5)
    with pytest.raises(multiprocessing.TimeoutError, match=r"The call to `reset_wait` has timed out"):
        envs.reset_wait(timeout=SHORT_S)
    with pytest.raises(AlreadyPendingCallError):
        envs.step([1] * 4)
    gate.touch()
    observations, infos = envs.reset_wait()
    np.testing.assert_array_equal(observations, [[0, 0], [1, 0], [2, 0], [3, 0]])
    assert_same(infos, {"started": np.ones(4, dtype=np.bool_), "_started": np.ones(4, dtype=np.bool_)})
    assert envs.np_random_seed == (5, 6, 7, 8)


def test_a_reset_gives_a_late_reset_up(make_local: Make, gate: pathlib.Path) -> None:
    envs = make_local(gated(4, gate, [1], "reset"))
    envs.reset_async(seed=5)
    with pytest.raises(multiprocessing.TimeoutError):
        envs.reset_wait(timeout=SHORT_S)
    gate.touch()
    envs.reset(seed=50)
    assert envs.np_random_seed == (50, 51, 52, 53)
    np.testing.assert_array_equal(envs.step([1] * 4)[0][:, 1], [1] * 4)


def test_a_late_call_is_not_lost(make_local: Make, gate: pathlib.Path) -> None:
    envs = make_local(gated(4, gate, [3], "nap"))
    envs.reset()
    envs.call_async("nap", 7)
    with pytest.raises(multiprocessing.TimeoutError, match="The call to `call_wait` has timed out"):
        envs.call_wait(timeout=SHORT_S)
    with pytest.raises(AlreadyPendingCallError):
        envs.step([1] * 4)
    gate.touch()
    assert envs.call_wait() == (7, 7, 7, 7)
    np.testing.assert_array_equal(envs.step([1] * 4)[0][:, 1], [1] * 4)


def test_a_reset_gives_a_late_call_up(make_local: Make, gate: pathlib.Path) -> None:
    envs = make_local(gated(4, gate, [3], "nap"))
    envs.reset()
    envs.call_async("nap", 7)
    with pytest.raises(multiprocessing.TimeoutError):
        envs.call_wait(timeout=SHORT_S)
    gate.touch()
    envs.reset(seed=2)
    assert envs.call("double", 3) == (6, 6, 6, 6)
    np.testing.assert_array_equal(envs.step([1] * 4)[0][:, 1], [1] * 4)


def test_the_limit_of_a_half_is_for_all_workers_together(make_local: Make, gate: pathlib.Path) -> None:
    envs = make_local(gated(4, gate, [0, 1, 2, 3]), cluster="local:4")
    envs.reset()
    envs.step_async([1] * 4)
    began = time.monotonic()
    with pytest.raises(multiprocessing.TimeoutError):
        envs.step_wait(timeout=2.0)
    assert time.monotonic() - began < 4 * 2.0
    gate.touch()
    envs.step_wait()


def test_in_this_process_nothing_is_late(make_here: Make) -> None:
    envs = make_here(counting(2))
    envs.reset()
    envs.step_async([1, 2])
    np.testing.assert_array_equal(envs.step_wait(timeout=0)[1], [1, 2])


# The limits that count a worker as lost.


@pytest.mark.parametrize("name", NAMES)
def test_a_worker_that_hangs_is_lost_after_the_limit_of_the_batch(
    make_local: Make, gate: pathlib.Path, name: str
) -> None:
    closed = {"reset": "reset", "step": "step", "call": "nap"}[name]
    envs = make_local(gated(4, gate, [3], closed), on_loss="raise", timeouts=patient())
    if name != "reset":
        envs.reset(seed=1)
    begin: dict[str, Callable[[], Any]] = {
        "reset": envs.reset_async,
        "step": lambda: envs.step_async([1] * 4),
        "call": lambda: envs.call_async("nap", 1),
    }
    begin[name]()
    inside(gate)
    wait_for_answers(envs, 0)
    with hurried(envs, f"{name}_s", 0.2), pytest.raises(WorkerLost, match=r"within 0.2 s") as caught:
        second_half(envs, name)
    assert (caught.value.worker, caught.value.slots) == (1, range(2, 4))
    if name == "step":
        assert (caught.value.slot, caught.value.seed, caught.value.step) == (3, 4, 1)
    with pytest.raises(gymnasium.error.ResetNeeded):
        envs.step([1] * 4)
    gate.touch()
    envs.reset()
    np.testing.assert_array_equal(envs.step([1] * 4)[0], [[0, 1], [1, 1], [2, 1], [3, 1]])


# Ctrl-C.


def half_done(envs: ClusterEnv, gate: pathlib.Path) -> None:
    """Wait until slot 1 stands at the gate, and the worker of slot 0 has answered."""
    inside(gate)
    wait_until(lambda: envs._engine.node._board.unanswered([0]) is None, LIMIT_S)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [*NAMES, "set_attr"])
def test_an_interrupted_call_leaves_the_batch_in_order(make_local: Make, gate: pathlib.Path, name: str) -> None:
    closed = {"call": "nap", "set_attr": "lazy"}.get(name, name)
    # Slot 0 answers before the interrupt and is slow afterwards: what it said first must not be taken for the reset.
    envs = make_local(gated(2, gate, [1], closed, infos=True, reset_s=0.1), timeouts=patient())
    pids = envs.worker_pids()
    if name != "reset":
        envs.reset(seed=1)
    act: dict[str, Callable[[], Any]] = {
        "reset": lambda: envs.reset(seed=1),
        "step": lambda: envs.step([2, 2]),
        "call": lambda: envs.call("nap", 1),
        "set_attr": lambda: envs.set_attr("lazy", 1),
    }
    with interrupted_when(lambda: half_done(envs, gate)):
        act[name]()
    threading.Timer(SHORT_S, gate.touch).start()
    envs.reset(seed=5)
    assert envs.worker_pids() == pids, "nobody was late, so nobody is lost"
    assert envs.np_random_seed == (5, 6)
    for number in range(1, 4):
        observations, rewards, _, _, infos = envs.step([number % 3, 1])
        np.testing.assert_array_equal(observations, [[0, number], [1, number]])
        np.testing.assert_array_equal(rewards, [number % 3, 1])
        np.testing.assert_array_equal(infos["action"], [number % 3, 1])
    wait_until(gate.exists, LIMIT_S)


def test_an_interrupted_set_attr_does_not_mix_up_what_follows(make_local: Make, gate: pathlib.Path) -> None:
    envs = make_local(gated(2, gate, [1], "lazy", infos=True))
    envs.reset(seed=1)
    with interrupted_when(lambda: half_done(envs, gate)):
        envs.set_attr("lazy", 1)
    gate.touch()
    # A refusal, or the right answer: never the answer to something else.
    try:
        infos = envs.step([2, 1])[4]
    except AlreadyPendingCallError:
        return
    np.testing.assert_array_equal(infos["action"], [2, 1])
