"""Whole episodes, a fixed number per slot: counted without a bias, played with memory, by the network that acts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.env.batch import Episodes
from clusterenv.env.make import make_vec
from clusterenv.errors import ConfigError
from clusterenv.learners.common.checkpoint import Checkpoints
from clusterenv.learners.common.evaluate import Count, Scores, Spread, acting_network, by_task, play, shares
from clusterenv.learners.common.networks import make_network
from clusterenv.learners.common.updater import seeded
from clusterenv.learners.vmpo import VMPO, VMPOConfig
from tests.learners import envs as _registered  # noqa: F401

if TYPE_CHECKING:
    import pathlib

POLE = "clusterenv/CartPoleNoVelocity-v0"


@given(st.integers(1, 200), st.integers(1, 64))
def test_shares_are_all_of_it_and_as_equal_as_can_be(episodes: int, slots: int) -> None:
    parts = shares(episodes, slots)
    assert len(parts) == slots
    assert sum(parts) == episodes
    assert max(parts) - min(parts) <= 1


@given(st.data(), st.integers(1, 20), st.integers(1, 6))
def test_what_is_kept_does_not_depend_on_who_comes_first(data: Any, episodes: int, slots: int) -> None:
    """Every slot plays the same whatever the others do; they arrive in any order and in any batches."""
    played = {slot: [(slot + 100.0 * number, number + 1) for number in range(episodes + 3)] for slot in range(slots)}
    waiting = {slot: list(mine) for slot, mine in played.items()}
    count = Count(episodes, slots)
    while not count.done:
        batch = data.draw(st.lists(st.integers(0, slots - 1), max_size=8)) or [
            slot for slot, mine in waiting.items() if mine
        ]
        told = [(*waiting[slot].pop(0), slot) for slot in batch if waiting[slot]]
        count.take(
            Episodes(*(np.array(column) for column in zip(*told, strict=True))) if told else Episodes([], [], [])
        )
    expected = [episode for slot, owed in enumerate(shares(episodes, slots)) for episode in played[slot][:owed]]
    assert list(zip(*count.scores(), strict=True)) == expected


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 4))
def test_episodes_go_to_the_task_of_their_slot(episodes: int, slots: int, tasks: int) -> None:
    where = [slot for slot, owed in enumerate(shares(episodes, slots)) for _ in range(owed)]
    told = by_task(Scores([float(slot) for slot in where], where), slots=slots, tasks=tasks)
    assert len(told) == tasks
    for task, mine in enumerate(told):
        assert mine.lengths == mine.returns == [slot for slot in where if slot % tasks == task]


def test_there_must_be_an_episode() -> None:
    with pytest.raises(ConfigError, match="episodes=0 must be at least 1"):
        Count(0, 4)


def test_the_spread_of_numbers() -> None:
    assert Spread.of([3]) == (3.0, 0.0, 3.0, 3.0)
    assert Spread.of([1.0, 2.0, 6.0]) == pytest.approx((3.0, (14 / 3) ** 0.5, 1.0, 6.0))


def network_for(env_id: str) -> Any:
    env = gymnasium.make(env_id)
    network = seeded(lambda: make_network(env.observation_space, env.action_space, lstm=8), 3)
    with torch.no_grad():  # the first policy is nearly uniform: make it one whose choices depend on its memory
        for parameter in network.get_submodule("actor").parameters():
            parameter.mul_(200.0)
    return network


@torch.no_grad()
def by_hand(env_id: str, network: Any, *, seed: int, episodes: int) -> list[tuple[float, int]]:
    """Episodes of one environment one after the other, with the most likely actions."""
    env = gymnasium.make(env_id)
    told = []
    obs, _ = env.reset(seed=seed)
    for _ in range(episodes):
        state = tuple(torch.zeros(1, *leaf.shape) for leaf in network.state)
        total, length, over = 0.0, 0, False
        while not over:
            params, _, state = network(torch.as_tensor(obs)[None], state)
            obs, reward, terminated, truncated, _ = env.step(int(params.argmax()))
            total, length, over = total + float(reward), length + 1, terminated or truncated
        told.append((total, length))
        obs, _ = env.reset()
    return told


def test_episodes_are_those_of_a_plain_loop_memory_included() -> None:
    network = network_for(POLE)
    with make_vec(POLE, 3, cluster="inproc:2") as envs:
        scores = play(envs, network, episodes=7, seed=50, greedy=True, runtime="torch")
    expected = [
        episode
        for slot, owed in enumerate([3, 2, 2])
        for episode in by_hand(POLE, network, seed=50 + slot, episodes=owed)
    ]
    assert list(zip(*scores, strict=True)) == expected
    assert len(set(scores.lengths)) > 1


def test_sampled_episodes_follow_from_the_seed_on_any_number_of_workers() -> None:
    network = network_for(POLE)
    told = []
    for cluster, seed in (("inproc", 7), ("inproc:3", 7), ("local:2", 7), ("inproc", 8)):
        with make_vec(POLE, 3, cluster=cluster) as envs:
            told.append(play(envs, network, episodes=6, seed=seed, greedy=False, runtime="torch"))
    assert told[0] == told[1] == told[2]
    assert told[0] != told[3]


def test_the_policy_can_be_let_go_and_another_be_measured() -> None:
    with make_vec(POLE, 2, cluster="inproc") as envs:
        first, second = (
            play(envs, network_for(POLE), episodes=2, seed=5, greedy=True, runtime="torch") for _ in range(2)
        )
    assert first == second


@pytest.fixture
def generation(tmp_path: pathlib.Path) -> VMPO:
    """A run in which the network has learned, and the one that acts has not been renewed."""
    config = VMPOConfig(
        env_id="clusterenv/Recall-v0",
        cluster="inproc",
        num_envs=2,
        rollout_steps=8,
        total_steps=32,
        target_period=100,
        runtime="torch",
        hidden=(8,),
    )
    learner = VMPO(config, checkpoints=Checkpoints(tmp_path))
    learner.train()
    return learner


def test_of_v_mpo_the_acting_network_is_measured(generation: VMPO) -> None:
    assert generation.checkpoints is not None
    saved = generation.checkpoints.load()
    assert saved is not None
    with make_vec("clusterenv/Recall-v0", 1, cluster="inproc") as envs:
        network = acting_network(VMPO(generation.config), saved.tensors, envs)
    weight, learned = (each.get_parameter("actor.0.weight") for each in (network, generation.network))
    assert torch.equal(weight, generation.updater.acting.get_parameter("actor.0.weight"))
    assert not torch.equal(weight, learned)


def test_a_network_for_other_spaces_is_refused(generation: VMPO) -> None:
    assert generation.checkpoints is not None
    saved = generation.checkpoints.load()
    assert saved is not None
    with (
        make_vec("CartPole-v1", 1, cluster="inproc") as envs,
        pytest.raises(ConfigError, match=r"does not fit observations Box.* and actions Discrete\(2\)"),
    ):
        acting_network(VMPO(generation.config), saved.tensors, envs)
