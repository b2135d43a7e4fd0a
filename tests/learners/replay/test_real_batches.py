"""Batches that real policies have played on real workers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import clusterenv
from clusterenv.learners.replay.sequences import SequenceReplay
from clusterenv.learners.replay.transitions import TransitionReplay
from clusterenv.policy.distributions import Categorical
from tests.env.policies import Linear
from tests.learners.replay.kit import ACTION
from tests.policy.agents import Recurrent
from tests.zoo import counting


class Restless(torch.nn.Module):
    """Looks at one pixel, and does anything."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.distribution = Categorical(actions)
        self.layer = torch.nn.Linear(1, actions)

    def forward(self, obs: torch.Tensor, state: tuple[torch.Tensor, ...]) -> object:
        """Logits, no value, no state."""
        return self.layer(obs[:, -1, 40, 40, None].float() / 255), None, state


def test_frames_of_a_game_are_those_that_were_shown() -> None:
    pytest.importorskip("ale_py", reason='ale-py is not installed: pip install "clusterenv[atari]"')
    pytest.importorskip("cv2", reason='OpenCV is not installed: pip install "clusterenv[atari]"')
    with clusterenv.make_vec("clusterenv/Atari-v0", 2, cluster="inproc", game="Breakout", max_frames=400) as envs:
        replays = [
            TransitionReplay(envs.single_observation_space, ACTION, slots=2, capacity=200, n_step=3, stacked=stacked)
            for stacked in (True, False)
        ]
        envs.reset(seed=3)
        envs.step(np.ones(2, np.int64))  # the first fragment begins in the middle of a game
        envs.attach(Restless(4), seed=1)
        ends = 0
        for _ in range(8):
            batch = envs.rollout(40)
            ends += int((batch.terminated | batch.truncated).sum())
            for replay in replays:
                replay.add(batch)
    assert ends > 4
    ours, theirs = (replay.sample(400).data for replay in replays)
    assert np.array_equal(ours.obs, theirs.obs)
    assert np.array_equal(ours.next_obs[ours.discount > 0], theirs.next_obs[ours.discount > 0])


def test_a_policy_thinks_the_same_again_from_the_stored_state() -> None:
    policy = Recurrent(2)
    said, played = {}, [0, 0]
    with clusterenv.make_vec("CartPole-v1", 2, cluster="inproc") as envs:
        replay = SequenceReplay(
            envs.single_observation_space, ACTION, policy.state, slots=2, capacity=600, length=6, burn_in=4, overlap=3
        )
        envs.reset(seed=1)
        envs.attach(policy, seed=1, every_state=True, encoding="fp32")
        for _ in range(30):
            batch = envs.rollout(7)
            replay.add(batch)
            for slot in range(2):
                for t in range(batch.T):
                    said[slot, played[slot] + t] = batch.params[t, slot].copy()
                played[slot] += batch.T
    sample = replay.sample(200)
    data = sample.data
    state = tuple(torch.from_numpy(part) for part in data.state)
    heard = []
    with torch.no_grad():
        for obs, first in zip(data.obs[:-1], data.first[:-1], strict=True):
            state = tuple(part * ~torch.from_numpy(first)[:, None] for part in state)
            params, _, state = policy(torch.from_numpy(obs), state)
            heard.append(params.numpy())
    assert data.burn_in.min() == 0
    assert data.burn_in.max() == 4
    for b, number in enumerate(sample.ids.tolist()):
        k, slot = divmod(number, 2)
        for i in np.flatnonzero(data.mask[:, b]):
            assert heard[i][b] == pytest.approx(said[slot, k + i - 4], abs=1e-5)


def test_a_killed_worker_tears_no_transition_and_joins_none() -> None:
    with clusterenv.ClusterEnv(
        counting(2, {1: {18: "kill"}}, length=1000), cluster="local:2", on_loss="restart"
    ) as envs:
        replay = TransitionReplay(envs.single_observation_space, ACTION, slots=2, capacity=400, n_step=3, gamma=0.5)
        envs.reset(seed=1)
        envs.attach(Linear(choices=3), seed=1)
        lost = 0
        for _ in range(8):
            batch = envs.rollout(5)
            lost += int(batch.worker_lost.sum())
            replay.add(batch)
    assert lost >= 1
    assert len(replay) == 2 * 40 - 2 * 2
    data = replay.sample(2000).data
    steps = -np.log2(data.discount)
    assert np.array_equal(data.next_obs[:, 0], data.obs[:, 0])
    assert np.array_equal(data.next_obs[:, 1], data.obs[:, 1] + steps)
    assert set(steps) == {1, 2, 3}
