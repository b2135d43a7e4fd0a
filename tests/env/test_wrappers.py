"""Gymnasium's vector wrappers on top, with the answers that they give on top of SyncVectorEnv."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper
from gymnasium.wrappers import vector as wrappers

from tests.env.kit import SpaceEnv, WalkEnv, assert_same, trajectory
from tests.zoo import CountingEnv, counting

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    from clusterenv import ClusterEnv

    Make = Callable[..., ClusterEnv]

BOX = spaces.Box(-5, 5, (3,), np.float32)


def _clip(env: Any) -> Any:
    return wrappers.ClipReward(env, -1.0, 1.0)


# Each works in every mode that Gymnasium lets it work in.
ON_TOP: dict[str, Callable[[Any], Any]] = {
    "record-episode-statistics": wrappers.RecordEpisodeStatistics,
    "normalize-observation": wrappers.NormalizeObservation,
    "normalize-reward": wrappers.NormalizeReward,
    "transform-reward": lambda env: wrappers.TransformReward(env, lambda reward: 2 * reward + 1),
    "clip-reward": _clip,
    "transform-observation": lambda env: wrappers.TransformObservation(env, lambda obs: obs * 2),
    "vectorize-transform-observation": lambda env: wrappers.VectorizeTransformObservation(
        env, gymnasium.wrappers.TransformObservation, func=lambda obs: obs + 1, observation_space=BOX
    ),
    "flatten-observation": wrappers.FlattenObservation,
    "dtype-observation": lambda env: wrappers.DtypeObservation(env, np.float64),
    "transform-action": lambda env: wrappers.TransformAction(env, lambda action: action / 2),
    "clip-action": wrappers.ClipAction,
    "rescale-action": lambda env: wrappers.RescaleAction(env, np.zeros(3, np.float32), np.ones(3, np.float32)),
    "dict-info-to-list": wrappers.DictInfoToList,
    "several": lambda env: wrappers.NormalizeReward(_clip(wrappers.RecordEpisodeStatistics(env))),
}
NEXT_STEP_ONLY = ("normalize-observation", "transform-observation", "vectorize-transform", "flatten", "dtype-obs")


def without_times(value: Any) -> Any:
    """Everything but how long an episode took."""
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in ("t", "_t")}
    if isinstance(value, (tuple, list)):
        return type(value)(without_times(item) for item in value)
    return value


@pytest.mark.parametrize("name", ON_TOP)
def test_a_wrapper_answers_as_on_sync_vector_env(make_here: Make, name: str) -> None:
    wrap = ON_TOP[name]
    for mode in AutoresetMode:
        if mode is AutoresetMode.DISABLED or (mode is AutoresetMode.SAME_STEP and name.startswith(NEXT_STEP_ONLY)):
            continue
        ours = wrap(make_here([WalkEnv] * 3, autoreset_mode=mode))
        theirs = wrap(SyncVectorEnv([WalkEnv] * 3, autoreset_mode=mode))
        assert ours.observation_space == theirs.observation_space
        assert ours.single_action_space == theirs.single_action_space
        assert_same(
            [without_times(answer) for answer in trajectory(ours, 40, seed=2)],
            [without_times(answer) for answer in trajectory(theirs, 40, seed=2)],
        )


def test_wrappers_on_workers(make_local: Make) -> None:
    wrap = ON_TOP["several"]
    ours, theirs = wrap(make_local([WalkEnv] * 3)), wrap(SyncVectorEnv([WalkEnv] * 3))
    assert_same(
        [without_times(answer) for answer in trajectory(ours, 40, seed=2)],
        [without_times(answer) for answer in trajectory(theirs, 40, seed=2)],
    )


@pytest.mark.parametrize("name", ["normalize-observation", "transform-observation"])
def test_wrappers_that_refuse_same_step_refuse_ours(make_here: Make, name: str) -> None:
    with pytest.raises((ValueError, TypeError, AssertionError)) as theirs:
        ON_TOP[name](SyncVectorEnv([WalkEnv], autoreset_mode=AutoresetMode.SAME_STEP))
    with pytest.raises(type(theirs.value)):
        ON_TOP[name](make_here([WalkEnv], autoreset_mode=AutoresetMode.SAME_STEP))


def test_statistics_of_episodes(make: Make) -> None:
    envs = wrappers.RecordEpisodeStatistics(make(counting(2, length=3)))
    envs.reset()
    for _ in range(2):
        assert "episode" not in envs.step(np.array([1, 2]))[4]
    infos = envs.step(np.array([1, 2]))[4]
    np.testing.assert_array_equal(infos["episode"]["r"], [3, 6])
    np.testing.assert_array_equal(infos["episode"]["l"], [3, 3])


def test_statistics_with_a_masked_reset(make: Make) -> None:
    envs = wrappers.RecordEpisodeStatistics(make(counting(2, length=3), autoreset_mode="Disabled"))
    envs.reset()
    envs.step(np.array([1, 1]))
    envs.reset(options={"reset_mask": np.array([True, False])})
    envs.step(np.array([1, 1]))
    infos = envs.step(np.array([1, 1]))[4]
    np.testing.assert_array_equal(infos["_episode"], [False, True])
    np.testing.assert_array_equal(infos["episode"]["l"], [0, 3])


def test_dict_info_to_list(make: Make) -> None:
    class Sometimes(CountingEnv):
        def step(self, action: Any) -> Any:
            *rest, _ = super().step(action)
            return (*rest, {"n": {"a": 1}, "t": "x"} if action else {})

    envs = wrappers.DictInfoToList(make([Sometimes] * 3))
    envs.reset()
    infos = envs.step(np.array([0, 1, 0]))[4]
    assert infos == [{}, {"n": {"a": 1}, "t": "x"}, {}]


def test_numpy_to_torch(make: Make) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    pytest.importorskip("array_api_compat", reason="needs array-api-compat")
    envs = wrappers.NumpyToTorch(make([WalkEnv] * 2))
    observations, _ = envs.reset(seed=1)
    assert isinstance(observations, torch.Tensor)
    observations, rewards, terminated, *_ = envs.step(torch.zeros((2, 3)))
    assert isinstance(rewards, torch.Tensor)
    assert terminated.dtype == torch.bool


def test_a_tensor_is_an_action(make: Make) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    envs = make(counting(2))
    envs.reset()
    np.testing.assert_array_equal(envs.step(torch.tensor([2, 1]))[1], [2, 1])


def test_our_extras_are_behind_unwrapped(make_here: Make) -> None:
    base = make_here(counting(2))
    envs: Any = VectorWrapper(VectorWrapper(base))
    assert envs.unwrapped is base
    assert envs.unwrapped.get_attr("slot") == (0, 1)
    assert envs.metadata is base.metadata
    assert envs.num_envs == 2
    assert "ClusterEnv(num_envs=2)" in repr(envs)
    envs.close(timeout=1)
    assert base.closed


def test_human_rendering(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    pygame = pytest.importorskip("pygame", reason="needs pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    envs = wrappers.HumanRendering(make([lambda: WalkEnv(render_mode="rgb_array")] * 2), screen_size=(64, 32))
    assert envs.render_mode == "human"
    envs.reset(seed=0)
    envs.step(np.zeros((2, 3), np.float32))
    assert pygame.display.get_surface().get_size() == (64, 32)
    envs.close()


@pytest.mark.skipif(importlib.util.find_spec("moviepy") is None, reason="needs moviepy")
def test_record_video(make: Make, tmp_path: pathlib.Path) -> None:
    envs = wrappers.RecordVideo(
        make([lambda: WalkEnv(render_mode="rgb_array")] * 2), str(tmp_path), episode_trigger=lambda number: True
    )
    envs.action_space.seed(0)
    envs.reset(seed=0)
    for _ in range(30):
        envs.step(envs.action_space.sample())
    envs.close()
    assert list(tmp_path.glob("*.mp4"))


def test_nested_observations_can_be_flattened(make: Make) -> None:
    space = spaces.Dict(a=spaces.Box(0, 1, (2,)), b=spaces.Discrete(3))
    factories = [lambda: SpaceEnv(space)] * 2
    ours = wrappers.FlattenObservation(make(factories))
    theirs = wrappers.FlattenObservation(SyncVectorEnv(factories))
    assert_same(trajectory(ours, 6, seed=1), trajectory(theirs, 6, seed=1))


def test_a_reset_of_some_slots_leaves_the_statistics_of_others(make: Make) -> None:
    # SyncVectorEnv takes the mask out of the options; then the wrapper does not see it and forgets all episodes.
    envs = wrappers.RecordEpisodeStatistics(make(counting(2, length=4), autoreset_mode="Disabled"))
    envs.reset(seed=1)
    envs.step(np.array([1, 1]))
    envs.reset(options={"reset_mask": np.array([True, False])})
    assert envs.episode_lengths.tolist() == [0, 1]
    for _ in range(3):
        infos = envs.step(np.array([1, 1]))[4]
    assert infos["episode"]["l"].tolist() == [0, 4]
