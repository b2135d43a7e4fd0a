"""SAC as a whole: it learns a tiny task, repeats itself, goes on where it was saved, and says what does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import tests.learners.envs  # noqa: F401  # they register themselves
from clusterenv.errors import ConfigError
from clusterenv.learners.catalog import find
from clusterenv.learners.common.checkpoint import Checkpoints
from clusterenv.learners.common.settings import from_table, to_table
from clusterenv.learners.common.sync import SyncConfig
from clusterenv.learners.sac import SAC, SACConfig
from clusterenv.metrics import keys
from clusterenv.metrics.recorder import Recorder
from tests.learners.runs import Notebook

if TYPE_CHECKING:
    import pathlib

# A run of seconds: torch acts, because exporting a graph takes longer than all of it.
LEVER: dict[str, Any] = {
    "env_id": "test/Lever-box-v0",
    "cluster": "inproc:2",
    "mode": "lock step",
    "num_envs": 8,
    "rollout_steps": 4,
    "total_steps": 1600,
    "gamma": 0.5,
    "hidden": (16,),
    "learning_rate": 0.02,
    "critic_rate": 0.02,
    "temperature_rate": 0.02,
    "target_rate": 0.05,
    "capacity": 2000,
    "learning_starts": 64,
    "sample_size": 64,
    "samples_per_insert": 16.0,
    "record_every": 10,
    "runtime": "torch",
    "sync": SyncConfig(rule="on-change"),
}


def config(**changes: Any) -> SACConfig:
    return SACConfig(**{**LEVER, **changes})


def run(settings: SACConfig, **kwargs: Any) -> tuple[SAC, Notebook]:
    notebook = Notebook()
    learner = SAC(settings, recorder=Recorder([notebook]), **kwargs)
    learner.train()
    return learner, notebook


@pytest.mark.parametrize("changes", [{}, {"prioritized": True, "n_step": 2}, {"normalize_observations": True}])
def test_it_learns(changes: dict[str, Any]) -> None:
    learner, notebook = run(config(**changes))
    assert learner.summary().final_return > 3.3  # chance is 2, the best is 4
    assert notebook.rows[-1][keys.TEMPERATURE.name] < 0.6


def test_it_learns_an_action_that_is_a_single_number() -> None:
    learner, _ = run(config(env_id="test/Lever-scalar-v0"))
    assert learner.summary().final_return > 3.3


def test_a_stream_learns_from_each_step_as_often_as_asked() -> None:
    settings = config(mode="stream", stream_slots=4, cluster="local:1", total_steps=640, record_every=1, runtime="auto")
    learner, notebook = run(settings)
    assert learner.summary().steps == 640
    gradient_steps = sum(keys.VALUE_LOSS.name in row for row in notebook.rows)
    assert gradient_steps == (640 - 64) * settings.samples_per_insert / settings.sample_size


def test_the_same_seed_gives_the_same_run() -> None:
    short = {"total_steps": 320, "sync": SyncConfig()}
    first, second, other = (run(config(seed=seed, **short))[0] for seed in (3, 3, 4))
    for one, two in zip(first.network.parameters(), second.network.parameters(), strict=True):
        assert torch.equal(one, two)
    assert not torch.equal(next(first.network.parameters()), next(other.network.parameters()))


def test_every_metric_has_a_name() -> None:
    _, notebook = run(config(total_steps=320))
    for name in notebook.rows[-1].keys() - {"global_step"}:
        keys.find(name)


def test_a_run_goes_on_where_it_was_saved(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    first, _ = run(config(total_steps=640), checkpoints=checkpoints)
    settings = config(total_steps=960, learning_starts=200)
    second = SAC(settings, resume=checkpoints.load())
    second.train()
    assert second.summary().steps == 960
    moved = [(a - b).abs().max() for a, b in zip(first.network.parameters(), second.network.parameters(), strict=True)]
    assert 0 < max(moved) < 1.0


def test_actions_that_are_choices_are_refused_before_anything_is_learned() -> None:
    with pytest.raises(ConfigError, match=r"SAC learns actions that are real numbers.*Discrete"):
        run(config(env_id="test/Lever-discrete-v0"))


def test_it_is_in_the_catalog() -> None:
    entry = find("sac")
    assert entry.config is SACConfig
    assert entry.learner() is SAC


def test_settings_survive_a_file() -> None:
    settings = config(target_entropy=-3.0, hidden=(8, 8))
    assert from_table(SACConfig, to_table(settings)) == settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"critic_rate": 0.0}, r"critic_rate=0\.0 must be more than 0"),
        ({"temperature": 0.0}, r"temperature=0\.0 must be more than 0"),
        ({"temperature_rate": -1.0}, r"temperature_rate=-1\.0 must be at least 0"),
        ({"target_entropy": float("nan")}, "target_entropy=nan must be finite"),
        ({"target_rate": 2.0}, r"target_rate=2\.0 must be at most 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**settings)
