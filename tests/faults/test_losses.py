"""A worker is lost in a step: its slots come back truncated and go on afresh, the others notice nothing."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

from clusterenv import WorkerLost
from tests.faults.kit import (
    LIMIT_S,
    MODES,
    SHORT_S,
    Gate,
    OnceEnv,
    actions,
    batch,
    each,
    ended,
    hurried,
    kill,
    lost,
    mask,
    patient,
    wait_for_answers,
)
from tests.node.worlds import ReadyWhenTold
from tests.zoo import CountingEnv, counting, wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    from clusterenv import ClusterEnv

DEATHS = ["kill", "segfault", "exit", "hang"]
CAUSES = {
    "kill": "its process was ended by signal 9 (SIGKILL)",
    "segfault": "its process was ended by signal 11 (SIGSEGV)",
    "exit": "its process ended with exit code 3",
    "hang": f"no answer to a step within {SHORT_S} s",
}
NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


def doomed(how: str, tmp_path: pathlib.Path, slot: int = 1, life: int = 3, **kwargs: Any) -> list[Callable[[], Any]]:
    """Four slots on two workers; one of the first worker's dies once, at this step of its life."""
    note = str(tmp_path / "note")
    fns = counting(4, **kwargs)
    fns[slot] = lambda: OnceEnv(slot, how, note, life=life, **kwargs)
    return fns


def fateful_step(envs: ClusterEnv, how: str, tmp_path: pathlib.Path) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
    """The step in which the doomed one dies, or hangs while the others have answered."""
    envs.step_async(actions(envs))
    wait_until((tmp_path / "note").exists, LIMIT_S)
    wait_for_answers(envs, 1)
    with hurried(envs) if how == "hang" else contextlib.nullcontext():
        return envs.step_wait()


def go_on(envs: ClusterEnv) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
    """The step after a loss, by the rules of each mode: returns what shows the fresh environments."""
    if envs.autoreset_mode is DISABLED:
        observations, infos = envs.reset(options=mask(envs, 0, 1))
        zeros = np.zeros(4)
        return observations, zeros, zeros.astype(bool), zeros.astype(bool), infos
    return envs.step(actions(envs))


@pytest.mark.fault("F01")
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("how", DEATHS)
def test_restart(how: str, mode: AutoresetMode, tmp_path: pathlib.Path) -> None:
    with batch(doomed(how, tmp_path), autoreset_mode=mode, timeouts=patient(), on_loss="restart") as envs:
        envs.reset(seed=5)
        for step in (1, 2):
            observations = envs.step(actions(envs))[0]
            assert observations.tolist() == [[slot, step] for slot in range(4)]
        before = envs.worker_pids()
        observations, rewards, terminated, truncated, infos = fateful_step(envs, how, tmp_path)
        assert truncated.tolist() == [True, True, False, False]
        assert not terminated.any()
        assert rewards.tolist() == [0, 0, 1, 1]
        assert lost(infos, 4) == [True, True, False, False]
        assert observations[2:].tolist() == [[2, 3], [3, 3]], "the other worker's slots go on"
        if mode is SAME:
            assert observations[:2].tolist() == [[0, 0], [1, 0]], "already in the next episode"
            assert infos["_final_obs"].tolist() == [True, True, False, False]
            assert [row[0] for row in infos["final_obs"][:2]] == [0, 1], "of its own slot"
        else:
            observations, rewards, _, truncated, infos = go_on(envs)
            assert observations[:2].tolist() == [[0, 0], [1, 0]], "the observation of a reset"
            assert rewards[:2].tolist() == [0, 0]
            assert not truncated.any()
            assert not any(lost(infos, 4))
        observations = envs.step(actions(envs))[0]
        assert observations[:2].tolist() == [[0, 1], [1, 1]]
        after = envs.worker_pids()
        assert after[1] == before[1]
        assert after[0] not in (before[0], None)


