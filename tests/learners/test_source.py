"""Batches from workers or from the head: every learner takes either, and the loop does not know which."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from clusterenv.env.make import make_vec
from clusterenv.learners import catalog
from clusterenv.learners.common.source import HeadSource, WorkerSource, source_for
from clusterenv.learners.common.sync import SyncConfig
from clusterenv.learners.impala import IMPALA, IMPALAConfig
from clusterenv.learners.ppo import PPO, PPOConfig
from tests.learners import envs as _envs  # noqa: F401  # registers the environments
from tests.learners.runs import LEVER

SMALL: dict[str, Any] = {**LEVER, "mode": "stream", "stream_slots": 4, "total_steps": 10 * 32, "record_every": 1}
OWN: dict[str, dict[str, Any]] = {
    "ppo": {"epochs": 1, "minibatches": 1},
    "apex": {"learning_starts": 64, "sample_size": 16, "sync": SyncConfig(rule="on-change")},
    "sac": {"env_id": "test/Lever-box-v0", "learning_starts": 64, "sample_size": 16, "samples_per_insert": 4.0},
    "r2d2": {"learning_starts": 4, "sample_size": 2, "lstm": 8, "burn_in": 2, "length": 4, "overlap": 2, "n_step": 1},
}
# Who acts; what acts on the head needs no rule for weights.
ACTS: dict[str, dict[str, Any]] = {"worker": {}, "head": {"inference": "head", "sync": SyncConfig()}}


@pytest.mark.parametrize("name", catalog.LEARNERS)
@pytest.mark.parametrize("inference", ["worker", "head"])
def test_every_learner_takes_either(name: str, inference: str) -> None:
    entry = catalog.find(name)
    known = {field.name for field in dataclasses.fields(entry.config)}
    settings: Any = {**SMALL, **OWN.get(name, {}), **ACTS[inference]}
    learner = entry.learner()(entry.config(**{key: value for key, value in settings.items() if key in known}))
    told = learner.train()
    assert told.steps == 10 * 32
    assert told.publishes > 0
    assert (told.syncs == 0) == (inference == "head")
    assert ("inference" in learner.stats) == (inference == "head")


@pytest.mark.parametrize("inference", ["worker", "head"])
def test_a_resumed_run_does_not_play_the_same_again(inference: Any) -> None:
    config = PPOConfig(
        env_id="CartPole-v1", num_envs=4, mode="stream", stream_slots=4, rollout_steps=8, **ACTS[inference]
    )

    def first_batch(epoch: int) -> Any:
        with make_vec(config.env_id, 4, cluster="inproc") as envs:
            policy = PPO(config).make_updater(envs.single_observation_space, envs.single_action_space).acting
            with source_for(envs, policy, config, epoch=epoch) as source:
                batch = source.next()
                return batch.obs[0].copy(), batch.action.copy()

    (seen, done), (seen_again, done_again), (new, other) = first_batch(0), first_batch(0), first_batch(1)
    np.testing.assert_array_equal(seen, seen_again)
    np.testing.assert_array_equal(done, done_again)
    assert not np.isin(new, seen).any()
    assert not np.array_equal(other, done)


@pytest.mark.parametrize(("inference", "kind"), [("worker", WorkerSource), ("head", HeadSource)])
def test_what_a_source_does(inference: Any, kind: type[Any]) -> None:
    config = IMPALAConfig(**{**SMALL, **ACTS[inference], "stream_slots": 8})
    with make_vec(config.env_id, 8, cluster="inproc:2") as envs:
        policy = IMPALA(config).make_updater(envs.single_observation_space, envs.single_action_space).acting
        with source_for(envs, policy, config, epoch=2) as source:
            assert isinstance(source, kind)
            first = source.next()
            with torch.no_grad():
                next(policy.parameters()).add_(0.1)  # weights that have not changed are no new version
            source.publish(policy)
            while not (batch := source.next()).version.all():
                pass
            told = source.stats()
        assert (first.epoch, batch.N, batch.T) == (2, 8, 8)
        assert told["publishes"] == 1
        assert told["version"] == (2, 1)
        envs.reset(seed=1)  # whoever acted has stopped
