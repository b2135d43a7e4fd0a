"""Ctrl-C at every moment in which answers and losses are taken: what has arrived stays here, and every loss is seen."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from gymnasium.error import NoAsyncCallError, ResetNeeded

from clusterenv import WorkerLost
from clusterenv.node.exchange import Exchange
from tests.faults.envs import TextEnv
from tests.faults.interrupts import interrupted_at, interrupted_everywhere
from tests.faults.kit import actions, batch, each, kill, lost, patient, wait_for_answers
from tests.zoo import counting

if TYPE_CHECKING:
    from clusterenv import ClusterEnv

ENDLESS = 10**6
# Where answers are taken, from the channel of a worker to the user.
ANSWERS = ("node/exchange.py", "node/local.py", "node/board.py", "transport/channel.py", "env/engine.py")
LOSSES = ("env/recovery.py", "cluster/gather.py:lose", "node/workers.py:record", "node/workers.py:_record")


def begun(envs: ClusterEnv, action: int = 1) -> None:
    """A step is under way, and every worker has answered it."""
    envs.step_async(actions(envs, action))
    wait_for_answers(envs, 0, 1)


@pytest.mark.parametrize("cluster", ["local:2", "inproc:2"])
def test_what_was_reported_of_a_step_is_not_lost(cluster: str) -> None:
    with batch(counting(4, length=ENDLESS, infos=True), cluster=cluster, timeouts=patient()) as envs:
        envs.reset(seed=1)
        pids = envs.worker_pids()
        begun(envs)
        for steps, where in enumerate(interrupted_everywhere(envs.step_wait, *ANSWERS, opcodes=True), start=1):
            observations, _, _, _, infos = envs.step_wait()
            assert observations.tolist() == [[slot, steps] for slot in range(4)], where
            assert infos["_action"].tolist() == [True] * 4, where
            assert infos["action"].tolist() == [steps % 3] * 4, where
            begun(envs, (steps + 1) % 3)
        assert envs.worker_pids() == pids, "nobody was lost"


def test_observations_that_fit_no_array_are_those_of_their_step() -> None:
    with batch(each(4, TextEnv), timeouts=patient()) as envs:

        def begin() -> None:
            envs.reset(seed=1)
            envs.step(("a",) * 4)
            envs.step_async(("b",) * 4)
            wait_for_answers(envs, 0, 1)

        begin()
        pids = envs.worker_pids()
        for where in interrupted_everywhere(envs.step_wait, *ANSWERS, "env/observations.py"):
            try:
                assert envs.step_wait()[0] == tuple(f"slot {slot} step 2 ab" for slot in range(4)), where
            except NoAsyncCallError:  # it was over, and its observations on their way to the user
                assert "env/observations.py" in where
            begin()
        assert envs.worker_pids() == pids, "nobody was lost"


def test_what_was_reported_is_not_told_again_with_the_next_step() -> None:
    """Of a step that was over when the interrupt came, nothing is left."""
    with batch(counting(4, length=ENDLESS, infos=True), cluster="inproc:2") as envs:
        envs.reset(seed=1)
        for where in interrupted_everywhere(lambda: envs.step([1] * 4), "env/turns.py", "env/engine.py"):
            with contextlib.suppress(NoAsyncCallError):
                envs.step_wait()
            with contextlib.suppress(NoAsyncCallError):  # one that was given up
                envs.set_attr("infos", False)
            assert envs.step([1] * 4)[-1] == {}, where
            envs.set_attr("infos", True)


@pytest.mark.parametrize("slots", [[0, 1, 2, 3], [0, 1]], ids=["all", "some"])
def test_what_was_reported_is_not_lost_in_recv(slots: list[int]) -> None:
    with batch(counting(4, length=ENDLESS, infos=True), timeouts=patient()) as envs:
        envs.reset(seed=1)
        pids = envs.worker_pids()

        def begin() -> None:
            envs.send([1] * len(slots), slots)
            wait_for_answers(envs, 0, 1)

        def receive() -> dict[str, Any]:
            infos: dict[str, Any] = envs.recv(len(slots))[-1]
            return infos

        begin()
        for where in interrupted_everywhere(receive, *ANSWERS, opcodes=True):
            left = envs._engine.gather.in_flight
            assert left in (0, len(slots)), where
            if left:
                infos = receive()
                assert sorted(infos["env_id"].tolist()) == slots
                assert infos["_action"].all(), where
            begin()
        assert envs.worker_pids() == pids, "nobody was lost"


def test_a_reply_that_was_read_is_found_again() -> None:
    """Its bytes are here, and the socket does not show them any more."""
    with batch(counting(4), timeouts=patient()) as envs:
        envs.reset(seed=1)
        for turn in (1, 2):
            envs.call_async("get_wrapper_attr", "spec")
            with interrupted_at(Exchange, "_loaded", turn):
                envs.call_wait()
            assert envs.call_wait(timeout=30.0) == (None,) * 4


def check_lost_once(envs: ClusterEnv, where: str) -> None:
    """Slots 2 and 3 come back lost, and go on from a reset."""
    observations, rewards, _, truncated, infos = envs.step_wait()
    same_step = envs.metadata["autoreset_mode"].name == "SAME_STEP"
    assert truncated.tolist() == lost(infos, 4) == [False, False, True, True], where
    assert rewards.tolist() == [1, 1, 0, 0], where
    assert infos["_action"].tolist() == [True, True, False, False], where
    if same_step:
        assert observations.tolist() == [[0, 2], [1, 2], [2, 0], [3, 0]], where
        assert [last.tolist() for last in infos["final_obs"][2:]] == [[2, 1], [3, 1]], where
    observations, _, _, truncated, infos = envs.step(actions(envs))
    assert observations.tolist() == [[0, 3], [1, 3], [2, same_step], [3, same_step]], where
    assert not truncated.any(), where
    assert not any(lost(infos, 4)), where


def lose_one(envs: ClusterEnv) -> None:
    """A worker ends after a step."""
    envs.reset(seed=1)
    envs.step(actions(envs))
    kill(envs, 1)


# With an autoreset in the same step, lost slots are reset before they come back.
AT_ONCE = ("env/recovery.py:answer", "env/recovery.py:_note_answers", "env/recovery.py:_reset_fresh")


@pytest.mark.parametrize(("mode", "places"), [("NextStep", LOSSES), ("SameStep", AT_ONCE)])
def test_a_loss_is_seen_once(mode: str, places: tuple[str, ...]) -> None:
    with batch(counting(4, infos=True), autoreset_mode=mode, timeouts=patient()) as envs:

        def begin() -> None:
            lose_one(envs)
            envs.step_async(actions(envs))

        begin()
        for times, where in enumerate(interrupted_everywhere(envs.step_wait, *places), start=1):
            check_lost_once(envs, where)
            assert envs.restarts == times, where
            begin()


def test_a_loss_that_nobody_had_asked_for_is_seen_once() -> None:
    places = ("env/engine.py:begin_step", "env/engine.py:_ask_all", "env/recovery.py:answer", "cluster/gather.py")
    with batch(counting(4, infos=True), timeouts=patient()) as envs:

        def begin() -> None:
            lose_one(envs)
            with pytest.raises(WorkerLost):
                envs.call("double", 1.0)

        begin()
        for where in interrupted_everywhere(lambda: envs.step_async(actions(envs)), *places):
            try:
                check_lost_once(envs, where)
            except NoAsyncCallError:  # nobody was asked yet
                envs.step_async(actions(envs))
                check_lost_once(envs, where)
            begin()
        envs.step_wait()


def test_a_loss_that_shall_be_raised_is_raised() -> None:
    with batch(counting(4), on_loss="raise", timeouts=patient()) as envs:

        def begin() -> None:
            lose_one(envs)
            envs.step_async(actions(envs))

        def wait() -> None:
            with contextlib.suppress(WorkerLost):
                envs.step_wait()

        begin()
        for where in interrupted_everywhere(
            wait, "env/recovery.py:_take_losses", "env/recovery.py:note_losses", *LOSSES[1:]
        ):
            try:
                told = str(envs.step_wait()[-1])
            except (WorkerLost, ResetNeeded) as error:
                told = str(error)
            assert ("worker 1" in told) or ("Call reset()" in told), where
            begin()
        envs.reset(seed=1)
