"""R2D2 as a whole: it learns what needs a memory, repeats itself, and goes on where it was saved."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces

from clusterenv.errors import ConfigError
from clusterenv.learners.common.sync import SyncConfig
from clusterenv.learners.r2d2 import R2D2, R2D2Config
from clusterenv.metrics import keys
from clusterenv.metrics.recorder import Recorder
from tests.learners import envs as _envs  # noqa: F401  # registers the environments
from tests.learners.runs import LEVER, Notebook

OWN: dict[str, Any] = {
    "total_steps": 40 * 64,
    "learning_rate": 0.01,
    "lstm": 8,
    "length": 4,
    "burn_in": 2,
    "overlap": 2,
    "n_step": 2,
    "learning_starts": 32,
    "sample_size": 16,
    "samples_per_insert": 4.0,
    "target_every": 10,
    "publish_every": 4,
}
# One blank step between the cue and the question: without a memory the mean return is 0.
RECALL: dict[str, Any] = {
    "env_id": "clusterenv/Recall-v0",
    "env_args": ("delay=1",),
    "gamma": 0.9,
    "samples_per_insert": 8.0,
}


LEARNER = R2D2


def config(**changes: Any) -> R2D2Config:
    return R2D2Config(**{**LEVER, **OWN, **changes})


def run(settings: R2D2Config, **kwargs: Any) -> tuple[R2D2, Notebook]:
    notebook = Notebook()
    learner = R2D2(settings, recorder=Recorder([notebook]), **kwargs)
    learner.train()
    return learner, notebook


def answers(learner: R2D2) -> list[int]:
    """What it answers to each cue after a blank step."""
    network: Any = learner.network
    state = tuple(torch.zeros(2, *leaf.shape) for leaf in network.state)
    for seen in ([[-1.0, 0.0], [1.0, 0.0]], [[0.0, 0.0]] * 2, [[0.0, 1.0]] * 2):
        q, _, state = network(torch.tensor(seen), state)
    found: list[int] = q.argmax(-1).tolist()
    return found


@pytest.mark.parametrize(
    "part",
    [
        {},
        {"burn_in": 0, "prioritized": False, "stored_state": False},
        {"inference": "head", "mode": "stream", "sync": SyncConfig()},
    ],
    ids=str,
)
def test_it_learns_what_needs_a_memory(part: dict[str, Any]) -> None:
    """Episodes are shorter than sequences here: the stored state is not needed, and must do no harm."""
    learner, _ = run(config(**RECALL, **part))
    assert answers(learner) == [0, 1]


def test_without_a_memory_it_learns_what_needs_none() -> None:
    learner, _ = run(config(lstm=0))
    q, _, _ = learner.network(torch.eye(2))
    assert q.argmax(-1).tolist() == [0, 1]


def test_it_learns_from_a_stream_of_images_and_last_inputs() -> None:
    settings = config(
        env_id="test/Screen-v0",
        body="shallow",
        last_inputs=True,
        mode="stream",
        stream_slots=4,
        cluster="local:1",
        total_steps=20 * 64,
        capacity=1000,
    )
    learner, notebook = run(settings)
    assert learner.summary().steps == 20 * 64
    assert notebook.rows[-1][keys.TD_LOSS.name] > 0


def test_states_are_recorded_only_if_they_are_stored() -> None:
    for changes, recorded in (({}, True), ({"stored_state": False}, False), ({"lstm": 0}, False)):
        made = R2D2(config(**changes)).make_updater(spaces.Box(0, 1, (2,)), spaces.Discrete(2))
        assert made.every_state == recorded


# Settings.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 0, "overlap": 0}, "length=0 must be at least 1"),
        ({"burn_in": -1}, "burn_in=-1 must be at least 0"),
        ({"lstm": -1}, "lstm=-1 must be at least 0"),
        ({"overlap": 4}, "overlap=4 must be less than length=4: each sequence must bring new steps"),
        ({"eta": 1.5}, r"eta=1\.5 must be at most 1"),
        ({"rescaling": 0.0}, r"rescaling=0\.0 must be more than 0"),
        ({"adam_epsilon": 0.0}, r"adam_epsilon=0\.0 must be more than 0"),
        ({"learning_starts": 60_000}, "learning_starts=60000 takes about 120000 steps, more than capacity=100000"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**settings)


def test_the_rate_counts_sequences() -> None:
    settings = config(num_envs=8, rollout_steps=8, length=4, overlap=2, samples_per_insert=3.0, sample_size=16)
    assert settings.sequences_per_batch == 32
    assert settings.slack == 3.0 * 2 * 32 + 16
    assert config(num_envs=1, rollout_steps=1, stream_slots=None).sequences_per_batch == 1
