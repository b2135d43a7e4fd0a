"""Losses in `reset` and in `call`, and resets of a part of a lost worker."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

from clusterenv import WorkerLost
from tests.faults.envs import CallableEnv, TextEnv
from tests.faults.kit import (
    LIMIT_S,
    MODES,
    OnceEnv,
    actions,
    batch,
    each,
    hurried,
    kill,
    lost,
    mask,
    patient,
    wait_for_answers,
)
from tests.zoo import counting, wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

DEATHS = ["kill", "exit", "segfault"]


def doomed(how: str, tmp_path: pathlib.Path, at: str, **kwargs: Any) -> list[Callable[[], Any]]:
    note = str(tmp_path / "note")
    fns = counting(4, **kwargs)
    fns[1] = lambda: OnceEnv(1, how, note, at=at, **kwargs)
    return fns


@pytest.mark.parametrize("how", DEATHS)
def test_lost_in_a_reset_it_is_reset_again_elsewhere(how: str, tmp_path: pathlib.Path) -> None:
    with batch(doomed(how, tmp_path, "reset", infos=True)) as envs:
        observations, infos = envs.reset(seed=5)
        assert observations.tolist() == [[slot, 0] for slot in range(4)]
        assert infos["started"].tolist() == [True] * 4
        assert envs.get_attr("last_seed") == (5, 6, 7, 8), "with the seeds that were asked for"
        observations, _, _, truncated, _ = envs.step(actions(envs))
        assert observations.tolist() == [[slot, 1] for slot in range(4)]
        assert not truncated.any(), "nothing was broken: the episode had not begun"


def test_lost_in_a_reset_with_raise_it_is_told_and_the_next_reset_works(tmp_path: pathlib.Path) -> None:
    with batch(doomed("kill", tmp_path, "reset"), on_loss="raise") as envs:
        with pytest.raises(WorkerLost, match="SIGKILL") as caught:
            envs.reset(seed=5)
        assert (caught.value.slot, caught.value.seed, caught.value.step) == (1, 6, 0)
        with pytest.raises(ResetNeeded):
            envs.step(actions(envs))
        assert envs.reset(seed=5)[0].tolist() == [[slot, 0] for slot in range(4)]
        assert envs.step(actions(envs))[0].tolist() == [[slot, 1] for slot in range(4)]


@pytest.mark.parametrize("on_loss", ["restart", "raise"])
def test_killed_before_a_reset(on_loss: str) -> None:
    with batch(counting(4), on_loss=on_loss) as envs:
        envs.reset(seed=5)
        envs.step(actions(envs))
        kill(envs, 0)
        if on_loss == "raise":
            with pytest.raises(WorkerLost):
                envs.reset(seed=1)
        assert envs.reset(seed=1)[0].tolist() == [[slot, 0] for slot in range(4)]
        assert envs.get_attr("last_seed") == (1, 2, 3, 4)
        assert not envs.step(actions(envs))[3].any()


def test_killed_before_the_first_reset() -> None:
    with batch(counting(4)) as envs:
        kill(envs, 1)
        assert envs.reset(seed=1)[0].tolist() == [[slot, 0] for slot in range(4)]
        assert not envs.step(actions(envs))[3].any()


def test_killed_while_a_reset_is_under_way(tmp_path: pathlib.Path) -> None:
    with batch(doomed("hang", tmp_path, "reset")) as envs:
        envs.reset_async(seed=5)
        wait_until((tmp_path / "note").exists, LIMIT_S)
        kill(envs, 0)
        observations, _ = envs.reset_wait()
        assert observations.tolist() == [[slot, 0] for slot in range(4)]


def test_options_are_repeated_for_a_replacement(tmp_path: pathlib.Path) -> None:
    with batch(doomed("kill", tmp_path, "reset")) as envs:
        envs.reset(seed=5, options={"level": 3})
        assert envs.get_attr("last_options") == ({"level": 3},) * 4


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_a_reset_of_a_part_of_a_lost_worker_does_not_hide_the_break_of_the_rest(mode: AutoresetMode) -> None:
    with batch(counting(4), autoreset_mode=mode) as envs:
        envs.reset(seed=5)
        envs.step(actions(envs))
        kill(envs, 0)
        observations, _ = envs.reset(options=mask(envs, 0))
        assert observations[0].tolist() == [0, 0]
        observations, _, _, truncated, infos = envs.step(actions(envs))
        assert truncated.tolist() == [False, True, False, False], "slot 1 lost its environment as well"
        assert lost(infos, 4) == [False, True, False, False]
        assert observations[[0, 2, 3]].tolist() == [[0, 1], [2, 2], [3, 2]]


def test_a_reset_of_a_part_after_the_loss_was_told() -> None:
    with batch(counting(4), autoreset_mode=AutoresetMode.DISABLED) as envs:
        envs.reset(seed=5)
        kill(envs, 0)
        assert envs.step(actions(envs))[3].tolist() == [True, True, False, False]
        envs.reset(options=mask(envs, 0))
        with pytest.raises(ResetNeeded, match="slot 1"):
            envs.step(actions(envs))
        envs.reset(options=mask(envs, 1))
        observations, _, _, truncated, _ = envs.step(actions(envs))
        assert observations.tolist() == [[0, 1], [1, 1], [2, 2], [3, 2]]
        assert not truncated.any()


def test_a_reset_of_a_part_leaves_answers_of_the_rest_in_their_place() -> None:
    with batch(counting(4)) as envs:
        envs.reset(seed=5)
        envs.step(actions(envs))
        observations, infos = envs.reset(options=mask(envs, 1, 2))
        assert observations.tolist() == [[0, 1], [1, 0], [2, 0], [3, 1]]
        assert envs.step(actions(envs))[0].tolist() == [[0, 2], [1, 1], [2, 1], [3, 2]]
        assert infos == {}


# Calls.


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("how", ["exit", "hang"])
def test_lost_in_a_call(how: str, mode: AutoresetMode) -> None:
    with batch(each(4, CallableEnv), autoreset_mode=mode, timeouts=patient()) as envs:
        envs.reset(seed=5)
        envs.step(actions(envs))
        envs.call_async("misbehave", how, 1)
        wait_for_answers(envs, 1)
        with (
            hurried(envs, "call_s") if how == "hang" else contextlib.nullcontext(),
            pytest.raises(WorkerLost, match="in misbehave") as caught,
        ):
            envs.call_wait()
        assert (caught.value.worker, caught.value.slots) == (0, range(2))
        observations, _, _, truncated, infos = envs.step(actions(envs))
        assert truncated.tolist() == [True, True, False, False], "the break is seen in the next step"
        assert lost(infos, 4) == [True, True, False, False]
        assert observations[2:].tolist() == [[2, 2], [3, 2]]
        if mode is AutoresetMode.NEXT_STEP:
            assert envs.step(actions(envs))[0][:2].tolist() == [[0, 0], [1, 0]]
        assert envs.call("double", 2.0) == (4.0,) * 4


def test_lost_in_a_call_with_raise() -> None:
    with batch(each(4, CallableEnv), on_loss="raise") as envs:
        envs.reset(seed=5)
        with pytest.raises(WorkerLost, match=r"signal 9 \(SIGKILL\), in misbehave"):
            envs.call("misbehave", "kill", 1)
        with pytest.raises(ResetNeeded):
            envs.step(actions(envs))
        assert envs.reset(seed=1)[0].tolist() == [[slot, 0] for slot in range(4)]
        assert envs.call("double", 2.0) == (4.0,) * 4


def test_killed_before_a_call() -> None:
    with batch(counting(4)) as envs:
        envs.reset(seed=5)
        kill(envs, 1)
        with pytest.raises(WorkerLost, match="in double"):
            envs.call("double", 1.0)
        assert envs.call("double", 1.0) == (2.0,) * 4
        assert envs.step(actions(envs))[3].tolist() == [False, False, True, True]


def test_killed_before_a_call_to_others() -> None:
    with batch(counting(4)) as envs:
        envs.reset(seed=5)
        kill(envs, 1)
        assert envs.call("double", 1.0, indices=[0, 1]) == (2.0, 2.0)
        assert envs.step(actions(envs))[3].tolist() == [False, False, True, True]


def test_killed_before_set_attr() -> None:
    with batch(counting(4)) as envs:
        envs.reset(seed=5)
        kill(envs, 1)
        with pytest.raises(WorkerLost, match="in length"):
            envs.set_attr("length", 77)
        envs.set_attr("length", 77)
        assert envs.get_attr("length") == (77,) * 4


def test_killed_before_render() -> None:
    with batch(counting(4, render_mode="rgb_array")) as envs:
        envs.reset(seed=5)
        kill(envs, 0)
        with pytest.raises(WorkerLost, match="in render"):
            envs.render()
        frames = envs.render()
        assert frames is not None
        assert [int(frame[0, 0, 0]) for frame in frames] == [0, 1, 2, 3]


def test_a_call_between_steps_does_not_disturb_them() -> None:
    with batch(counting(4)) as envs:
        envs.reset(seed=5)
        for number in range(1, 4):
            assert envs.step(actions(envs))[0].tolist() == [[slot, number] for slot in range(4)]
            assert envs.get_attr("steps") == (number,) * 4
            assert np.asarray(envs.call("double", number)).tolist() == [2 * number] * 4


def test_a_worker_that_is_lost_in_a_call_takes_no_empty_message_for_the_next() -> None:
    """Actions that fit no array travel as messages; a worker whose slots are all lost gets none."""
    with batch(each(2, TextEnv), timeouts=patient()) as envs:
        envs.reset(seed=0)
        envs.step(("a", "b"))
        with pytest.raises(WorkerLost, match=r"A fresh one takes its place: go on with step\(\)"):
            envs.call("die", indices=[1])
        assert envs.step(("c", "d"))[3].tolist() == [False, True]
        assert envs.get_attr("said")[0] == "ac"
        for action in ("e", "f"):  # the first resets the fresh one
            envs.step((action, action))
        assert envs.get_attr("said") == ("acef", "f")