@pytest.mark.fault("F02")
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("how", DEATHS)
def test_raise(how: str, mode: AutoresetMode, tmp_path: pathlib.Path) -> None:
    with batch(doomed(how, tmp_path), autoreset_mode=mode, timeouts=patient(), on_loss="raise") as envs:
        envs.reset(seed=5)
        for _ in (1, 2):
            envs.step(actions(envs))
        with pytest.raises(WorkerLost) as caught:
            fateful_step(envs, how, tmp_path)
        error = caught.value
        assert (error.worker, error.slots, error.cause) == (0, range(2), CAUSES[how])
        assert (error.slot, error.seed, error.step) == (1, 6, 3)
        with pytest.raises(ResetNeeded, match="Call reset"):
            envs.step(actions(envs))
        observations, _ = envs.reset(seed=7)
        assert observations.tolist() == [[slot, 0] for slot in range(4)]
        assert envs.get_attr("last_seed") == (7, 8, 9, 10)
        assert envs.step(actions(envs))[0].tolist() == [[slot, 1] for slot in range(4)]


@pytest.mark.fault("F03")
def test_a_stopped_worker_is_lost_at_the_limit_and_ended() -> None:
    with batch(counting(4), timeouts=patient()) as envs:
        envs.reset(seed=1)
        pid = kill(envs, 0, signal.SIGSTOP)
        envs.step_async(actions(envs))
        wait_for_answers(envs, 1)
        with hurried(envs):
            truncated, infos = envs.step_wait()[3:]
        assert truncated.tolist() == [True, True, False, False]
        assert lost(infos, 4) == [True, True, False, False]
        assert envs.step(actions(envs))[0].tolist() == [[0, 0], [1, 0], [2, 2], [3, 2]]
        assert pid not in envs.worker_pids()


@pytest.mark.fault("F04")
def test_a_worker_that_is_paused_for_less_than_the_limit_is_not_lost() -> None:
    with batch(counting(2)) as envs:
        envs.reset(seed=1)
        kill(envs, 0, signal.SIGSTOP)
        envs.step_async(actions(envs))
        kill(envs, 0, signal.SIGCONT)
        observations, _, _, truncated, infos = envs.step_wait()
        assert observations.tolist() == [[0, 1], [1, 1]]
        assert not truncated.any()
        assert infos == {}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_killed_between_two_steps(mode: AutoresetMode) -> None:
    with batch(counting(4), autoreset_mode=mode) as envs:
        envs.reset(seed=1)
        envs.step(actions(envs))
        kill(envs, 0)
        observations, rewards, _, truncated, infos = envs.step(actions(envs))
        assert truncated.tolist() == [True, True, False, False]
        assert rewards.tolist() == [0, 0, 1, 1]
        assert lost(infos, 4) == [True, True, False, False]
        assert observations[2:].tolist() == [[2, 2], [3, 2]]
        final = observations[:2] if mode is not SAME else np.stack(list(infos["final_obs"][:2]))
        assert final.tolist() == [[0, 1], [1, 1]], "what was seen last"
        if mode is not SAME:
            observations = go_on(envs)[0]
        assert observations[:2].tolist() == [[0, 0], [1, 0]]


@pytest.mark.fault("F12")
@pytest.mark.parametrize("on_loss", ["restart", "raise"])
def test_all_workers_lost(on_loss: str) -> None:
    with batch(counting(4), on_loss=on_loss) as envs:
        envs.reset(seed=1)
        envs.step(actions(envs))
        for worker in (0, 1):
            kill(envs, worker)
        if on_loss == "raise":
            with pytest.raises(WorkerLost, match="SIGKILL"):
                envs.step(actions(envs))
            assert envs.reset(seed=1)[0].tolist() == [[slot, 0] for slot in range(4)]
        else:
            _, _, _, truncated, infos = envs.step(actions(envs))
            assert truncated.all()
            assert all(lost(infos, 4))
            assert envs.step(actions(envs))[0].tolist() == [[slot, 0] for slot in range(4)]


def test_a_worker_may_be_lost_again_and_again_if_it_gets_anywhere_in_between() -> None:
    with batch(counting(2, length=1000)) as envs:
        envs.reset(seed=1)
        for _ in range(6):
            kill(envs, 0)
            assert envs.step(actions(envs))[3].tolist() == [True, False]
            for _ in range(11):
                assert not envs.step(actions(envs))[3].any()


def test_who_was_replaced_is_forgotten() -> None:
    with batch(counting(4)) as envs:
        envs.reset(seed=1)
        supervisor = envs._engine.node._workers.supervisor  # type: ignore[attr-defined]
        for _ in range(2):
            kill(envs, 0)
            for _ in range(3):
                envs.step(actions(envs))
        assert len([pid for pid in envs.worker_pids() if pid in supervisor._pids.values()]) == 2
        assert (len(supervisor._pids), supervisor._exits) == (2, {})


