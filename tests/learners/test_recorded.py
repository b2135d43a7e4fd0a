"""A gradient step as a CUDA graph: the same numbers and the same weights. Off a GPU it is not used."""

from __future__ import annotations

import contextlib
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from clusterenv.errors import ConfigError
from clusterenv.learners.apex.config import ApeXConfig
from clusterenv.learners.apex.update import ApeXUpdater
from clusterenv.learners.common import updater as updating
from clusterenv.learners.common.recorded import Recorded, recorded
from clusterenv.learners.r2d2.config import R2D2Config
from clusterenv.learners.r2d2.update import R2D2Updater
from clusterenv.learners.replay.priorities import Sample
from clusterenv.learners.replay.sequences import Sequences
from clusterenv.learners.replay.transitions import Transitions
from clusterenv.learners.replay.updater import on_device
from clusterenv.learners.sac.config import SACConfig
from clusterenv.learners.sac.update import SACUpdater

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterenv.learners.replay.updater import Drawn

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
SEEN = spaces.Box(-1, 1, (3,))
ROWS, LENGTH, BURN_IN = 8, 5, 2


def updater(name: str, graphs: str, device: str = "cuda") -> Any:
    common: dict[str, Any] = {"num_envs": 2, "hidden": (16,), "learning_starts": 8, "sample_size": ROWS, "anneal": True}
    common |= {"cuda_graphs": graphs, "device": device, "prioritized": True, "normalize_observations": True}
    if name == "sac":
        return SACUpdater(SACConfig(**common), SEEN, spaces.Box(-2, 2, (2,)))
    if name == "r2d2":
        config = R2D2Config(**common, lstm=8, length=LENGTH, burn_in=BURN_IN, overlap=1, n_step=2)
        return R2D2Updater(config, SEEN, spaces.Discrete(3))
    return ApeXUpdater(ApeXConfig(**common, optimizer=name.removeprefix("apex-")), SEEN, spaces.Discrete(3))  # type: ignore[arg-type]


def sample(name: str, seed: int, device: str = "cuda") -> Drawn:
    source = np.random.default_rng(seed)
    weights = source.uniform(0.5, 1.0, ROWS).astype(np.float32)
    data = sequences(source) if name == "r2d2" else transitions(source, continuous=name == "sac")
    return on_device(Sample(np.arange(ROWS), weights, data), device)


def transitions(source: np.random.Generator, *, continuous: bool) -> Transitions:
    return Transitions(
        obs=source.normal(size=(ROWS, 3)).astype(np.float32),
        action=source.uniform(-2, 2, (ROWS, 2)).astype(np.float32) if continuous else source.integers(3, size=ROWS),
        reward=source.normal(size=ROWS).astype(np.float32),
        discount=np.where(source.random(ROWS) < 0.3, 0.0, 0.99).astype(np.float32),
        next_obs=source.normal(size=(ROWS, 3)).astype(np.float32),
    )


def sequences(source: np.random.Generator) -> Sequences:
    steps = BURN_IN + LENGTH
    mask = np.zeros((steps, ROWS), bool)
    mask[BURN_IN:] = np.arange(LENGTH)[:, None] < source.integers(1, LENGTH + 1, ROWS)
    return Sequences(
        obs=source.normal(size=(steps + 1, ROWS, 3)).astype(np.float32),
        action=source.integers(3, size=(steps, ROWS)),
        reward=source.normal(size=(steps, ROWS)).astype(np.float32),
        terminated=source.random((steps, ROWS)) < 0.1,
        truncated=np.zeros((steps, ROWS), bool),
        first=source.random((steps + 1, ROWS)) < 0.1,
        state=tuple(source.normal(size=(ROWS, 8)).astype(np.float32) for _ in range(2)),
        mask=mask,
        burn_in=np.full(ROWS, BURN_IN),
    )


LEARNERS = ["sac", "apex-adam", "apex-rmsprop", "r2d2"]


@pytest.mark.parametrize("graphs", ["auto", "on", "off"])
@pytest.mark.parametrize("name", LEARNERS)
def test_off_a_gpu_a_step_runs_as_it_is(name: str, graphs: str) -> None:
    subject = updater(name, graphs, "cpu")
    assert not isinstance(subject._step, Recorded)
    assert all(isinstance(group["lr"], float) for group in subject.optimizer.param_groups)
    assert np.isfinite(list(subject.learn(sample(name, 0, "cpu"), 0.5).metrics.values())).all()


