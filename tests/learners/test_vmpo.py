"""V-MPO as a whole: it learns, it repeats itself, and it goes on where it was saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from clusterenv.learners.common.checkpoint import Checkpoints
from clusterenv.learners.common.sync import SyncConfig
from clusterenv.learners.vmpo import VMPO, VMPOConfig
from clusterenv.metrics import keys
from tests.learners.envs import KINDS

if TYPE_CHECKING:
    import pathlib


def config(**changes: Any) -> VMPOConfig:
    """A run of seconds: torch acts, because exporting a graph takes longer than all of it."""
    settings: dict[str, Any] = {
        "env_id": "test/Lever-discrete-v0",
        "cluster": "inproc:2",
        "num_envs": 8,
        "rollout_steps": 16,
        "total_steps": 30 * 8 * 16,
        "gamma": 0.0,
        "hidden": (16,),
        "learning_rate": 0.05,
        "target_period": 2,
        "epsilon_temperature": 0.1,
        "epsilon_kl": 0.1,
        "runtime": "torch",
        "sync": SyncConfig(rule="on-change"),
    }
    return VMPOConfig(**{**settings, **changes})


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_with_every_kind_of_action(kind: str) -> None:
    learner = VMPO(config(env_id=f"test/Lever-{kind}-v0"))
    assert learner.train().final_return > 3.5  # of 4; chance is 2


def test_it_learns_from_a_stream() -> None:
    told = VMPO(config(mode="stream", cluster="local:1", total_steps=60 * 64)).train()
    assert told.final_return > 3.5


def test_pictures_and_memory_say_the_same_to_the_learner_as_to_the_workers() -> None:
    """Until the first gradient step both have the same weights: any difference is one of alignment or of memory."""
    for update in VMPO(config(env_id="test/Screen-v0", body="shallow", lstm=8, total_steps=2 * 128)).updates():
        assert update.metrics[keys.APPROX_KL.name] == pytest.approx(0.0, abs=1e-6)
        break


def test_workers_act_with_the_target_network() -> None:
    """A new version exists once per generation, and every transition was made by the newest one."""
    learner = VMPO(config(total_steps=10 * 128, target_period=5))
    told = learner.train()
    assert told.publishes == 2
    assert told.lag_max == 0


def test_every_update_is_told_under_known_names() -> None:
    for update in VMPO(config(env_id="test/Lever-box-v0", total_steps=2 * 128)).updates():
        for name in update.metrics:
            keys.find(name)
        assert {keys.TEMPERATURE.name, keys.KL_MULTIPLIER.name, keys.PSI_KL.name} <= set(update.metrics)


def test_the_same_seed_is_the_same_run() -> None:
    runs = [VMPO(config(total_steps=5 * 128, seed=seed)) for seed in (1, 1, 2)]
    for learner in runs:
        learner.train()
    first, second, other = (torch.cat([p.flatten() for p in learner.network.parameters()]) for learner in runs)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_a_run_goes_on_where_it_was_saved(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    first = VMPO(config(total_steps=3 * 128), checkpoints=checkpoints)
    first.train()
    saved = checkpoints.load()
    assert saved is not None
    second = VMPO(config(total_steps=5 * 128), checkpoints=checkpoints, resume=saved)
    assert second.train().steps == 640
    newest = checkpoints.load()
    assert newest is not None
    assert newest.tensors["updates"] == 5
