"""Everything once on real engines: nodes that a real sshd and a real Slurm have started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from clusterenv import make_vec
from tests.conformance.kit import ENGINES, NUM_ENVS, TRIAL, actions, kill, slots
from tests.conformance.test_detached import agent, change, same

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterenv import ClusterEnv

    Make = Callable[..., ClusterEnv]

pytestmark = [pytest.mark.kinds(*ENGINES), pytest.mark.walk]


def test_steps_calls_and_policies_are_those_of_one_process(make: Make) -> None:
    with make_vec(TRIAL, NUM_ENVS, cluster="inproc", slot_kwargs=slots()) as here:
        there = make(TRIAL, slot_kwargs=slots())
        for envs in (here, there):
            envs.action_space.seed(1)
        np.testing.assert_equal(here.reset(seed=3), there.reset(seed=3))
        for _ in range(40):
            chosen = here.action_space.sample()
            np.testing.assert_equal(here.step(chosen), there.step(chosen))
        assert here.get_attr("slot", indices=[1, 4]) == there.get_attr("slot", indices=[1, 4])
        assert _sent(here) == _sent(there)
        played = [_played(envs) for envs in (here, there)]
        for left, right in zip(*played, strict=True):
            same(left, right)


def test_a_killed_worker_costs_its_own_slots(make: Make) -> None:
    envs = make(TRIAL, slot_kwargs=slots())
    envs.reset(seed=240)
    kill(envs, 0)
    _, _, _, truncated, infos = envs.step(actions(envs))
    assert truncated.tolist() == [True, True, True, False, False]
    assert infos["worker_lost"].tolist() == truncated.tolist()
    assert not envs.step(actions(envs))[3].any()


def _sent(envs: ClusterEnv) -> set[int]:
    """Which slots come back after a send of all."""
    envs.reset(seed=3)
    envs.send(actions(envs))
    found: list[int] = []
    while len(found) < NUM_ENVS:
        found += envs.recv(min_slots=1)[4]["env_id"].tolist()
    assert len(set(found)) == len(found)
    return set(found)


def _played(envs: ClusterEnv) -> list[Any]:
    """Two rollouts with a new version in between."""
    policy = agent()
    envs.reset(seed=3)
    envs.attach(policy, seed=5, sync="on-change")
    batches = [envs.rollout(20)]
    change(policy)
    envs.publish(policy)
    return [*batches, envs.rollout(20)]
