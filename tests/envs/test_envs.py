"""The small environments: good citizens of Gymnasium, and what their descriptions say."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import clusterenv
from clusterenv.envs.catch import Catch
from clusterenv.envs.recall import Recall

IDS = ["clusterenv/Catch-v0", "clusterenv/Recall-v0", "clusterenv/CartPoleNoVelocity-v0"]


def returns(env: Any, act: Any, episodes: int) -> list[float]:
    """Play with `act(observation)`; the return of each episode."""
    found = []
    for episode in range(episodes):
        obs, _ = env.reset(seed=episode)
        total, ended = 0.0, False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total, ended = total + reward, terminated or truncated
        found.append(total)
    return found


@pytest.mark.parametrize("env_id", IDS)
def test_gymnasium_finds_nothing_wrong(env_id: str) -> None:
    check_env(gymnasium.make(env_id).unwrapped, skip_render_check=True)


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("cluster", ["inproc", "local:2"])
def test_they_run_on_workers(env_id: str, cluster: str) -> None:
    with clusterenv.make_vec(env_id, 3, cluster=cluster) as envs:
        obs, _ = envs.reset(seed=1)
        assert obs.shape[0] == 3
        for _ in range(12):
            envs.step(envs.action_space.sample())


# Catch


def test_who_follows_the_ball_catches_it() -> None:
    def follow(board: Any) -> int:
        row = int(board.sum(1).argmax())
        ball, paddle = int(board[row].argmax()), int(board[-1].argmax())
        return 1 + int(np.sign(ball - paddle))

    assert set(returns(Catch(), follow, 30)) == {1.0}


def test_an_episode_of_catch_has_nine_steps_and_a_random_policy_mostly_misses() -> None:
    env = Catch()
    env.reset(seed=0)
    ends = [env.step(1)[2] for _ in range(9)]
    assert ends == [False] * 8 + [True]
    env.action_space.seed(0)
    assert -0.7 < np.mean(returns(env, lambda _: env.action_space.sample(), 2000)) < -0.5


def test_the_paddle_stays_on_the_board() -> None:
    env = Catch()
    env.reset(seed=0)
    board = [env.step(0)[0] for _ in range(4)][-1]
    assert board[-1].tolist() == [1, 0, 0, 0, 0]


@pytest.mark.parametrize("size", [{"rows": 1}, {"columns": 0}])
def test_a_board_without_room_is_refused(size: dict[str, int]) -> None:
    with pytest.raises(clusterenv.ConfigError, match="a board needs"):
        Catch(**size)


# Recall


@pytest.mark.parametrize("delay", [0, 1, 8])
def test_the_cue_is_shown_once_and_asked_for_at_the_end(delay: int) -> None:
    env = Recall(delay)
    cues = []
    for seed in range(20):
        obs, _ = env.reset(seed=seed)
        cue, seen = obs[0], [obs.tolist()]
        for _ in range(delay + 1):
            obs, reward, terminated, _, _ = env.step(0)
            seen.append(obs.tolist())
            assert (reward, terminated) == (0.0, False)
        assert seen == [[cue, 0]] + [[0, 0]] * delay + [[0, 1]]
        _, reward, terminated, _, _ = env.step(int(cue > 0))
        assert (reward, terminated) == (1.0, True)
        cues.append(cue)
    assert set(cues) == {-1.0, 1.0}


def test_the_wrong_answer_costs_and_a_constant_one_gains_nothing() -> None:
    found = returns(Recall(), lambda _: 1, 400)
    assert set(found) == {-1.0, 1.0}
    assert abs(np.mean(found)) < 0.15


def test_a_delay_that_is_none_is_refused() -> None:
    with pytest.raises(clusterenv.ConfigError, match="delay=-1"):
        Recall(-1)
    with pytest.raises(clusterenv.ConfigError, match=r"delay=3\.5 must be a whole number"):
        Recall(3.5)  # type: ignore[arg-type]


# CartPole


def test_positions_are_those_of_cartpole_and_velocities_are_gone() -> None:
    whole, part = gymnasium.make("CartPole-v1"), gymnasium.make("clusterenv/CartPoleNoVelocity-v0")
    np.testing.assert_array_equal(part.reset(seed=3)[0], whole.reset(seed=3)[0][[0, 2]])
    for action in (1, 0, 1, 1):
        mine, *rest = part.step(action)
        its, *expected = whole.step(action)
        np.testing.assert_array_equal(mine, its[[0, 2]])
        assert rest == expected
    assert part.spec is not None
    assert part.spec.max_episode_steps == 500
