"""Autoreset: NEXT_STEP, SAME_STEP and DISABLED, step by step and against SyncVectorEnv."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from clusterenv.errors import ConfigError
from tests.env.kit import ReusingEnv, SpaceEnv, WalkEnv, assert_same, trajectory
from tests.zoo import CountingEnv, counting

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterenv import ClusterEnv

    Make = Callable[..., ClusterEnv]

MODES = list(AutoresetMode)


def uneven(*lengths: int, **kwargs: Any) -> list[Any]:
    """Counting environments whose episodes have these lengths."""
    return [_sized(slot, length, kwargs) for slot, length in enumerate(lengths)]


def _sized(slot: int, length: int, kwargs: dict[str, Any]) -> Callable[[], CountingEnv]:
    return lambda: CountingEnv(slot, length, **kwargs)


# How the mode is told.


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_by_enum_value_or_name(make_here: Make, mode: AutoresetMode) -> None:
    for spelling in (mode, mode.value, mode.name):
        envs = make_here(counting(1), autoreset_mode=spelling)
        assert envs.autoreset_mode is mode
        assert envs.metadata["autoreset_mode"] is mode


def test_the_default_is_the_default_of_gymnasium(make_here: Make) -> None:
    assert make_here(counting(1)).autoreset_mode is AutoresetMode.NEXT_STEP


@pytest.mark.parametrize("mode", ["NextStp", "", None, 3, "nextstep"])
def test_an_unknown_mode_is_refused(make_here: Make, mode: Any) -> None:
    with pytest.raises(ConfigError, match=r"NextStep.*SameStep"):
        make_here(counting(1), autoreset_mode=mode)


def test_the_metadata_of_the_class_is_left_alone(make_here: Make) -> None:
    one = make_here(counting(1), autoreset_mode="SameStep")
    other = make_here(counting(1), autoreset_mode="Disabled")
    assert one.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert other.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    assert "autoreset_mode" not in CountingEnv.metadata
    assert one.metadata["render_modes"] == ["rgb_array"]


# NEXT_STEP.


def test_next_step_resets_with_the_step_after_the_end(make: Make) -> None:
    envs = make(uneven(2, 3, infos=True))
    envs.reset()
    seen = [envs.step([1, 2]) for _ in range(5)]
    np.testing.assert_array_equal([row[0][:, 1] for row in seen], [[1, 1], [2, 2], [0, 3], [1, 0], [2, 1]])
    np.testing.assert_array_equal([row[1] for row in seen], [[1, 2], [1, 2], [0, 2], [1, 0], [1, 2]])
    np.testing.assert_array_equal([row[2] for row in seen], [[0, 0], [1, 0], [0, 1], [0, 0], [1, 0]])
    # The reset's info in slot 0, the step's in slot 1.
    assert_same(
        seen[2][4],
        {
            "started": np.array([True, False]),
            "_started": np.array([True, False]),
            "action": np.array([0, 2]),
            "_action": np.array([False, True]),
        },
    )


def test_next_step_has_no_final_keys(make: Make) -> None:
    envs = make(uneven(1, 1, infos=True))
    envs.reset()
    for _ in range(4):
        infos = envs.step([1, 1])[4]
        assert not {"final_obs", "final_info"} & infos.keys()


def test_next_step_ignores_the_action_of_the_reset(make: Make) -> None:
    envs = make(uneven(1, 5))
    envs.reset()
    envs.step([2, 2])
    _, rewards, terminated, truncated, _ = envs.step([2, 2])
    np.testing.assert_array_equal(rewards, [0, 2])
    assert not terminated.any()
    assert not truncated.any()
    assert envs.get_attr("life") == (1, 2), "the reset took the place of the step"


# SAME_STEP.


def test_same_step_resets_within_the_step(make: Make) -> None:
    envs = make(uneven(2, 3, infos=True), autoreset_mode="SameStep")
    envs.reset()
    seen = [envs.step([1, 2]) for _ in range(4)]
    np.testing.assert_array_equal([row[0][:, 1] for row in seen], [[1, 1], [0, 2], [1, 0], [0, 1]])
    np.testing.assert_array_equal([row[1] for row in seen], [[1, 2]] * 4)
    np.testing.assert_array_equal(
        [row[2] for row in seen], [[False, False], [True, False], [False, True], [True, False]]
    )
    infos = seen[1][4]
    ended = np.array([True, False])
    assert infos["final_obs"].dtype == object
    np.testing.assert_array_equal(infos["final_obs"][0], [0, 2])
    assert infos["final_obs"][1] is None
    np.testing.assert_array_equal(infos["_final_obs"], ended)
    np.testing.assert_array_equal(infos["_final_info"], ended)
    assert_same(infos["final_info"], {"action": np.array([1, 0]), "_action": ended})
    # What the reset told is outside, next to what the step of slot 1 told.
    np.testing.assert_array_equal(infos["_started"], ended)
    np.testing.assert_array_equal(infos["_action"], ~ended)


def test_same_step_has_no_final_keys_while_nothing_ends(make: Make) -> None:
    envs = make(uneven(5, 5), autoreset_mode="SameStep")
    envs.reset()
    assert envs.step([1, 1])[4] == {}


def test_same_step_keeps_what_the_environment_overwrites(make: Make) -> None:
    envs = make([ReusingEnv] * 2, autoreset_mode="SameStep")
    envs.reset()
    envs.step(np.ones((2, 2)))
    observations, _, terminated, _, infos = envs.step(np.ones((2, 2)))
    assert terminated.all()
    np.testing.assert_array_equal(observations, np.zeros((2, 2)))
    for final in infos["final_obs"]:
        np.testing.assert_array_equal(final, [2.0, 2.0])
    np.testing.assert_array_equal(infos["final_info"]["inner"]["step"], [2, 2])


# DISABLED.


def test_disabled_needs_a_reset_by_name(make: Make) -> None:
    envs = make(uneven(2, 3, 4, 5), autoreset_mode="Disabled")
    envs.reset()
    envs.step([1] * 4)
    _, _, terminated, truncated, _ = envs.step([1] * 4)
    np.testing.assert_array_equal(terminated, [True, False, False, False])
    for act in (lambda: envs.step([1] * 4), lambda: envs.step_async([1] * 4), lambda: envs.send([1] * 4)):
        with pytest.raises(gymnasium.error.ResetNeeded, match="slot 0"):
            act()
    assert envs.get_attr("life") == (2, 2, 2, 2), "nothing was stepped"
    observations, _ = envs.reset(options={"reset_mask": terminated | truncated})
    np.testing.assert_array_equal(observations[:, 1], [0, 2, 2, 2])
    observations, rewards, terminated, _, _ = envs.step([2] * 4)
    np.testing.assert_array_equal(observations[:, 1], [1, 3, 3, 3])
    np.testing.assert_array_equal(rewards, [2, 2, 2, 2])
    np.testing.assert_array_equal(terminated, [False, True, False, False])


def test_disabled_lets_other_slots_go_on_by_send(make: Make) -> None:
    envs = make(uneven(1, 3), autoreset_mode="Disabled")
    envs.reset()
    assert envs.step([1, 1])[2][0]
    with pytest.raises(gymnasium.error.ResetNeeded, match="slot 0"):
        envs.send([1], [0])
    envs.send([1], [1])
    assert envs.recv()[4]["env_id"].tolist() == [1]


def test_disabled_tells_the_last_observation(make: Make) -> None:
    envs = make(uneven(2, 2), autoreset_mode="Disabled")
    envs.reset()
    envs.step([1, 1])
    observations, *_, infos = envs.step([1, 1])
    np.testing.assert_array_equal(observations[:, 1], [2, 2])
    assert infos == {}


# All modes, against the reference.


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_long_run_is_that_of_sync_vector_env(make: Make, mode: AutoresetMode) -> None:
    ours = make([WalkEnv] * 5, autoreset_mode=mode)
    theirs = SyncVectorEnv([WalkEnv] * 5, autoreset_mode=mode)
    one, other = trajectory(ours, 80, seed=3), trajectory(theirs, 80, seed=3)
    assert_same(one, other)
    assert sum(int(row[2].sum()) for row in one[1:]) > 5
    assert sum(int(row[3].sum()) for row in one[1:]) > 5


def test_a_long_run_without_autoreset_is_that_of_sync_vector_env(make: Make) -> None:
    ours = make([WalkEnv] * 5, autoreset_mode="Disabled")
    theirs = SyncVectorEnv([WalkEnv] * 5, autoreset_mode=AutoresetMode.DISABLED)
    assert_same(ours.reset(seed=3), theirs.reset(seed=3))
    ours.action_space.seed(3)
    resets = 0
    for _ in range(80):
        actions = ours.action_space.sample()
        one = ours.step(actions)
        assert_same(one, theirs.step(actions))
        done = one[2] | one[3]
        if done.any():
            resets += 1
            assert_same(ours.reset(options={"reset_mask": done}), theirs.reset(options={"reset_mask": done.copy()}))
    assert resets > 5


@pytest.mark.parametrize("mode", MODES)
def test_termination_and_truncation_both_end_an_episode(make: Make, mode: AutoresetMode) -> None:
    ends = [(False, False), (True, False), (False, True), (True, True)]
    script = [[{"reset": slot}, (1.0, *end, {"end": slot})] for slot, end in enumerate(ends)]
    ours = make([_scripted(slot) for slot in range(4)], autoreset_mode=mode)
    theirs = SyncVectorEnv([_scripted(slot) for slot in range(4)], autoreset_mode=mode)
    for envs in (ours, theirs):
        envs.reset(seed=1, options={"script": script})
    actions = np.arange(4)
    one = ours.step(actions)
    assert_same(one, theirs.step(actions))
    np.testing.assert_array_equal(one[2] | one[3], [False, True, True, True])
    if mode is not AutoresetMode.DISABLED:
        assert_same(ours.step(actions), theirs.step(actions))


def _scripted(slot: int) -> Callable[[], SpaceEnv]:
    return lambda: SpaceEnv(gymnasium.spaces.Box(0, 1, (2,)), slot=slot)
