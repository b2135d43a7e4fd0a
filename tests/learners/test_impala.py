"""IMPALA as a whole: what it has for itself, beside `test_unroll_learners`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from clusterenv.errors import ConfigError
from clusterenv.learners.impala import IMPALA, IMPALAConfig
from clusterenv.metrics import keys
from clusterenv.metrics.recorder import Recorder
from tests.learners.batches import SPACES, N, T, made_up
from tests.learners.runs import LEVER, Notebook


def config(**changes: Any) -> IMPALAConfig:
    return IMPALAConfig(**{**LEVER, "optimizer": "adam", **changes})


def run(settings: IMPALAConfig, **kwargs: Any) -> tuple[IMPALA, Notebook]:
    notebook = Notebook()
    learner = IMPALA(settings, recorder=Recorder([notebook]), **kwargs)
    learner.train()
    return learner, notebook


@pytest.mark.parametrize("changes", [{"lstm": 16}, {"normalize_observations": True}, {"reduction": "sum"}])
def test_it_learns_with(changes: dict[str, Any]) -> None:
    learner, _ = run(config(**changes))
    assert learner.summary().final_return > 3.4


@pytest.mark.parametrize("optimizer", ["rmsprop", "rmsprop-tf"])
def test_it_learns_by_either_rmsprop(optimizer: str) -> None:
    # Summed losses, as published: the mean of squares of rmsprop-tf starts at 1, beside which a mean is nothing.
    learner, _ = run(config(optimizer=optimizer, learning_rate=0.01, reduction="sum"))
    assert learner.summary().final_return > 3.4


def test_without_its_correction_old_data_is_taken_for_new() -> None:
    """The same old data: with V-trace an action that the learner no longer takes weighs less."""
    old = made_up(logp=torch.log(torch.full((4, 2), 0.99)).numpy())
    losses = {}
    for correction in ("v-trace", "none"):
        subject = IMPALA(config(correction=correction)).make_updater(*SPACES)
        losses[correction] = subject.update(old, 1.0, lambda: None)[keys.POLICY_LOSS.name]
    assert abs(losses["v-trace"]) < abs(losses["none"])


def test_versions_keep_their_beat_over_a_checkpoint() -> None:
    one, other = (IMPALA(config(publish_every=3)).make_updater(*SPACES) for _ in range(2))
    published: list[str] = []
    for _ in range(2):
        one.update(made_up(), 1.0, lambda: published.append("first"))
    other.restore(one.tensors())
    for _ in range(3):
        other.update(made_up(), 1.0, lambda: published.append("resumed"))
        published.append("-")
    assert published == ["resumed", "-", "-", "-"]


def test_a_checkpoint_without_a_count_of_updates_is_taken() -> None:
    subject = IMPALA(config()).make_updater(*SPACES)
    subject.update(made_up(), 1.0, lambda: None)
    saved = subject.tensors()
    del saved["updates"]
    other = IMPALA(config(seed=5)).make_updater(*SPACES)
    other.restore(saved)
    assert torch.equal(next(subject.network.parameters()), next(other.network.parameters()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lstm": -1}, "lstm=-1 must be at least 0"),
        ({"rmsprop_eps": 0.0}, "rmsprop_eps"),
        ({"total_steps": 10}, "less than one batch"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**settings)


def test_losses_are_told_per_transition_whatever_is_summed_up() -> None:
    def told(**changes: Any) -> dict[str, float]:
        config = IMPALAConfig(num_envs=N, rollout_steps=T, hidden=(8,), **changes)
        return IMPALA(config).make_updater(*SPACES).update(made_up(), 1.0, lambda: None)

    mean, total = told(), told(reduction="sum")
    for key in (keys.POLICY_LOSS, keys.VALUE_LOSS, keys.ENTROPY):
        assert total[key.name] == pytest.approx(mean[key.name], rel=1e-5)
    assert total[keys.GRAD_NORM.name] == pytest.approx(mean[keys.GRAD_NORM.name] * T * N, rel=1e-4)
