"""IMPALA as a whole: it learns, it repeats itself, it goes on where it was saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from clusterenv.errors import ConfigError
from clusterenv.learners.common.checkpoint import Checkpoints
from clusterenv.learners.common.sync import SyncConfig
from clusterenv.learners.impala import IMPALA, IMPALAConfig
from clusterenv.metrics import keys
from clusterenv.metrics.recorder import Recorder
from tests.learners.batches import SPACES, made_up
from tests.learners.envs import KINDS
from tests.learners.runs import Notebook

if TYPE_CHECKING:
    import pathlib


def config(**changes: Any) -> IMPALAConfig:
    """A run of a second: torch acts, because exporting a graph takes longer than all of it."""
    settings: dict[str, Any] = {
        "env_id": "test/Lever-discrete-v0",
        "cluster": "inproc:2",
        "mode": "lock step",
        "num_envs": 8,
        "rollout_steps": 8,
        "total_steps": 80 * 64,
        "gamma": 0.5,
        "hidden": (16,),
        "optimizer": "adam",
        "learning_rate": 0.02,
        "record_every": 10,
        "runtime": "torch",
        "sync": SyncConfig(rule="on-change"),
    }
    return IMPALAConfig(**{**settings, **changes})


def run(settings: IMPALAConfig, **kwargs: Any) -> tuple[IMPALA, Notebook]:
    notebook = Notebook()
    learner = IMPALA(settings, recorder=Recorder([notebook]), **kwargs)
    learner.train()
    return learner, notebook


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_with_every_kind_of_action(kind: str) -> None:
    learner, _ = run(config(env_id=f"test/Lever-{kind}-v0"))
    assert learner.summary().final_return > 3.4  # of 4; chance is 2


@pytest.mark.parametrize("changes", [{"lstm": 16}, {"normalize_observations": True}, {"reduction": "sum"}])
def test_it_learns_with(changes: dict[str, Any]) -> None:
    learner, _ = run(config(**changes))
    assert learner.summary().final_return > 3.4


@pytest.mark.parametrize("optimizer", ["rmsprop", "rmsprop-tf"])
def test_it_learns_by_either_rmsprop(optimizer: str) -> None:
    # Summed losses, as published: the mean of squares of rmsprop-tf starts at 1, beside which a mean is nothing.
    learner, _ = run(config(optimizer=optimizer, learning_rate=0.01, reduction="sum"))
    assert learner.summary().final_return > 3.4


def test_it_learns_from_a_stream() -> None:
    learner, notebook = run(config(mode="stream", stream_slots=4, cluster="local:1", total_steps=160 * 32))
    told = learner.summary()
    assert told.final_return > 3.4
    assert told.publishes == 160
    assert len(notebook.rows) == 16


def test_equal_weights_have_no_ratio() -> None:
    """In lock step, with every version fetched, the learner holds what the workers hold, memory included."""
    for changes in ({}, {"lstm": 16}):
        _, notebook = run(config(total_steps=10 * 64, encoding="fp32", **changes))
        assert notebook.rows[-1][keys.LOG_RATIO.name] < 1e-4
        assert notebook.rows[-1][keys.RHO_CLIPPED.name] == 0


def test_versions_may_be_rarer_than_updates() -> None:
    learner, _ = run(config(publish_every=4))
    assert learner.summary().publishes == 20


def test_the_same_seed_is_the_same_run() -> None:
    first, second, other = (run(config(total_steps=640, seed=seed))[0] for seed in (1, 1, 2))
    for one, two in zip(first.network.parameters(), second.network.parameters(), strict=True):
        assert torch.equal(one, two)
    assert not torch.equal(next(first.network.parameters()), next(other.network.parameters()))


def test_every_metric_has_a_name() -> None:
    _, notebook = run(config(total_steps=640))
    for name in notebook.rows[-1].keys() - {"global_step"}:
        keys.find(name)


def test_a_run_goes_on_where_it_was_saved(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    first, _ = run(config(total_steps=640, anneal=False), checkpoints=checkpoints)
    saved = checkpoints.load()
    second = IMPALA(config(total_steps=1280, anneal=False), resume=saved)
    update = next(iter(second.updates()))
    assert update.global_step == 1280
    moved = [(a - b).abs().max() for a, b in zip(first.network.parameters(), second.network.parameters(), strict=True)]
    assert 0 < max(moved) < 0.5


def test_without_its_correction_old_data_is_taken_for_new() -> None:
    """The same old data: with V-trace an action that the learner no longer takes weighs less."""
    old = made_up(logp=torch.log(torch.full((4, 2), 0.99)).numpy())
    losses = {}
    for correction in ("v-trace", "none"):
        subject = IMPALA(config(correction=correction)).make_updater(*SPACES)
        losses[correction] = subject.update(old, 1.0, lambda: None)[keys.POLICY_LOSS.name]
    assert abs(losses["v-trace"]) < abs(losses["none"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rho_bar": 0.5}, r"rho_bar=0\.5 is less than c_bar=1\.0"),
        ({"vtrace_lambda": 1.5}, r"vtrace_lambda=1\.5 must be at most 1"),
        ({"publish_every": 0}, "publish_every=0 must be at least 1"),
        ({"lstm": -1}, "lstm=-1 must be at least 0"),
        ({"rmsprop_eps": 0.0}, "rmsprop_eps"),
        ({"total_steps": 10}, "less than one batch"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**settings)
