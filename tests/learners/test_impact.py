"""IMPACT as a whole: it learns, it repeats itself, it goes on where it was saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from clusterenv.errors import ConfigError
from clusterenv.learners.common.checkpoint import Checkpoints
from clusterenv.learners.common.sync import SyncConfig
from clusterenv.learners.impact import IMPACT, IMPACTConfig
from clusterenv.metrics import keys
from clusterenv.metrics.recorder import Recorder
from tests.learners.batches import SPACES, made_up
from tests.learners.envs import KINDS
from tests.learners.runs import Notebook

if TYPE_CHECKING:
    import pathlib


def config(**changes: Any) -> IMPACTConfig:
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
        "uses": 1,
        "target_every": 4,
        "learning_rate": 0.02,
        "record_every": 10,
        "runtime": "torch",
        "sync": SyncConfig(rule="on-change"),
    }
    return IMPACTConfig(**{**settings, **changes})


def run(settings: IMPACTConfig, **kwargs: Any) -> tuple[IMPACT, Notebook]:
    notebook = Notebook()
    learner = IMPACT(settings, recorder=Recorder([notebook]), **kwargs)
    learner.train()
    return learner, notebook


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_with_every_kind_of_action(kind: str) -> None:
    learner, _ = run(config(env_id=f"test/Lever-{kind}-v0"))
    assert learner.summary().final_return > 3.4  # of 4; chance is 2


@pytest.mark.parametrize(
    "changes", [{"lstm": 16}, {"normalize_observations": True}, {"kl_coef": 0.1}, {"normalize_advantage": True}]
)
def test_it_learns_with(changes: dict[str, Any]) -> None:
    learner, _ = run(config(**changes))
    assert learner.summary().final_return > 3.4


def test_it_learns_from_a_stream() -> None:
    learner, notebook = run(config(mode="stream", stream_slots=4, cluster="local:1", total_steps=160 * 32))
    told = learner.summary()
    assert told.final_return > 3.4
    assert told.publishes == 160
    assert len(notebook.rows) == 16


def test_a_stream_ends_with_its_budget_and_learns_from_all_that_is_left() -> None:
    settings = config(mode="stream", stream_slots=4, cluster="local:1", total_steps=10 * 32, uses=3, record_every=1)
    learner, notebook = run(settings)
    assert learner.summary().steps == 320
    assert len(notebook.rows) == 30


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
    second = IMPACT(config(total_steps=1280, anneal=False), resume=saved)
    update = next(iter(second.updates()))
    assert update.global_step == 1280
    moved = [(a - b).abs().max() for a, b in zip(first.network.parameters(), second.network.parameters(), strict=True)]
    assert 0 < max(moved) < 0.5


@pytest.mark.parametrize("part", [{"target_every": 0}, {"rho": None}, {"buffer_batches": 1, "uses": 1}])
def test_it_learns_without_any_one_of_its_parts(part: dict[str, Any]) -> None:
    learner, _ = run(config(**part))
    assert learner.summary().final_return > 3.4


def test_every_batch_is_used_as_often_as_it_may() -> None:
    learner, notebook = run(config(total_steps=640, uses=3, record_every=1))
    assert learner.summary().steps == 640
    assert [row[keys.REUSE.name] for row in notebook.rows] == [1, 2, 3] * 10
    assert notebook.rows[-1][keys.DROPPED.name] == 0


def test_a_slow_learner_lets_new_batches_push_out_old_ones_if_asked() -> None:
    subject = IMPACT(config(overwrite=True, buffer_batches=2, uses=5)).make_updater(*SPACES)
    for _ in range(4):
        told = subject.update(made_up(), 1.0, lambda: None)
    assert subject.takes_batch
    assert told[keys.DROPPED.name] > 0
    patient = IMPACT(config(buffer_batches=1, uses=5)).make_updater(*SPACES)
    patient.update(made_up(), 1.0, lambda: None)
    assert not patient.takes_batch
    assert not patient.needs_batch


def test_the_target_follows_now_and_then() -> None:
    subject = IMPACT(config(target_every=2, uses=10)).make_updater(*SPACES)
    same = []
    for _ in range(4):
        subject.update(made_up() if subject.needs_batch else None, 1.0, lambda: None)
        pairs = zip(subject.network.parameters(), subject.target.parameters(), strict=True)
        same.append(all(torch.equal(one, other) for one, other in pairs))
    assert same == [False, True, False, True]


def test_what_is_saved_is_all_there_is_but_the_batches() -> None:
    one, other = (IMPACT(config(seed=seed, kl_coef=0.5, uses=1)).make_updater(*SPACES) for seed in (1, 5))
    one.update(made_up(), 1.0, lambda: None)
    other.restore(one.tensors())
    for subject in (one, other):
        subject.update(made_up(), 0.5, lambda: None)
    for left, right in zip(one.tensors().values(), other.tensors().values(), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"uses": 0}, "uses=0 must be at least 1"),
        ({"buffer_batches": 0}, "buffer_batches=0 must be at least 1"),
        ({"rho": 0.0}, r"rho=0\.0 must be more than 0"),
        ({"clip": -1.0}, "clip"),
        ({"target_every": -1}, "target_every=-1 must be at least 0"),
        ({"vtrace_lambda": 1.5}, r"vtrace_lambda=1\.5 must be at most 1"),
        ({"total_steps": 10}, "less than one batch"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**settings)
