"""Episodes as the learner sees them: where they begin, and those that go on, whose return is told with the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from clusterenv.envs import EPISODE_CONTINUES
from tests.env.policies import Linear, Memory, WideEnv, wide

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterenv import ClusterEnv

    Make = Callable[..., ClusterEnv]


class Lives(WideEnv):
    """Every third end is that of a game; the others are of a life."""

    ends = 0

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        if terminated:
            self.ends += 1
        goes_on = terminated and self.ends % 3 != 0
        return obs, reward, terminated, truncated, {**info, EPISODE_CONTINUES: True} if goes_on else info


def games(count: int, length: int) -> list[Any]:
    return [lambda slot=slot: Lives(slot, length) for slot in range(count)]


def test_returns_and_lengths_are_those_of_games(make: Make) -> None:
    envs = make(games(2, length=4))
    envs.reset(seed=1)
    envs.attach(Linear(), seed=5, sync="on-change")
    batches = [envs.rollout(5) for _ in range(5)]  # 25 steps: 6 lives, 2 games
    assert sum(len(batch.final_at[0]) for batch in batches) == 2 * 6
    lengths = np.concatenate([batch.episodes.lengths for batch in batches])
    assert lengths.tolist() == [12] * 4
    rewards = np.concatenate([batch.reward for batch in batches])
    told = [batch.episodes for batch in batches if len(batch.episodes.returns)]
    for k, episodes in enumerate(told):
        played = rewards[12 * k : 12 * (k + 1)].sum(axis=0)
        np.testing.assert_array_equal(episodes.returns, played[episodes.slots])


def test_the_memory_of_a_policy_ends_with_each_life(make: Make) -> None:
    envs = make(games(1, length=4))
    envs.reset(seed=1)
    envs.attach(Memory(), seed=5, sync="on-change")
    batch = envs.rollout(9)
    assert batch.action[:, 0].tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 1]


def test_another_policy_tells_of_episodes_that_begin_with_it(make: Make) -> None:
    envs = make(wide(2, length=4))
    envs.reset(seed=1)
    for _ in range(2):
        envs.attach(Linear(), seed=5, sync="on-change")
        batch = envs.rollout(4)
        assert batch.first[0].all()
        assert batch.episodes.lengths.tolist() == [4, 4]
    envs.step([0, 0])
    envs.attach(Linear(), seed=5, sync="on-change")
    batch = envs.rollout(4)
    assert not batch.first[0].any()
    assert len(batch.episodes.lengths) == 0, "they were begun by others"


def test_a_step_of_one_slot_says_nothing_about_another(make: Make) -> None:
    envs = make(wide(4, length=4))
    envs.reset(seed=1)
    envs.attach(Linear(), seed=5, sync="on-change")
    envs.send([0, 0], [0, 3])
    envs.recv(min_slots=2)
    batch = envs.rollout(4)
    assert batch.first[0].tolist() == [False, True, True, False]
    assert batch.episodes.slots.tolist() == [1, 2]


def test_another_policy_in_the_middle_of_a_game_tells_no_return(make: Make) -> None:
    envs = make(games(1, length=4))
    envs.reset(seed=1)
    envs.attach(Linear(), seed=5, sync="on-change")
    envs.rollout(4)
    envs.attach(Linear(), seed=5, sync="on-change")
    assert len(envs.rollout(8).episodes.lengths) == 0


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_an_episode_that_a_step_has_begun_is_seen_from_its_beginning(make: Make, mode: str) -> None:
    envs = make(wide(2, length=4), autoreset_mode=mode)
    envs.reset(seed=1)
    for _ in range(4 + (mode == "NextStep")):  # there the reset is a step of its own
        obs, *_ = envs.step([0, 0])
    assert obs[:, 1].tolist() == [0, 0]
    envs.attach(Linear(), seed=5, sync="on-change")
    batch = envs.rollout(4)
    assert batch.first[0].all()
    assert batch.episodes.lengths.tolist() == [4, 4]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("steps", [4, 5])
def test_a_game_that_others_have_begun_tells_no_return(make: Make, mode: str, steps: int) -> None:
    envs = make(games(2, length=4), autoreset_mode=mode)
    envs.reset(seed=1)
    for _ in range(steps):  # a life ends with the fourth
        envs.step([0, 0])
    envs.attach(Linear(), seed=5, sync="on-change")
    assert envs.rollout(8).episodes.lengths.tolist() == []
    assert sorted(set(envs.rollout(24).episodes.lengths.tolist())) == [12]