@on_a_gpu
@pytest.mark.parametrize("name", LEARNERS)
def test_what_is_played_back_is_the_step(name: str) -> None:
    """With another sample, another learning rate and another scale of observations each time."""
    plain, subject = updater(name, "off"), updater(name, "on")
    for turn in range(10):
        left, seen = 1.0 - turn / 20, torch.full((4, 3), 0.1 * turn, device="cuda")
        expected, found = (each.learn(sample(name, turn), left) for each in (plain, subject))
        assert found.metrics == pytest.approx(expected.metrics, rel=1e-3, abs=1e-5)
        np.testing.assert_allclose(found.priorities, expected.priorities, rtol=1e-3, atol=1e-5)
        for each in (plain, subject):
            each.acting.learn_scale(seen)
    assert subject._step.graphs == 1
    same(subject, plain)


@on_a_gpu
@pytest.mark.parametrize("name", LEARNERS)
def test_a_step_goes_on_from_a_checkpoint_that_is_taken_in_later(name: str) -> None:
    plain, subject = updater(name, "off"), updater(name, "on")
    for turn in range(5):
        plain.learn(sample(name, turn), 1.0)
        subject.learn(sample(name, 100 + turn), 1.0)
    subject.restore({key: tensor.clone() for key, tensor in plain.tensors().items()})
    for turn in range(6):
        for each in (plain, subject):
            each.learn(sample(name, 200 + turn), 0.5)
    assert subject._step.graphs == 1
    same(subject, plain)


def same(one: Any, other: Any) -> None:
    tensors = other.tensors()
    assert one.tensors().keys() == tensors.keys()
    for key, tensor in one.tensors().items():
        # An optimiser that need not be recorded counts its steps on the CPU.
        torch.testing.assert_close(tensor.cpu(), tensors[key].cpu(), rtol=1e-3, atol=1e-5)


def looks(value: Tensor) -> tuple[Tensor, ...]:
    """Reads a number back, which nothing that is recorded can."""
    return (value * value.sum().item(),)


@on_a_gpu
def test_a_step_that_cannot_be_recorded_runs_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    subject = recorded(looks, torch.optim.SGD([torch.zeros(1, device="cuda")]), "cuda", "auto")
    with caplog.at_level(logging.WARNING):
        found = [subject(torch.full((2,), float(turn), device="cuda"))[0].tolist() for turn in range(8)]
    assert found == [[2.0 * turn**2] * 2 for turn in range(8)]
    assert [record.message.partition(":")[0] for record in caplog.records] == ["updates are run without a CUDA graph"]


@on_a_gpu
def test_a_step_that_must_be_recorded_says_why_it_cannot() -> None:
    subject = recorded(looks, torch.optim.SGD([torch.zeros(1, device="cuda")]), "cuda", "on")
    value = torch.ones(2, device="cuda")
    for _ in range(3):
        subject(value)
    with pytest.raises(ConfigError, match="an update cannot be recorded as a CUDA graph"):
        subject(value)


class Graph:
    """What was recorded: done at every `replay`, and never before."""

    def __init__(self) -> None:
        self.replay: Callable[[], None] = lambda: None