def test_a_loss_is_logged_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    with batch(counting(2)) as envs, caplog.at_level(logging.WARNING, logger="clusterenv"):
        envs.reset(seed=1)
        kill(envs, 1)
        envs.step(actions(envs))
    assert "worker 1 is lost (its process was ended by signal 9 (SIGKILL)); starting another" in caplog.text


def test_a_worker_that_was_killed_is_not_called_late_because_another_is(caplog: pytest.LogCaptureFixture) -> None:
    fns = counting(2, plans={0: {1: "hang"}, 1: {1: "kill"}})
    with batch(fns, timeouts=patient()) as envs, caplog.at_level(logging.WARNING, logger="clusterenv"):
        envs.reset(seed=1)
        process = psutil.Process(envs.worker_pids()[1])
        envs.step_async(actions(envs))
        wait_until(lambda: ended(process), LIMIT_S)
        with hurried(envs):
            envs.step_wait()
    assert "worker 0 is lost (no answer to a step within 0.5 s)" in caplog.text
    assert "worker 1 is lost (its process was ended by signal 9 (SIGKILL))" in caplog.text


def test_replacements_get_the_same_fresh_seeds_in_every_run() -> None:
    seeds = []
    for _ in range(2):
        with batch(counting(4)) as envs:
            envs.reset(seed=11)
            kill(envs, 0)
            for _ in range(2):
                envs.step(actions(envs))
            seeds.append(envs.get_attr("last_seed"))
    assert seeds[0] == seeds[1]
    assert seeds[0][2:] == (13, 14), "the others keep theirs"
    assert len({*seeds[0], 11, 12}) == 6, "the fresh ones are new"


def test_with_autoreset_disabled_replacements_get_their_fresh_seeds_from_the_reset_that_follows() -> None:
    seeds = []
    for _ in range(2):
        with batch(counting(4), autoreset_mode="Disabled") as envs:
            envs.reset(seed=11)
            kill(envs, 0)
            truncated = envs.step(actions(envs))[3]
            envs.reset(options={"reset_mask": truncated})
            seeds.append(envs.get_attr("last_seed"))
    assert seeds[0] == seeds[1]
    assert len({*seeds[0], 11, 12}) == 6
    assert None not in seeds[0]


def test_infos_of_the_others_arrive_with_the_loss() -> None:
    with batch(counting(4, infos=True)) as envs:
        envs.reset(seed=1)
        kill(envs, 0)
        infos = envs.step([0, 1, 2, 1])[4]
        assert infos["_action"].tolist() == [False, False, True, True]
        assert infos["action"][2:].tolist() == [2, 1]
        assert infos["_worker_lost"].tolist() == [True, True, False, False]


def test_observations_that_fit_no_array_survive_a_loss() -> None:
    from tests.faults.envs import TextEnv

    with batch(each(4, TextEnv)) as envs:
        envs.reset(seed=1)
        envs.step(("a",) * 4)
        kill(envs, 0)
        observations, _, _, truncated, _ = envs.step(("b",) * 4)
        assert truncated.tolist() == [True, True, False, False]
        assert observations == ("slot 0 step 1 a", "slot 1 step 1 a", "slot 2 step 2 ab", "slot 3 step 2 ab")
        assert envs.step(("c",) * 4)[0][:2] == ("slot 0 step 0 ", "slot 1 step 0 ")


@pytest.mark.parametrize("on_loss", ["restart", "raise"])
def test_a_vectorised_block_that_is_lost(on_loss: str) -> None:
    from clusterenv import ClusterEnv
    from tests.faults.envs import vectorised

    envs = ClusterEnv.from_blocks(vectorised, 4, cluster="local:2", on_loss=on_loss)
    try:
        envs.reset(seed=1)
        envs.step(actions(envs))
        kill(envs, 0)
        if on_loss == "raise":
            with pytest.raises(WorkerLost, match="SIGKILL"):
                envs.step(actions(envs))
            envs.reset(seed=1)
        else:
            observations, _, _, truncated, infos = envs.step(actions(envs))
            assert truncated.tolist() == [True, True, False, False]
            assert observations[2:, 1].tolist() == [2, 2]
            assert infos["_worker_lost"].tolist() == [True, True, False, False]
            assert envs.step(actions(envs))[0][:, 1].tolist() == [0, 0, 3, 3]
        assert envs.step(actions(envs))[0][:2, 1].tolist() == [1, 1]
    finally:
        envs.close()


