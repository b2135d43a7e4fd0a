"""IMPACT as a whole: what it has for itself, beside `test_unroll_learners`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from clusterenv.errors import ConfigError
from clusterenv.learners.common import divergence
from clusterenv.learners.impact import IMPACT, IMPACTConfig
from clusterenv.metrics import keys
from clusterenv.metrics.recorder import Recorder
from tests.learners.batches import SPACES, N, T, made_up, made_up_arrays
from tests.learners.runs import LEVER, Notebook


def config(**changes: Any) -> IMPACTConfig:
    return IMPACTConfig(**{**LEVER, "uses": 1, "target_every": 4, **changes})


def run(settings: IMPACTConfig, **kwargs: Any) -> tuple[IMPACT, Notebook]:
    notebook = Notebook()
    learner = IMPACT(settings, recorder=Recorder([notebook]), **kwargs)
    learner.train()
    return learner, notebook


@pytest.mark.parametrize(
    "changes", [{"lstm": 16}, {"normalize_observations": True}, {"kl_coef": 0.1}, {"normalize_advantage": True}]
)
def test_it_learns_with(changes: dict[str, Any]) -> None:
    learner, _ = run(config(**changes))
    assert learner.summary().final_return > 3.4


def test_a_stream_ends_with_its_budget_and_learns_from_all_that_is_left() -> None:
    settings = config(mode="stream", stream_slots=4, cluster="local:1", total_steps=10 * 32, uses=3, record_every=1)
    learner, notebook = run(settings)
    assert learner.summary().steps == 320
    assert len(notebook.rows) == 30


@pytest.mark.parametrize("part", [{"target_every": 0}, {"rho": None}, {"buffer_batches": 1, "uses": 1}])
def test_it_learns_without_any_one_of_its_parts(part: dict[str, Any]) -> None:
    learner, _ = run(config(**part))
    assert learner.summary().final_return > 3.4


def test_every_batch_is_used_as_often_as_it_may() -> None:
    learner, notebook = run(config(total_steps=640, uses=3, record_every=1))
    assert learner.summary().steps == 640
    assert [row[keys.REUSE.name] for row in notebook.rows] == [1, 2, 3] * 10
    assert notebook.rows[-1][keys.DROPPED.name] == 0


def test_a_wanted_divergence_goes_with_a_weight() -> None:
    assert config(kl_target=0.01, kl_coef=1.0).kl_target == 0.01
    assert config(kl_coef=0.0, kl_target=0.04).kl_coef == 0  # all that is said is the default


def test_in_lock_step_there_is_never_more_than_one_batch() -> None:
    """As the page says: neither the size of the buffer nor pushing out changes anything."""
    runs = [{"buffer_batches": 1}, {"buffer_batches": 4}, {"buffer_batches": 4, "overwrite": True}]
    learners = [run(config(total_steps=320, uses=3, **changes))[0] for changes in runs]
    for first, *others in zip(*(learner.network.parameters() for learner in learners), strict=True):
        assert all(torch.equal(first, other) for other in others)


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


class Overflowing:
    """Workers that are always faster than the learner."""

    ready, taken = True, 0

    def next(self) -> Any:
        self.taken += 1
        return made_up_arrays()

    def publish(self, policy: Any) -> None:
        pass


@pytest.mark.parametrize(("changes", "taken"), [({"overwrite": True}, [3, 6]), ({}, [1, 2])])
def test_all_batches_that_are_there_are_taken_if_they_push_out_old_ones(changes: Any, taken: list[int]) -> None:
    """Those that are left where they are hold the workers up."""
    learner, source = IMPACT(config(buffer_batches=3, uses=5, **changes)), Overflowing()
    learner._updater = learner.make_updater(*SPACES)
    for count in taken:
        learner._learn(source)  # type: ignore[arg-type]
        assert source.taken == count
    assert learner.summary().steps == taken[-1] * T * N
    assert learner.summary().updates == 2
    subject: Any = learner.updater
    assert len(subject.buffer) == min(3, taken[-1])


def test_what_was_dropped_is_told_as_a_total() -> None:
    """And not as the mean of the totals after each update of a row."""
    learner, source = IMPACT(config(buffer_batches=1, uses=5, overwrite=True)), Overflowing()
    learner._updater = learner.make_updater(*SPACES)
    for _ in range(3):
        learner._learn(source)  # type: ignore[arg-type]
    assert learner._means.take()[keys.DROPPED.name] == learner.updater.buffer.dropped_uses == 8  # type: ignore[attr-defined]


def test_more_batches_are_not_taken_than_the_budget_has_room_for() -> None:
    learner, source = IMPACT(config(overwrite=True)), Overflowing()
    learner._updater = learner.make_updater(*SPACES)
    learner._tracker.steps = learner.config.total_steps - learner.config.batch_size
    learner._learn(source)  # type: ignore[arg-type]
    assert source.taken == 1


def test_the_target_follows_now_and_then() -> None:
    subject = IMPACT(config(target_every=2, uses=10)).make_updater(*SPACES)
    same = []
    for _ in range(4):
        subject.update(made_up() if subject.needs_batch else None, 1.0, lambda: None)
        pairs = zip(subject.network.parameters(), subject.target.parameters(), strict=True)
        same.append(all(torch.equal(one, other) for one, other in pairs))
    assert same == [False, True, False, True]


def test_what_counts_as_a_large_ratio_can_be_set() -> None:
    shares = []
    for bar in (1.0, 1e9):
        subject = IMPACT(config(rho_bar=bar)).make_updater(*SPACES)
        shares.append(subject.update(made_up(), 1.0, lambda: None)[keys.RHO_CLIPPED.name])
    assert shares[0] > 0
    assert shares[1] == 0


def test_what_is_saved_is_all_there_is_but_the_batches() -> None:
    one, other = (IMPACT(config(seed=seed, kl_coef=0.5, uses=1)).make_updater(*SPACES) for seed in (1, 5))
    one.update(made_up(), 1.0, lambda: None)
    other.restore(one.tensors())
    for subject in (one, other):
        subject.update(made_up(), 0.5, lambda: None)
    for left, right in zip(one.tensors().values(), other.tensors().values(), strict=True):
        assert torch.equal(left, right)


def kl_coefs(monkeypatch: pytest.MonkeyPatch, apart: list[float], save_at: int | None = None, **changes: Any) -> Any:
    """The weight of the divergence after each update, if the divergences are these; saved and restored on the way."""
    given = iter(apart)
    monkeypatch.setattr(divergence, "kl", lambda *_: torch.tensor(next(given)))
    settings = config(**{"kl_coef": 1.0, "kl_target": 0.04, "target_every": 4, **changes})
    subject, told = IMPACT(settings).make_updater(*SPACES), []
    for count in range(len(apart)):
        if count == save_at:
            saved, subject = subject.tensors(), IMPACT(settings).make_updater(*SPACES)
            subject.restore(saved)
        subject.update(made_up(), 1.0, lambda: None)
        told.append(subject.tensors()["counters"][1].item())
    return told


def test_a_divergence_whose_mean_is_as_wanted_leaves_its_weight_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is 0 right after each copy of the target network, whatever the weight."""
    assert kl_coefs(monkeypatch, [0.0, 0.02, 0.06, 0.08] * 3) == [1.0] * 12


