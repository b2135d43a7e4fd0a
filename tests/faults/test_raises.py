"""An environment raises: its own exception, with slot, seed, step and traceback; or a fresh one in its place."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

from clusterenv import ClusterEnv, EnvError, ResultError
from tests.faults.envs import BadInfoEnv, MuteEnv, RewardEnv, TextEnv, vectorised_with_a_lock
from tests.faults.kit import MODES, OnceEnv, actions, batch, each, lost, mask
from tests.zoo import counting

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

CLUSTERS = ["local:2", "inproc:2"]
SAME, DISABLED = AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


def raising(tmp_path: pathlib.Path, *, at: str = "step", life: int = 3, **kwargs: Any) -> list[Callable[[], Any]]:
    """Four slots; slot 1 raises once."""
    note = str(tmp_path / "note")
    fns = counting(4, **kwargs)
    fns[1] = lambda: OnceEnv(1, "raise", note, at=at, life=life, **kwargs)
    return fns


@pytest.mark.fault("F06")
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_restart_replaces_that_environment_alone(cluster: str, mode: AutoresetMode, tmp_path: pathlib.Path) -> None:
    with batch(raising(tmp_path), cluster=cluster, autoreset_mode=mode) as envs:
        envs.reset(seed=5)
        pids = envs.worker_pids()
        for _ in (1, 2):
            envs.step(actions(envs))
        observations, rewards, terminated, truncated, infos = envs.step(actions(envs))
        assert truncated.tolist() == [False, True, False, False]
        assert not terminated.any()
        assert rewards.tolist() == [1, 0, 1, 1]
        assert lost(infos, 4) == [False, True, False, False]
        assert infos["env_error"][1] == "ValueError: planned error"
        assert observations[[0, 2, 3]].tolist() == [[0, 3], [2, 3], [3, 3]]
        if mode is SAME:
            assert infos["final_obs"][1].tolist() == [1, 2]
        elif mode is DISABLED:
            observations, _ = envs.reset(options=mask(envs, 1))
        else:
            observations = envs.step(actions(envs))[0]
        assert observations[1].tolist() == [1, 0]
        assert envs.step(actions(envs))[0][1].tolist() == [1, 1]
        assert envs.worker_pids() == pids, "the worker lives on"


@pytest.mark.fault("F06")
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_last_observation_is_kept_too_if_no_array_can_hold_it(cluster: str, mode: AutoresetMode) -> None:
    with batch(each(2, TextEnv, fails_on="no"), cluster=cluster, autoreset_mode=mode) as envs:
        envs.reset(seed=5)
        envs.step(("a", "a"))
        observations, _, _, truncated, infos = envs.step(("b", "no"))
        assert truncated.tolist() == [False, True]
        last = infos["final_obs"][1] if mode is SAME else observations[1]
        assert last == "slot 1 step 1 a"
        assert observations[0] == "slot 0 step 2 ab"
        if mode is SAME:
            assert observations[1] == "slot 1 step 0 "


@pytest.mark.fault("F06")
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_raise_tells_everything_and_a_reset_goes_on(cluster: str, mode: AutoresetMode, tmp_path: pathlib.Path) -> None:
    with batch(raising(tmp_path), cluster=cluster, autoreset_mode=mode, on_loss="raise") as envs:
        envs.reset(seed=5)
        for _ in (1, 2):
            envs.step(actions(envs))
        with pytest.raises(EnvError, match="planned error") as caught:
            envs.step(actions(envs))
        error = caught.value
        assert isinstance(error, ValueError)
        assert (error.slot, error.seed, error.step) == (1, 6, 3)
        assert "zoo.py" in error.remote_traceback
        assert "raise ValueError" in error.remote_traceback
        assert "raised in step" in str(error)
        assert isinstance(error.__cause__, ValueError)
        with pytest.raises(ResetNeeded):
            envs.step(actions(envs))
        assert envs.reset(seed=5)[0].tolist() == [[slot, 0] for slot in range(4)]
        assert envs.step(actions(envs))[0].tolist() == [[slot, 1] for slot in range(4)]


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_reset_that_raises_once_is_tried_in_a_fresh_environment(cluster: str, tmp_path: pathlib.Path) -> None:
    with batch(counting(4), cluster=cluster) as envs:
        envs.reset(seed=1)
    note = tmp_path / "note"
    note.touch()
    with batch(raising(tmp_path, at="reset"), cluster=cluster) as envs:
        envs.reset(seed=1)
        note.unlink()
        assert envs.reset(seed=3)[0].tolist() == [[slot, 0] for slot in range(4)]
        assert note.exists(), "it did raise"
        assert envs.get_attr("last_seed") == (3, 4, 5, 6)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_an_error_in_a_constructor_starts_nothing(cluster: str, tmp_path: pathlib.Path) -> None:
    with (
        pytest.raises(EnvError, match="raised in its constructor: ValueError: planned error") as caught,
        batch(raising(tmp_path, at="build"), cluster=cluster),
    ):
        pass
    assert isinstance(caught.value, ValueError)
    assert (caught.value.slot, caught.value.seed, caught.value.step) == (1, None, None)


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("on_loss", ["restart", "raise"])
def test_an_error_in_a_call_is_raised_and_changes_nothing(cluster: str, on_loss: str) -> None:
    with batch(counting(4), cluster=cluster, on_loss=on_loss) as envs:
        envs.reset(seed=5)
        envs.step(actions(envs))
        with pytest.raises(TypeError) as caught:
            envs.call("double", None, indices=[2])
        error = caught.value
        assert isinstance(error, EnvError)
        assert (error.slot, error.seed, error.step) == (2, 7, 1)
        assert "raised in double" in str(error)
        assert envs.call("double", 4.0) == (8.0,) * 4
        assert envs.step(actions(envs))[0].tolist() == [[slot, 2] for slot in range(4)]


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_an_exception_that_cannot_be_printed_costs_its_slot_only(cluster: str) -> None:
    fns = counting(4)
    fns[1] = lambda: MuteEnv(1)
    with batch(fns, cluster=cluster) as envs:
        envs.reset(seed=1)
        pids = envs.worker_pids()
        truncated, infos = envs.step(actions(envs))[3:]
        assert truncated.tolist() == [False, True, False, False]
        assert lost(infos, 4) == [False, True, False, False]
        assert envs.worker_pids() == pids


def test_an_info_that_cannot_be_pickled_is_an_error_that_names_its_key() -> None:
    fns = counting(4)
    fns[1] = lambda: BadInfoEnv(1, "lock")
    with batch(fns) as envs:
        envs.reset(seed=1)
        with pytest.raises(ResultError, match="'lock'"):
            envs.step(actions(envs))
        envs.reset(seed=1)


def test_an_info_that_cannot_be_loaded_does_not_shift_later_answers() -> None:
    # It can be pickled on the worker, and only the head finds out that it cannot be loaded.
    fns = counting(4, infos=True)
    fns[0] = lambda: BadInfoEnv(0, "poison", infos=True)
    with batch(fns) as envs:
        envs.reset(seed=1)
        with pytest.raises(ResultError, match="poison"):
            envs.step([0, 0, 1, 2])
        envs.reset(seed=1)
        infos = envs.step([0, 2, 2, 1])[4]
        assert infos["action"][1:].tolist() == [2, 2, 1], "these are the infos of this step"


def test_a_result_that_cannot_be_loaded_does_not_shift_later_results() -> None:
    fns = counting(4)
    fns[0] = lambda: BadInfoEnv(0, "poison")
    with batch(fns) as envs:
        envs.reset(seed=1)
        with pytest.raises(ResultError, match="poison"):
            envs.call("poison", indices=[0, 2])
        assert envs.call("double", 3.0) == (6.0,) * 4
        assert envs.get_attr("slot") == (0, 1, 2, 3)


def test_an_info_of_a_vectorised_block_that_cannot_be_pickled_is_an_error_too() -> None:
    envs = ClusterEnv.from_blocks(vectorised_with_a_lock, 4, cluster="local:2")
    try:
        envs.reset(seed=1)
        with pytest.raises(ResultError, match="lock"):
            envs.step(actions(envs))
        assert envs.reset(seed=1)[0][:, 1].tolist() == [0] * 4
    finally:
        envs.close()


@pytest.mark.fault("F58")
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("way", ["step", "recv"])
@pytest.mark.parametrize("reward", ["nan", "inf"])
def test_a_reward_that_is_not_finite_is_told_once(
    cluster: str, way: str, reward: str, caplog: pytest.LogCaptureFixture
) -> None:
    fns = counting(4)
    fns[2] = functools.partial(RewardEnv, 2, float(reward))
    with batch(fns, cluster=cluster) as envs:
        envs.reset(seed=1)
        for _ in range(2):
            if way == "step":
                rewards = envs.step(actions(envs))[1].tolist()
            else:
                envs.send(actions(envs))
                rewards = envs.recv(min_slots=4)[1].tolist()
            assert [str(value) for value in rewards].count(reward) == 1, "it is passed on"
    told = [record.getMessage() for record in caplog.records if "reward" in record.getMessage()]
    assert len(told) == 1
    assert "slot 2" in told[0]
    assert reward in told[0]
