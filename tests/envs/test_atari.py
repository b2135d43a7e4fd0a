"""Atari: the frames that Gymnasium's preprocessing makes, lives as episodes, and whole games in the records."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import clusterenv
from clusterenv.envs import EPISODE_CONTINUES
from clusterenv.envs.games import GAMES

pytest.importorskip("ale_py", reason='ale-py is not installed: pip install "clusterenv[atari]"')
pytest.importorskip("cv2", reason='OpenCV is not installed: pip install "clusterenv[atari]"')

PLAIN: dict[str, Any] = {"noop_max": 0, "fire_reset": False, "episodic_life": False}


def make(game: str = "Breakout", **options: Any) -> Any:
    return gymnasium.make("clusterenv/Atari-v0", game=game, **options).unwrapped


def theirs(game: str, frame_skip: int) -> Any:
    """The same game with Gymnasium's wrappers."""
    import ale_py

    gymnasium.register_envs(ale_py)
    raw = gymnasium.make(f"{game}NoFrameskip-v4")
    return gymnasium.wrappers.AtariPreprocessing(raw, noop_max=0, frame_skip=frame_skip, terminal_on_life_loss=False)


def frame_number(env: Any) -> int:
    return int(env._ale.getEpisodeFrameNumber())


def test_gymnasium_finds_nothing_wrong() -> None:
    check_env(make("Pong", render_mode="rgb_array"), skip_render_check=True)


@pytest.mark.parametrize(
    ("game", "frame_skip"), [("Breakout", 4), ("SpaceInvaders", 4), ("Pong", 4), ("Pong", 2), ("Pong", 1)]
)
def test_frames_and_rewards_are_those_of_gymnasiums_preprocessing(game: str, frame_skip: int) -> None:
    mine, other = make(game, frame_skip=frame_skip, **PLAIN), theirs(game, frame_skip)
    stack, _ = mine.reset(seed=1)
    frame, _ = other.reset(seed=1)
    frames = [frame] * 4
    np.testing.assert_array_equal(stack, frames)
    mine.action_space.seed(0)
    for _ in range(150):
        action = mine.action_space.sample()
        stack, reward, terminated, truncated, _ = mine.step(action)
        frame, *expected = other.step(action)
        assert [reward, terminated, truncated] == expected[:3]
        if terminated:
            break
        frames = [*frames[1:], frame]
        np.testing.assert_array_equal(stack, frames)


def test_an_observation_is_not_overwritten_by_the_next() -> None:
    env = make(**PLAIN)
    first, _ = env.reset(seed=1)
    kept = first.copy()
    for _ in range(5):
        env.step(1)
    np.testing.assert_array_equal(first, kept)


# The start of a game.


def test_a_game_begins_with_some_frames_of_doing_nothing() -> None:
    env = make(noop_max=30, fire_reset=False)
    waited = set()
    for seed in range(40):
        env.reset(seed=seed)
        waited.add(frame_number(env))
    assert min(waited) >= 1
    assert max(waited) <= 30
    assert len(waited) > 10


@pytest.mark.parametrize(("game", "frames"), [("Breakout", 8), ("Freeway", 0)])
def test_the_button_is_pressed_where_a_game_waits_for_it(game: str, frames: int) -> None:
    env = make(game, noop_max=0)
    env.reset(seed=1)
    assert frame_number(env) == frames


def test_the_seed_decides_the_game() -> None:
    def play(seed: int) -> Any:
        env = make("SpaceInvaders", repeat_action_probability=0.25)
        first = env.reset(seed=seed)[0]
        return np.stack([first, *(env.step(k % 6)[0] for k in range(30))])

    np.testing.assert_array_equal(play(3), play(3))
    assert (play(3) != play(4)).any()


# Lives and games.


def lose_a_life(env: Any) -> dict[str, Any]:
    """Let the ball fall."""
    for _ in range(1000):
        _, _, terminated, truncated, info = env.step(0)
        if terminated or truncated:
            return dict(info)
    raise AssertionError("no life was lost")