@pytest.mark.parametrize(("largest", "factor"), [(0.3, 1.5), (0.03, 0.5)])
def test_the_weight_of_the_divergence_is_steered_once_for_each_target(
    monkeypatch: pytest.MonkeyPatch, largest: float, factor: float
) -> None:
    told = kl_coefs(monkeypatch, [0.0, largest / 3, largest * 2 / 3, largest] * 2)
    assert told == [1.0] * 3 + [factor] * 4 + [factor**2]


def test_without_a_target_network_every_divergence_steers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kl_coefs(monkeypatch, [0.1, 0.04, 0.01], target_every=0) == [1.5, 1.5, 0.75]


def test_the_mean_of_the_divergence_survives_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kl_coefs(monkeypatch, [0.3, 0.3, 0.0, 0.0], save_at=2)[-1] == 1.5


@pytest.mark.parametrize(("saved", "wanted", "used"), [(0.0, 1.0, 1.0), (1.0, 0.0, 0.0), (0.25, 1.0, 0.25)])
def test_a_weight_that_is_switched_on_or_off_with_a_resume_is_taken_from_the_settings(
    saved: float, wanted: float, used: float
) -> None:
    counters = torch.tensor([7.0, saved, 0.0, 0.0], dtype=torch.float64)
    subject = IMPACT(config(kl_coef=wanted)).make_updater(*SPACES)
    subject.restore({**subject.tensors(), "counters": counters})
    assert subject.tensors()["counters"][1].item() == used


def test_a_checkpoint_without_a_sum_of_divergences_is_taken() -> None:
    subject = IMPACT(config(kl_coef=0.5)).make_updater(*SPACES)
    subject.update(made_up(), 1.0, lambda: None)
    subject.restore({**subject.tensors(), "counters": torch.tensor([7.0, 0.25], dtype=torch.float64)})
    assert subject.tensors()["counters"].tolist() == [7.0, 0.25, 0.0, 0.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"uses": 0}, "uses=0 must be at least 1"),
        ({"buffer_batches": 0}, "buffer_batches=0 must be at least 1"),
        ({"rho": 0.0}, r"rho=0\.0 must be more than 0"),
        ({"clip": -1.0}, "clip"),
        ({"target_every": -1}, "target_every=-1 must be at least 0"),
        ({"kl_target": 0.01}, r"kl_target=0\.01 with kl_coef=0 would do nothing.* Set kl_coef too"),
        ({"total_steps": 10}, "less than one batch"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**settings)
