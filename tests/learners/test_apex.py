"""Ape-X as a whole: it learns with and without its parts, repeats itself, and goes on where it was saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from clusterenv.errors import ConfigError
from clusterenv.learners.apex import ApeX, ApeXConfig
from clusterenv.learners.common.checkpoint import Checkpoints
from clusterenv.metrics import keys
from clusterenv.metrics.recorder import Recorder
from tests.learners import envs as _envs  # noqa: F401  # registers the environments
from tests.learners.runs import LEVER, Notebook

if TYPE_CHECKING:
    import pathlib

OWN: dict[str, Any] = {
    "total_steps": 40 * 64,
    "learning_rate": 0.01,
    "learning_starts": 128,
    "sample_size": 32,
    "samples_per_insert": 4.0,
    "target_every": 10,
    "publish_every": 4,
}
# What is left of Ape-X without its parts.
DQN: dict[str, Any] = {
    "prioritized": False,
    "n_step": 1,
    "double": False,
    "dueling": False,
    "epsilon": 0.05,
    "epsilon_power": 0.0,
}


def config(**changes: Any) -> ApeXConfig:
    return ApeXConfig(**{**LEVER, **OWN, **changes})


def run(settings: ApeXConfig, **kwargs: Any) -> tuple[ApeX, Notebook]:
    notebook = Notebook()
    learner = ApeX(settings, recorder=Recorder([notebook]), **kwargs)
    learner.train()
    return learner, notebook


def first_pull(learner: ApeX) -> list[int]:
    """What it does under either light."""
    q, _, _ = learner.network(torch.eye(2))
    found: list[int] = q.argmax(-1).tolist()
    return found


@pytest.mark.parametrize(
    "part",
    [{}, {"double": False}, {"dueling": False}, {"n_step": 1}, {"prioritized": False}, {"epsilon_power": 0.0}, DQN],
    ids=str,
)
def test_it_learns_with_and_without_each_of_its_parts(part: dict[str, Any]) -> None:
    learner, _ = run(config(**part))
    assert first_pull(learner) == [0, 1]


@pytest.mark.parametrize(
    "changes",
    [
        {"normalize_observations": True},
        {"optimizer": "rmsprop", "learning_rate": 0.003},
        {"reward": "clip", "reward_scale": 10.0},
        {"target_rate": 0.1, "target_every": 1},
    ],
    ids=str,
)
def test_it_learns_with(changes: dict[str, Any]) -> None:
    learner, _ = run(config(**changes))
    assert first_pull(learner) == [0, 1]


def test_it_learns_from_a_stream_and_from_images() -> None:
    settings = config(
        env_id="test/Screen-v0",
        body="shallow",
        mode="stream",
        stream_slots=4,
        cluster="local:1",
        total_steps=20 * 64,
        capacity=1000,
    )
    learner, notebook = run(settings)
    assert learner.summary().steps == 20 * 64
    assert notebook.rows[-1][keys.TD_LOSS.name] > 0


def test_the_returns_that_count_are_those_of_the_greediest_slots() -> None:
    explorers, alike = config(num_envs=8), config(num_envs=8, epsilon_power=0.0)
    assert explorers.scored_slots() == range(5, 8)
    assert alike.scored_slots() == range(8)
    # The first of two slots does little but explore, the second never does: the mean over both would be near 3.1.
    learner, _ = run(config(epsilon=0.9, epsilon_power=100.0, num_envs=2, total_steps=80 * 16))
    assert learner.summary().final_return > 3.4


def test_the_same_seed_is_the_same_run() -> None:
    first, second, other = (run(config(total_steps=10 * 64, seed=seed))[0] for seed in (1, 1, 2))
    for one, two in zip(first.network.parameters(), second.network.parameters(), strict=True):
        assert torch.equal(one, two)
    assert not torch.equal(next(first.network.parameters()), next(other.network.parameters()))


def test_every_metric_has_a_name() -> None:
    _, notebook = run(config(total_steps=10 * 64))
    told = notebook.rows[-1].keys() - {"global_step"}
    for name in told:
        keys.find(name)
    assert told >= {metric.name for metric in (keys.TD_LOSS, keys.TD_ERROR, keys.Q_MEAN, keys.GRAD_NORM)}


def test_a_run_goes_on_where_it_was_saved(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    first, _ = run(config(total_steps=10 * 64), checkpoints=checkpoints)
    second = ApeX(config(total_steps=11 * 64), resume=checkpoints.load())
    update = next(iter(second.updates()))
    assert update.global_step == 11 * 64
    # The memory is filled anew, and one batch of it is not enough to learn from.
    for one, two in zip(first.network.parameters(), second.network.parameters(), strict=True):
        assert torch.equal(one, two)


def test_what_is_judged_does_not_explore_and_suits_any_number_of_slots() -> None:
    subject = ApeX(config(num_envs=3)).make_updater(spaces.Box(0, 1, (2,)), spaces.Discrete(2))
    acting: Any = subject.acting
    assert acting.distribution.epsilon == pytest.approx((0.4, 0.4**4.5, 0.4**8))
    assert subject.judged.distribution.epsilon == 0.0
    assert next(subject.judged.parameters()) is next(subject.network.parameters())
    q = subject.judged(torch.eye(2))[0].detach().numpy()
    chosen = subject.judged.distribution.sample(q, np.full((2, 1), 0.99))
    assert chosen.tolist() == q.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 1.5}, r"epsilon=1\.5 must be at most 1"),
        ({"epsilon_power": -1.0}, r"epsilon_power=-1\.0 must be at least 0"),
        ({"reward_scale": 0.0}, r"reward_scale=0\.0 must be more than 0"),
        ({"n_step": 0}, "n_step=0 must be at least 1"),
        ({"learning_starts": 10**9}, "the first update would never come"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**settings)


def test_only_choices_can_be_learned() -> None:
    with pytest.raises(ConfigError, match="needs a Discrete action space"):
        run(config(env_id="test/Lever-box-v0"))