class MadeUpGpu:
    """Does at once what it is asked to, unless it is recorded: then it is done when that is played back.

    Args:
        refuses: it cannot be recorded.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, refuses: bool = False) -> None:
        self.total, self.refuses = torch.zeros(2), refuses
        self.graphs: list[Graph] = []
        self._recording: Graph | None = None
        stream = SimpleNamespace(wait_stream=lambda other: None)
        for name in ("Stream", "current_stream"):
            monkeypatch.setattr(torch.cuda, name, lambda device: stream)
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "graph", self._record)

    @contextlib.contextmanager
    def _record(self, graph: Graph, **_: Any) -> Iterator[None]:
        self._recording = graph
        try:
            yield
        finally:
            self._recording = None
        self.graphs.append(graph)

    def add(self, parts: dict[str, Tensor], more: Tensor) -> tuple[Tensor, ...]:
        """Add up everything that was ever given."""
        total, told = self.total, torch.zeros(2)

        def work() -> None:
            total.add_(parts["a"].mean()).add_(more)
            told.copy_(total)

        if self._recording is None:
            work()
        elif self.refuses:
            raise RuntimeError("operation not permitted when stream is capturing")
        else:
            self._recording.replay = work
        return (told,)


def added(subject: Recorded, turns: range, size: int = 2) -> list[float]:
    return [subject({"a": torch.full((size,), float(turn))}, torch.ones(2))[0][0].item() for turn in turns]


def test_every_call_is_done_once_with_its_own_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = MadeUpGpu(monkeypatch)
    subject = Recorded(gpu.add, "cpu", must=True)
    assert added(subject, range(3)) == [1, 3, 6]
    assert not gpu.graphs
    assert added(subject, range(3, 8)) == [10, 15, 21, 28, 36]
    assert len(gpu.graphs) == 1


def test_inputs_of_other_shapes_are_recorded_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = MadeUpGpu(monkeypatch)
    subject = Recorded(gpu.add, "cpu", must=True)
    found = [added(subject, range(turn, turn + 1), size)[0] for turn in range(8) for size in (2, 3)]
    assert found == [1, 2, 4, 6, 9, 12, 16, 20, 25, 30, 36, 42, 49, 56, 64, 72]
    assert len(gpu.graphs) == subject.graphs == 2


def test_inputs_of_other_types_are_recorded_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = MadeUpGpu(monkeypatch)
    subject = Recorded(gpu.add, "cpu", must=True)
    for turn in range(5):
        for more in (torch.full((2,), 0.5), torch.full((2,), 1), torch.full((1,), 1)):
            subject({"a": torch.zeros(2)}, more)
        assert gpu.total.tolist() == [2.5 * (turn + 1)] * 2
    assert subject.graphs == 3


def test_shapes_that_are_rare_take_no_place_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = MadeUpGpu(monkeypatch)
    subject = Recorded(gpu.add, "cpu", must=True)
    for size in range(1, 12):
        added(subject, range(1), size)
    added(subject, range(4), 20)
    assert subject.graphs == 1


def test_inputs_of_too_many_shapes_are_worked_on_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = MadeUpGpu(monkeypatch)
    subject = Recorded(gpu.add, "cpu", must=True)
    for turn in range(6):
        for size in range(1, 12):
            assert added(subject, range(1), size) == [11 * turn + size]
    assert len(gpu.graphs) == subject.graphs == 8


def test_tensors_that_took_the_place_of_others_are_recorded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = MadeUpGpu(monkeypatch)
    subject = Recorded(gpu.add, "cpu", must=True)
    added(subject, range(5))
    gpu.total = torch.full((2,), 100.0)
    subject.forget()
    assert added(subject, range(3)) == [101, 103, 106]
    assert len(gpu.graphs) == 1  # what a first call sets up is set up again
    assert added(subject, range(3, 6)) == [110, 115, 121]
    assert len(gpu.graphs) == 2


def test_what_cannot_be_recorded_is_done_as_it_is_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = MadeUpGpu(monkeypatch, refuses=True)
    with caplog.at_level(logging.WARNING):
        assert added(Recorded(gpu.add, "cpu", must=False), range(6)) == [1, 3, 6, 10, 15, 21]
    assert [record.message.partition(":")[0] for record in caplog.records] == ["updates are run without a CUDA graph"]
    with pytest.raises(ConfigError, match="not permitted when stream is capturing"):
        added(Recorded(gpu.add, "cpu", must=True), range(4))


def test_what_was_recorded_is_given_up_once_something_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory may have run out, and graphs hold much of it."""
    gpu = MadeUpGpu(monkeypatch)
    subject = Recorded(gpu.add, "cpu", must=False)
    assert added(subject, range(4), size=2) == [1, 3, 6, 10]
    assert subject.graphs == 1
    gpu.refuses = True
    assert added(subject, range(4), size=3) == [11, 13, 16, 20]
    assert subject.graphs == 0
    assert added(subject, range(2), size=2) == [21, 23]


@pytest.mark.parametrize("name", LEARNERS)
def test_a_checkpoint_that_is_taken_in_is_recorded_anew(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = MadeUpGpu(monkeypatch)
    monkeypatch.setattr(updating, "recorded", lambda *_: Recorded(gpu.add, "cpu", must=True))
    subject = updater(name, "auto", "cpu")
    added(subject._step, range(4))
    subject.restore(subject.tensors())
    added(subject._step, range(4))
    assert len(gpu.graphs) == 2


def test_a_learning_rate_that_is_read_from_the_device_is_changed_in_place() -> None:
    subject = updater("sac", "off", "cpu")
    rates = [torch.tensor(group["lr"]) for group in subject.optimizer.param_groups]
    for group, rate in zip(subject.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    subject.anneal(0.5)
    assert all(group["lr"] is rate for group, rate in zip(subject.optimizer.param_groups, rates, strict=True))
    assert [rate.item() for rate in rates] == pytest.approx([1.5e-4, 5e-4, 5e-4])