def test_a_life_is_an_episode_and_the_game_goes_on() -> None:
    env = make()
    env.reset(seed=1)
    assert env._ale.lives() == 5
    for left in (4, 3, 2, 1):
        assert lose_a_life(env) == {EPISODE_CONTINUES: True}
        before = frame_number(env)
        stack, _ = env.reset()
        assert env._ale.lives() == left
        assert frame_number(env) == before + 4 + 8  # one step of nothing, and the button
        assert (stack == stack[0]).all()
    assert lose_a_life(env) == {}
    env.reset()
    assert (env._ale.lives(), frame_number(env) < 50) == (5, True)


def test_without_lives_as_episodes_a_game_is_one() -> None:
    env = make(episodic_life=False)
    env.reset(seed=1)
    env.step(0)
    lives = env._ale.lives()
    for _ in range(300):
        if env.step(1)[2]:
            break
    assert lives == 5
    assert env._ale.lives() == 0


@pytest.mark.parametrize("again", [{"seed": 2}, {}])
def test_a_reset_that_is_not_after_a_lost_life_is_a_new_game(again: dict[str, int]) -> None:
    env = make(noop_max=0)
    env.reset(seed=1)
    if again:
        lose_a_life(env)  # but a seed always begins anew
    else:
        env.step(0)
    env.reset(**again)
    assert frame_number(env) == 8
    assert env._ale.lives() == 5


def test_a_long_game_is_cut() -> None:
    env = make("Pong", max_frames=200, noop_max=0)
    env.reset(seed=1)
    steps = 0
    while True:
        _, _, terminated, truncated, info = env.step(0)
        steps += 1
        if terminated or truncated:
            break
    assert (terminated, truncated, info) == (False, True, {})
    assert steps == (200 - 8) // 4


def test_records_tell_games_not_lives() -> None:
    from clusterenv.learners.common.networks import make_network

    with clusterenv.make_vec("clusterenv/AtariBreakout-v0", 2, cluster="local:2") as envs:
        envs.reset(seed=1)
        network = make_network(envs.single_observation_space, envs.single_action_space, body="shallow")
        envs.attach(network, seed=5, sync="never", runtime="onnx")
        batch = envs.rollout(500)
    assert batch.obs.dtype == np.uint8
    assert batch.obs.shape == (501, 2, 4, 84, 84)
    lives = len(batch.final_at[0])
    games = len(batch.episodes.returns)
    assert games >= 2
    assert lives >= 5 * games
    for slot in (0, 1):
        mine = batch.episodes.slots == slot
        ends = np.cumsum(batch.episodes.lengths[mine])
        sums = np.diff(np.concatenate([[0.0], batch.reward[:, slot].cumsum()[ends - 1]]))
        np.testing.assert_array_equal(batch.episodes.returns[mine], sums)
        assert batch.terminated[ends - 1, slot].all()


# What is refused, and what is known.


def test_all_57_games_are_registered_and_there() -> None:
    from clusterenv.envs.atari import _rom_of

    assert len(GAMES) == 57
    for game in GAMES:
        assert f"clusterenv/Atari{game}-v0" in gymnasium.registry
        assert _rom_of(game)


def test_the_screen_is_shown_in_colours() -> None:
    env = make(render_mode="rgb_array")
    env.reset(seed=1)
    assert env.render().shape == (210, 160, 3)


def test_all_buttons_if_asked_for() -> None:
    assert make("Pong").action_space.n == 6
    assert make("Pong", full_action_space=True).action_space.n == 18


def test_an_unknown_game_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(clusterenv.ConfigError, match=r"unknown game 'SpaceInvader'\. Did you mean 'SpaceInvaders'"):
        make("SpaceInvader")


def test_numbers_that_make_no_sense_are_refused() -> None:
    with pytest.raises(clusterenv.ConfigError, match="frame_skip=0"):
        make(frame_skip=0)


def test_without_ale_py_the_answer_is_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(clusterenv.ConfigError, match=r'Atari needs .*pip install "clusterenv\[atari\]"'):
        make("Pong")
