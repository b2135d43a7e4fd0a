"""Same seed and same num_envs: the same trajectories, bit for bit, wherever the environments live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from clusterenv import ClusterEnv, Local, make_vec
from tests.env.kit import SpaceEnv, WalkEnv, assert_same, trajectory

if TYPE_CHECKING:
    from collections.abc import Callable

PLACES: dict[str, Any] = {
    "inproc": "inproc",
    "inproc:3": "inproc:3",
    "local:1": "local:1",
    "local:2": "local:2",
    "local:4": "local:4",
    "local:2-unpinned": Local(workers=2, affinity="off", threads=None),
}
NUM_ENVS, STEPS, SEED = 5, 120, 17

_expected: dict[str, list[Any]] = {}


def expected(mode: str) -> list[Any]:
    """What SyncVectorEnv answers, computed once."""
    if mode not in _expected:
        envs = SyncVectorEnv([WalkEnv] * NUM_ENVS, autoreset_mode=mode)
        _expected[mode] = trajectory(envs, STEPS, SEED)
    return _expected[mode]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("place", PLACES)
def test_the_place_changes_nothing(place: str, mode: str) -> None:
    with ClusterEnv([WalkEnv] * NUM_ENVS, cluster=PLACES[place], autoreset_mode=mode) as envs:
        assert_same(trajectory(envs, STEPS, SEED), expected(mode))


def test_the_reference_is_worth_comparing_with() -> None:
    answers = expected("NextStep")[1:]
    assert len(np.unique([answer[1] for answer in answers])) > NUM_ENVS * STEPS // 2
    assert sum(int((answer[2] | answer[3]).sum()) for answer in answers) > 20


@pytest.mark.parametrize("place", ["inproc:3", "local:2"])
def test_a_second_run_of_the_same_batch_is_the_first_again(place: str) -> None:
    with ClusterEnv([WalkEnv] * NUM_ENVS, cluster=place) as envs:
        first = trajectory(envs, 40, SEED)
        trajectory(envs, 7, seed=3)
        assert_same(trajectory(envs, 40, SEED), first)


@pytest.mark.parametrize("place", ["inproc", "local:2"])
def test_another_seed_is_another_run(place: str) -> None:
    with ClusterEnv([WalkEnv] * NUM_ENVS, cluster=place) as envs:
        one, other = trajectory(envs, 10, SEED), trajectory(envs, 10, SEED + 1)
        assert not np.array_equal(one[0][0], other[0][0])
        np.testing.assert_array_equal(one[0][0][1:], other[0][0][:-1])  # seed + slot


@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "FrozenLake-v1", "Blackjack-v1"])
def test_the_environments_of_gymnasium(name: str) -> None:
    theirs = gymnasium.make_vec(name, num_envs=3, vectorization_mode="sync")
    reference = trajectory(theirs, 60, SEED)
    theirs.close()
    for place in ("inproc:2", "local:2"):
        with make_vec(name, num_envs=3, cluster=place) as envs:
            assert_same(trajectory(envs, 60, SEED), reference)


def test_objects_are_deterministic_too() -> None:
    space = spaces.Dict(text=spaces.Text(6), sequence=spaces.Sequence(spaces.Discrete(9)))
    factories: list[Callable[[], Any]] = [lambda: SpaceEnv(space, spaces.Text(4))] * 3
    reference = trajectory(SyncVectorEnv(factories), 30, SEED)
    for place in ("inproc", "local:2"):
        with ClusterEnv(factories, cluster=place) as envs:
            assert_same(trajectory(envs, 30, SEED), reference)


def test_what_a_factory_draws_does_not_move_the_trajectory() -> None:
    """The random numbers of the head and of the workers are nobody's business but the environments'."""

    def noisy() -> WalkEnv:
        np.random.seed(0)
        np.random.rand(3)
        return WalkEnv()

    with ClusterEnv([noisy] * NUM_ENVS, cluster="local:2") as envs:
        np.random.rand(7)
        assert_same(trajectory(envs, STEPS, SEED), expected("NextStep"))
