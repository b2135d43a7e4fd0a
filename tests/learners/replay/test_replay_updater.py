"""What learners with a memory share: what goes in, comes out, is told back, followed and published."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from clusterenv.learners.common.measured import measured
from clusterenv.learners.replay import disk
from clusterenv.learners.replay.config import ReplayConfig
from clusterenv.learners.replay.updater import ReplayUpdater, follow, on_device
from clusterenv.metrics import keys
from tests.learners.replay.kit import batch_of

if TYPE_CHECKING:
    import pathlib

    from clusterenv.env.batch import Batch


class Numbers(NamedTuple):
    value: Any
    pair: Any


class Drawing(NamedTuple):
    ids: Any
    weights: Any
    data: Any


class Kept:
    """A memory of numbers, that gives the oldest."""

    def __init__(self) -> None:
        self.items: list[float] = []
        self.told: list[tuple[list[int], list[float]]] = []

    def __len__(self) -> int:
        return len(self.items)

    def sample(self, count: int) -> Drawing:
        ids = np.arange(count)
        values = np.array(self.items[:count])
        return Drawing(ids, np.ones(count, np.float32), Numbers(values, {"a": values, "b": (values,)}))

    def update(self, ids: Any, priorities: Any) -> None:
        self.told.append((list(ids), list(priorities)))

    def save(self, folder: Any) -> None:
        disk.save(folder, {}, None, {"items": np.array(self.items)})

    def load(self, folder: Any) -> None:
        self.items = disk.Saved(folder, {}).read("items").tolist()


class Sums(ReplayUpdater[ReplayConfig, nn.Linear]):
    """Learns one weight."""

    def __init__(self, config: ReplayConfig) -> None:
        network = nn.Linear(1, 1)
        self.kept = Kept()
        super().__init__(config, network, torch.optim.SGD(network.parameters(), lr=0.1), self.kept)

    def insert(self, batch: Any) -> int:
        self.kept.items.extend(batch.reward[:, 0].tolist())
        return len(batch.reward)

    def gradient_step(
        self, data: Any, weights: torch.Tensor, *more: Any
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        self.optimizer.zero_grad()
        loss = (weights * self.network(data.value[:, None]).squeeze(-1)).mean()
        loss.backward()
        self.optimizer.step()
        return measured({keys.POLICY_LOSS: loss}), torch.arange(len(weights)) + 0.5


def updater(**changes: Any) -> Sums:
    settings: dict[str, Any] = {
        "learning_starts": 4,
        "sample_size": 2,
        "samples_per_insert": 1.0,
        "publish_every": 2,
        "target_every": 3,
        **changes,
    }
    return Sums(ReplayConfig(num_envs=1, rollout_steps=2, **settings))


def rewarding(values: list[float]) -> Batch:
    """A batch of one slot with these rewards, and of nothing else."""
    absent = dict.fromkeys(("obs", "action", "terminated", "truncated", "first", "final_obs", "final_at", "slot"))
    return batch_of(reward=np.array(values, np.float32)[:, None], worker_lost=None, states=None, **absent)


def feed(subject: Sums, *batches: list[float] | None) -> list[int]:
    """Give it batches with these rewards (None for none), and say at which of them it published."""
    published: list[int] = []
    for number, values in enumerate(batches):
        batch = None if values is None else rewarding(values)
        subject.update(batch, 1.0, lambda number=number: published.append(number))  # type: ignore[misc]
    return published


def test_nothing_is_learned_before_the_memory_is_filled() -> None:
    subject = updater()
    before = subject.network.weight.clone()
    metrics = subject.update(rewarding([1.0, 2.0]), 1.0, lambda: None)
    assert subject.needs_batch
    assert metrics == {"replay/size": 2, "replay/samples_per_insert": 0.0, "replay/insertions_wait": 0.0}
    assert torch.equal(subject.network.weight, before)


def test_the_rate_decides_whether_it_needs_or_takes_a_batch() -> None:
    subject = updater()
    feed(subject, [0.0] * 4, [0.0] * 4)
    assert (subject.updates, subject.needs_batch) == (1, False)
    feed(subject, None)
    assert (subject.updates, subject.needs_batch) == (2, True)
    slack = subject.config.slack
    while subject.takes_batch:
        subject.limiter.inserted(1)
    assert subject.limiter.allowed - subject.limiter.samples == slack


def test_the_metrics_tell_who_waits_for_whom() -> None:
    subject = updater()
    metrics = subject.update(rewarding([0.0] * 24), 1.0, lambda: None)
    assert (metrics["replay/samples_per_insert"], metrics["replay/insertions_wait"]) == (0.1, 1.0)
    while not subject.needs_batch:
        metrics = subject.update(None, 1.0, lambda: None)
    assert (metrics["replay/samples_per_insert"], metrics["replay/insertions_wait"]) == (1.0, 0.0)


def test_rewards_are_stored_as_they_are_learned_from() -> None:
    subject, batch = updater(reward="clip", reward_scale=2.0), rewarding([5.0, -0.5])
    subject.update(batch, 1.0, lambda: None)
    assert subject.kept.items == [2.0, -1.0]
    assert batch.reward.flatten().tolist() == [5.0, -0.5], "the loop tells returns of its own batch"


def test_the_memory_is_told_what_surprised() -> None:
    subject = updater()
    feed(subject, [0.0] * 6)
    assert subject.kept.told == [([0, 1], [0.5, 1.5])]


def test_versions_and_targets_come_at_their_updates() -> None:
    subject = updater()
    assert feed(subject, [1.0] * 20, None, None, None) == [1, 3]
    assert not torch.equal(subject.target.weight, subject.network.weight)  # a copy of the third, not of the fourth
    copied = []
    for _ in range(4):
        feed(subject, None)
        copied.append(torch.equal(subject.target.weight, subject.network.weight))
    assert copied == [False, True, False, False]


def test_a_checkpoint_has_the_target_and_the_count() -> None:
    subject, other = updater(), updater()
    feed(subject, [1.0] * 20, None, None, None)
    other.restore(subject.tensors())
    assert other.updates == 4
    assert torch.equal(other.target.weight, subject.target.weight)
    assert torch.equal(other.network.weight, subject.network.weight)


def test_a_memory_that_is_kept_is_learned_from_no_more_than_it_should_be(tmp_path: pathlib.Path) -> None:
    subject, other = updater(keep_memory=True), updater(keep_memory=True)
    feed(subject, [1.0] * 20)  # of 16 samples that it may have, it had two
    subject.save_beside(tmp_path)
    other.load_beside(tmp_path)
    assert other.kept.items == [1.0] * 20
    assert (other.needs_batch, other.takes_batch) == (True, True)
    feed(other, [2.0] * 2)
    assert other.updates == 1


def test_a_memory_that_had_not_begun_goes_on_filling(tmp_path: pathlib.Path) -> None:
    subject, other = updater(keep_memory=True), updater(keep_memory=True)
    feed(subject, [1.0] * 3)
    subject.save_beside(tmp_path)
    other.load_beside(tmp_path)
    feed(other, [2.0])
    assert other.updates == 0
    feed(other, [2.0] * 2)
    assert other.updates == 1


def test_a_memory_is_kept_only_if_it_was_asked_for(tmp_path: pathlib.Path) -> None:
    subject, other = updater(), updater(keep_memory=True)
    feed(subject, [1.0] * 20)
    subject.save_beside(tmp_path)
    other.load_beside(tmp_path)
    assert not list(tmp_path.iterdir())
    assert not other.kept.items
    other.save_beside(tmp_path)
    subject.load_beside(tmp_path)
    assert len(subject.kept.items) == 20, "not what the other has saved, which is nothing"


def test_a_memory_that_cannot_be_saved_or_read_stops_nobody(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    subject = updater(keep_memory=True)
    feed(subject, [1.0] * 20)
    (tmp_path / "file").touch()
    subject.save_beside(tmp_path / "file")
    assert "the memory was not saved: " in caplog.text
    subject.save_beside(tmp_path)
    (path,) = tmp_path.glob("memory/*/items")
    path.write_bytes(b"damaged")
    other = updater(keep_memory=True)
    other.load_beside(tmp_path)
    assert "this run goes on with an empty memory: " in caplog.text
    assert other.kept.items == []


@pytest.mark.parametrize(("rate", "share"), [(1.0, 1.0), (0.25, 0.25)])
def test_a_target_moves_its_share_and_takes_buffers_whole(rate: float, share: float) -> None:
    target, source = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    with torch.no_grad():
        source.weight.fill_(5.0)
        source.running_mean.fill_(3.0)  # type: ignore[union-attr]
    follow(target, source, rate)
    torch.testing.assert_close(target.weight.detach(), torch.full((2,), 1 + 4 * share))
    torch.testing.assert_close(target.running_mean, torch.full((2,), 3.0))


def test_a_sample_becomes_tensors_but_for_its_ids() -> None:
    kept = Kept()
    kept.items = [1.0, 2.0]
    sample = on_device(kept.sample(2), "cpu")
    assert sample.weights.dtype == sample.data.value.dtype == sample.data.pair["b"][0].dtype == torch.float32
    assert isinstance(sample.ids, np.ndarray)