def test_a_vectorised_block_that_is_lost_while_it_writes(tmp_path: pathlib.Path) -> None:
    """All of its rows may be half old and half new, and are zeros; nobody gets parts of two observations."""
    from clusterenv import ClusterEnv
    from tests.faults.envs import TornEnvs

    note = str(tmp_path / "note")
    with contextlib.closing(ClusterEnv.from_blocks(lambda count: TornEnvs(count, note), 4, cluster="local:2")) as envs:
        envs.reset(seed=1)
        envs.step(actions(envs))
        (tmp_path / "note").touch()  # whoever writes next dies, and takes the note away
        observations, _, _, truncated, _ = envs.step(actions(envs))
        assert sorted(truncated.tolist()) == [False, False, True, True]
        assert observations["first"][~truncated].tolist() == observations["second"][~truncated].tolist() == [2, 2]
        assert observations["first"][truncated].tolist() == observations["second"][truncated].tolist() == [0, 0]


def test_a_replacement_that_is_lost_before_it_had_an_episode_is_one_loss(tmp_path: pathlib.Path) -> None:
    """Its slots have been truncated once: there is nothing more to tell."""
    fns: list[Callable[[], Any]] = [functools.partial(ReadyWhenTold, str(tmp_path), slot=slot) for slot in range(2)]
    with batch(fns, timeouts=patient()) as envs:
        envs.reset(seed=1)
        (tmp_path / "stepped").touch()
        first = envs.worker_pids()[0]
        kill(envs, 0)
        assert envs.step(actions(envs))[3].tolist() == [True, False]

        def kill_the_next() -> None:
            node = envs._engine.node
            wait_until(lambda: node.pids()[0] not in (first, None), LIMIT_S)
            os.kill(node.pids()[0] or 0, signal.SIGKILL)
            (tmp_path / "built").touch()

        killer = threading.Thread(target=kill_the_next)
        killer.start()
        observations, _, _, truncated, infos = envs.step(actions(envs))
        killer.join()
        assert observations.tolist() == [[0, 0], [1, 2]]
        assert truncated.tolist() == [False, False]
        assert "worker_lost" not in infos
        assert envs.restarts == 2


def test_an_environment_that_raises_in_the_first_reset_of_a_replacement_is_told_of_once(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    note = tmp_path / "note"
    note.touch()
    fns: list[Callable[[], Any]] = [functools.partial(OnceEnv, slot, "raise", str(note), at="reset") for slot in (0, 1)]
    with batch(fns, autoreset_mode="SameStep") as envs:
        envs.reset(seed=1)
        note.unlink()
        kill(envs, 0)
        assert envs.step(actions(envs))[3].tolist() == [True, False]
        told = [text for text in caplog.messages if "slot 0 raised in reset and was replaced" in text]
        assert len(told) == 1, "twice would also count twice towards a crash loop"


def test_two_batches_at_once_do_not_meet() -> None:
    with batch(counting(2)) as one, batch([lambda: CountingEnv(7), lambda: CountingEnv(8)]) as two:
        one.reset(seed=1)
        two.reset(seed=1)
        kill(one, 0)
        assert one.step(actions(one))[3].tolist() == [True, False]
        observations, _, _, truncated, _ = two.step(actions(two))
        assert observations.tolist() == [[7, 1], [8, 1]]
        assert not truncated.any()
        one.close()
        assert two.step(actions(two))[0].tolist() == [[7, 2], [8, 2]]


def test_a_dead_worker_is_noticed_while_another_is_still_at_work(tmp_path: pathlib.Path) -> None:
    gate = Gate(tmp_path)
    with batch([gate.env(0), *each(2, CountingEnv)[1:]]) as envs:
        envs.reset(seed=1)
        kill(envs, 1)
        stepping = threading.Thread(target=envs.step, args=(actions(envs),))
        stepping.start()
        try:
            gate.wait()
            wait_until(lambda: envs.workers_ready == 1, LIMIT_S)
        finally:
            gate.open()
            stepping.join(LIMIT_S)
        assert not stepping.is_alive()
