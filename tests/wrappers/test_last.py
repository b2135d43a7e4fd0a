"""The last action and reward: shown as they were, nothing at the start, the same for worker and learner."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import clusterenv
from clusterenv.learners.common import torch_distributions
from clusterenv.learners.common.networks import make_network
from clusterenv.wrappers import LastActionReward
from tests.learners import envs as _envs  # noqa: F401  # registers the environments


class Rewarding(gymnasium.Env[Any, Any]):
    """Its reward is whatever the test says."""

    def __init__(self, action_space: Any, rewards: Any = (0.5, -3.0, 2.0)) -> None:
        self.observation_space, self.action_space = spaces.Discrete(2), action_space
        self.rewards = rewards

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = iter(self.rewards)
        return 0, {}

    def step(self, action: Any) -> Any:
        return 1, next(self.left, 0.0), False, False, {}


@pytest.mark.parametrize(("clip", "shown"), [(1.0, [0.5, -1, 1]), (2.5, [0.5, -2.5, 2]), (None, [0.5, -3, 2])])
def test_rewards_are_shown_clipped_and_handed_on_as_they_are(clip: float | None, shown: list[float]) -> None:
    env = LastActionReward(Rewarding(spaces.Discrete(3)), clip=clip)
    first, _ = env.reset()
    assert (first["obs"], first["last_action"], first["last_reward"]) == (0, 0, 0)
    steps = [env.step(action) for action in (2, 1, 0)]
    assert [step[1] for step in steps] == [0.5, -3, 2]
    assert [float(step[0]["last_reward"]) for step in steps] == shown
    assert [int(step[0]["last_action"]) for step in steps] == [2, 1, 0]
    again, _ = env.reset()
    assert (again["last_action"], again["last_reward"]) == (0, 0)


@pytest.mark.parametrize(
    ("space", "nothing"),
    [
        (spaces.Discrete(3, start=5), 5),
        (spaces.MultiDiscrete([2, 3]), [0, 0]),
        (spaces.MultiBinary(2), [0, 0]),
        (spaces.Box(-1, 1, (2,)), [0, 0]),
        (spaces.Box(0.5, 1, (2,)), [0.5, 0.5]),
    ],
    ids=str,
)
def test_before_the_first_action_stands_the_first_of_its_space(space: Any, nothing: Any) -> None:
    env = LastActionReward(Rewarding(space))
    first, _ = env.reset()
    assert first["last_action"].tolist() == nothing
    assert first in env.observation_space
    assert env.step(env.action_space.sample())[0] in env.observation_space


def test_an_action_that_is_changed_afterwards_stays_as_it_was() -> None:
    env = LastActionReward(Rewarding(spaces.Box(-1, 1, (2,))))
    env.reset()
    action = np.ones(2, np.float32)
    obs = env.step(action)[0]
    action[:] = 0
    assert obs["last_action"].tolist() == [1, 1]


@pytest.mark.parametrize("clip", [0.0, -1.0, float("nan")])
def test_a_clip_that_leaves_nothing_is_refused(clip: float) -> None:
    with pytest.raises(clusterenv.ConfigError, match="must be positive"):
        LastActionReward(Rewarding(spaces.Discrete(2)), clip=clip)


def test_nested_actions_are_refused() -> None:
    with pytest.raises(clusterenv.ConfigError, match="cannot show actions of Tuple"):
        LastActionReward(Rewarding(spaces.Tuple((spaces.Discrete(2),))))


@pytest.mark.parametrize(
    ("env_id", "body"), [("CartPole-v1", {"lstm": 8}), ("test/Screen-v0", {"body": "shallow", "lstm": 8})], ids=str
)
def test_worker_and_learner_see_the_same(env_id: str, body: dict[str, Any]) -> None:
    wrapper = functools.partial(LastActionReward, clip=1.0)
    with clusterenv.make_vec(env_id, 4, cluster="local:2", wrappers=[wrapper]) as envs:
        envs.reset(seed=1)
        torch.manual_seed(0)
        network = make_network(envs.single_observation_space, envs.single_action_space, **body)
        with torch.no_grad():
            network.get_parameter("actor.weight").mul_(100)
        envs.attach(network, sync="on-change", encoding="fp32", runtime="onnx", seed=5)
        for _ in range(3):
            batch = envs.rollout(12).to(torch)
            # What is shown at t + 1 is what was done at t, unless an episode began in between.
            same = ~batch.first[1:]
            assert torch.equal(batch.obs["last_action"][1:][same], batch.action[same])
            torch.testing.assert_close(batch.obs["last_reward"][1:][same], batch.reward[same].clamp(-1, 1))
            assert not batch.obs["last_reward"][batch.first].any()
            params = network.unroll(batch.obs, batch.state, batch.first, batch.final_obs, batch.final_at).params
            logp = torch_distributions.log_prob(network.distribution, params[:-1], batch.action)
            torch.testing.assert_close(logp, batch.logp, atol=1e-4, rtol=0)
