"""The task beside the observation: the same in every step, a one-hot to a network."""

from __future__ import annotations

import functools

import gymnasium
import numpy as np
import pytest

import clusterenv
from clusterenv.errors import ConfigError
from clusterenv.learners.common.networks import make_network
from clusterenv.wrappers import LastActionReward, ShowTask


def test_the_task_is_shown_at_the_start_and_in_every_step() -> None:
    env = ShowTask(gymnasium.make("CartPole-v1"), task=1, tasks=3)
    first, _ = env.reset(seed=1)
    then, *_ = env.step(0)
    assert (first["task"], then["task"]) == (1, 1)
    assert env.observation_space.contains(then)
    plain, _ = gymnasium.make("CartPole-v1").reset(seed=1)
    assert np.array_equal(first["obs"], plain)


@pytest.mark.parametrize("task", [-1, 3])
def test_a_task_that_is_none_of_them_is_refused(task: int) -> None:
    with pytest.raises(ConfigError, match=f"task={task} must be from 0 to 2"):
        ShowTask(gymnasium.make("CartPole-v1"), task=task, tasks=3)


@pytest.mark.parametrize("cluster", ["inproc", "tcp:nodes=1,workers=1"])
def test_workers_anywhere_know_it_and_networks_read_it(cluster: str) -> None:
    show = functools.partial(ShowTask, task=2, tasks=3)
    with clusterenv.make_vec("CartPole-v1", 2, wrappers=[LastActionReward, show], cluster=cluster) as envs:
        obs, _ = envs.reset(seed=1)
        assert obs["task"].tolist() == [2, 2]
        network = make_network(envs.single_observation_space, envs.single_action_space)
    # Four numbers, one of two actions, a reward, one of three tasks.
    assert network.get_submodule("encoder").size == 4 + 2 + 1 + 3
