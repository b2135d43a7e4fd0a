"""What Ape-X and R2D2 share: they repeat themselves, go on where they were saved, and are judged without exploring."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from clusterenv.errors import ConfigError
from clusterenv.learners.common.checkpoint import Checkpoints
from clusterenv.metrics import keys
from clusterenv.metrics.recorder import Recorder
from tests.learners import test_apex, test_r2d2
from tests.learners.runs import Notebook

if TYPE_CHECKING:
    import pathlib


@pytest.fixture(params=[test_apex, test_r2d2], ids=["apex", "r2d2"])
def kit(request: pytest.FixtureRequest) -> Any:
    """`config` and `run` of a learner's own tests."""
    return request.param


def updater(kit: Any, settings: Any) -> Any:
    return kit.LEARNER(settings).make_updater(spaces.Box(0, 1, (2,)), spaces.Discrete(2))


def test_the_same_seed_is_the_same_run(kit: Any) -> None:
    first, second, other = (kit.run(kit.config(total_steps=10 * 64, seed=seed))[0] for seed in (1, 1, 2))
    for one, two in zip(first.network.parameters(), second.network.parameters(), strict=True):
        assert torch.equal(one, two)
    assert not torch.equal(next(first.network.parameters()), next(other.network.parameters()))


def test_every_metric_has_a_name(kit: Any) -> None:
    _, notebook = kit.run(kit.config(total_steps=10 * 64))
    told = notebook.rows[-1].keys() - {"global_step"}
    for name in told:
        keys.find(name)
    assert told >= {metric.name for metric in (keys.TD_LOSS, keys.TD_ERROR, keys.Q_MEAN, keys.GRAD_NORM)}


def test_a_run_goes_on_where_it_was_saved(kit: Any, tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    first, _ = kit.run(kit.config(total_steps=10 * 64), checkpoints=checkpoints)
    second = kit.LEARNER(kit.config(total_steps=11 * 64), recorder=Recorder([Notebook()]), resume=checkpoints.load())
    update = next(iter(second.updates()))
    assert update.global_step == 11 * 64
    # The memory is filled anew, and one batch of it is not enough to learn from.
    assert (first.summary().updates > 0, second.summary().updates) == (True, 0)
    for one, two in zip(first.network.parameters(), second.network.parameters(), strict=True):
        assert torch.equal(one, two)


def test_the_smallest_budget_that_is_taken_is_enough_for_an_update(kit: Any) -> None:
    settings = {"env_id": "MountainCar-v0", "num_envs": 16, "rollout_steps": 5, "length": 8, "overlap": 4, "burn_in": 0}
    known = {field.name for field in dataclasses.fields(kit.config())}
    settings = {name: value for name, value in settings.items() if name in known} | {"learning_starts": 40}
    taken = []
    for batches in range(1, 12):
        with contextlib.suppress(ConfigError):
            taken.append(kit.config(total_steps=batches * 80, **settings))
    assert 0 < len(taken) < 11
    assert kit.run(taken[0])[0].summary().updates > 0


def test_a_run_that_keeps_its_memory_goes_on_with_it(kit: Any, tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    first, _ = kit.run(kit.config(total_steps=10 * 64, keep_memory=True), checkpoints=checkpoints)
    items = len(first.updater.memory)
    second = kit.LEARNER(
        kit.config(total_steps=11 * 64, keep_memory=True), checkpoints=checkpoints, resume=checkpoints.load()
    )
    update = next(iter(second.updates()))
    assert update.metrics[keys.REPLAY_SIZE.name] > items / 2, "the memory was there before the first batch"
    assert not torch.equal(next(first.network.parameters()), next(second.network.parameters()))


def test_a_memory_of_other_settings_is_not_taken(
    kit: Any, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path)
    kit.run(kit.config(total_steps=10 * 64, keep_memory=True), checkpoints=checkpoints)
    second = kit.LEARNER(
        kit.config(total_steps=11 * 64, keep_memory=True, reward_scale=0.1),
        checkpoints=checkpoints,
        resume=checkpoints.load(),
    )
    assert next(iter(second.updates())).metrics[keys.REPLAY_SIZE.name] <= 64
    assert "goes on with an empty memory" in caplog.text
    assert "reward_scale=1.0, and this one has reward_scale=0.1" in caplog.text


def test_observations_may_lie_in_a_folder(kit: Any, tmp_path: pathlib.Path) -> None:
    settings = kit.config(total_steps=10 * 64)
    kept = kit.run(settings)[0]
    lying = kit.run(dataclasses.replace(settings, memory_folder=str(tmp_path / "scratch")))[0]
    for one, two in zip(kept.network.parameters(), lying.network.parameters(), strict=True):
        assert torch.equal(one, two)
    assert list((tmp_path / "scratch").iterdir()) == [], "it has no name"


def test_who_only_plays_needs_no_memory(kit: Any) -> None:
    settings = kit.config(memory_folder="/nowhere/at/all", keep_memory=True, capacity=10**15)
    assert updater(kit, settings.for_playing()).memory.nbytes < 10**6


def test_what_is_judged_does_not_explore_and_suits_any_number_of_slots(kit: Any) -> None:
    subject = updater(kit, kit.config(num_envs=3))
    assert subject.acting.distribution.epsilon == pytest.approx((0.4, 0.4**4.5, 0.4**8))
    assert subject.judged.distribution.epsilon == 0.0
    assert subject.config.judged_greedily
    assert next(subject.judged.parameters()) is next(subject.network.parameters())
    state = tuple(torch.zeros(2, *leaf.shape) for leaf in subject.network.state)
    q = subject.judged(torch.eye(2), state)[0].detach().numpy()
    chosen = subject.judged.distribution.sample(q, np.full((2, 1), 0.99))
    assert chosen.tolist() == q.argmax(-1).tolist()


def test_the_slots_that_count_are_the_greediest(kit: Any) -> None:
    assert kit.config(num_envs=8).scored_slots() == range(5, 8)
    assert kit.config(num_envs=9).scored_slots() == range(6, 9)
    assert kit.config(num_envs=8, epsilon_power=0.0).scored_slots() == range(8)


def test_only_choices_can_be_learned(kit: Any) -> None:
    with pytest.raises(ConfigError, match="needs a Discrete action space"):
        kit.run(kit.config(env_id="test/Lever-box-v0"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 1.5}, r"epsilon=1\.5 must be at most 1"),
        ({"epsilon": -0.1}, r"epsilon=-0\.1 must be at least 0"),
        ({"epsilon_power": -1.0}, r"epsilon_power=-1\.0 must be at least 0"),
        ({"n_step": 0}, "n_step=0 must be at least 1"),
        ({"learning_starts": 10**9}, "the first update would never come"),
    ],
)
def test_settings_that_do_not_fit_are_refused(kit: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kit.config(**settings)
