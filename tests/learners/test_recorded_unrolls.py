"""Gradient steps on unrolls as CUDA graphs: the same numbers and the same weights, however many episodes end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from clusterenv.learners import catalog
from clusterenv.learners.common import trees
from clusterenv.learners.common.recorded import Recorded
from clusterenv.learners.common.updater import Updater
from tests.learners.batches import SPACES, N, T, made_up_arrays

SETTINGS: dict[str, dict[str, Any]] = {
    "impala": {"optimizer": "rmsprop", "lstm": 4},
    "impala-tf": {"optimizer": "rmsprop-tf"},
    "impala-adam": {"optimizer": "adam", "reduction": "sum"},
    "impact": {"uses": 1, "buffer_batches": 1, "kl_coef": 0.1, "target_every": 2, "lstm": 4},
    "impact-no-target": {"uses": 1, "buffer_batches": 1, "target_every": 0},
    "ppo": {"minibatches": 3, "epochs": 2},
    "vmpo": {"passes": 2, "lstm": 4},
    "impala-continuous": {},
    "impact-continuous": {"uses": 1, "buffer_batches": 1, "normalize_advantage": True},
    "ppo-continuous": {"minibatches": 3, "epochs": 2},
    "vmpo-continuous": {"passes": 2},
    "vmpo-tasks": {"passes": 2, "tasks": ("CartPole-v1", "CartPole-v1 sutton_barto_reward=true"), "popart": True},
}
CONTINUOUS = spaces.Box(-1, 1, (2,))
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


def updater(name: str, graphs: str, device: str, **changes: Any) -> Any:
    entry = catalog.find(name.partition("-")[0])
    common: dict[str, Any] = {"num_envs": N, "rollout_steps": T, "hidden": (8,), "anneal": True, "cuda_graphs": graphs}
    config: Any = entry.config(**common, device=device, normalize_observations=True, **SETTINGS[name], **changes)
    seen, discrete = SPACES
    return entry.learner()(config).make_updater(seen, CONTINUOUS if "continuous" in name else discrete)


def batch(name: str, turn: int, device: str) -> Any:
    """Other numbers each time, and other ends of episodes."""
    source = np.random.default_rng(turn)
    ended = source.random((T, N)) < (0.1, 0.5, 0.9)[turn % 3]
    truncated = ended & (source.random((T, N)) < 0.5)
    at = ended.nonzero()
    first = np.zeros((T + 1, N), bool)
    first[1:] = ended
    state = tuple(source.normal(size=(N, 4)).astype(np.float32) for _ in range(2)) if "lstm" in SETTINGS[name] else ()
    acted = {}
    if "continuous" in name:
        sizes = {"action": (T, N, 2), "params": (T, N, 4)}
        acted = {key: 0.1 * source.normal(size=size).astype(np.float32) for key, size in sizes.items()}
    return made_up_arrays(
        **acted,
        obs=source.normal(size=(T + 1, N, 3)).astype(np.float32),
        reward=source.normal(size=(T, N)),
        terminated=ended & ~truncated,
        truncated=truncated,
        first=first,
        final_obs=source.normal(size=(len(at[0]), 3)).astype(np.float32),
        final_at=at,
        state=state,
    ).to(torch, device)


def learn(subject: Any, name: str, turn: int, device: str, left: float = 0.5) -> dict[str, float]:
    told: dict[str, float] = subject.update(batch(name, turn, device), left, lambda: None)
    return told


@pytest.mark.parametrize("graphs", ["auto", "on", "off"])
@pytest.mark.parametrize("name", SETTINGS)
def test_off_a_gpu_a_step_runs_as_it_is(name: str, graphs: str) -> None:
    subject = updater(name, graphs, "cpu")
    assert not isinstance(subject._step, Recorded)
    assert not subject.is_recordable
    told = learn(subject, name, 0, "cpu")
    assert np.isfinite(list(told.values())).all()
    assert told["charts/learning_rate"] == pytest.approx(subject.config.learning_rate * 0.5)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_step_reads_no_number_back(name: str) -> None:
    """On a device without memory there are no numbers to read: what tries to is refused, as when it is recorded."""
    inputs = tuple(inputs_of_a_step(updater(name, "off", "cpu"), name))
    nowhere = updater(name, "off", "meta")
    told = nowhere.gradient_step(*trees.each(lambda tensor: tensor.to("meta"), inputs))
    assert all(tensor.device.type == "meta" for tensor in told.values())


@on_a_gpu
@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_played_back_is_the_step(name: str) -> None:
    plain, subject = updater(name, "off", "cuda"), updater(name, "on", "cuda")
    for turn in range(24):
        expected, found = (learn(each, name, turn, "cuda", 1.0 - turn / 48) for each in (plain, subject))
        assert found == pytest.approx(expected, rel=1e-2, abs=1e-4, nan_ok=True)
    assert 1 <= subject._step.graphs <= 4  # for room for 2, 4 and 8 ends; the minibatches of PPO have two sizes
    same(subject, plain)


@on_a_gpu
@pytest.mark.parametrize("name", SETTINGS)
def test_a_step_goes_on_from_a_checkpoint_that_is_taken_in_later(name: str) -> None:
    plain, subject = updater(name, "off", "cuda"), updater(name, "on", "cuda")
    for turn in range(12):
        learn(plain, name, turn, "cuda")
        learn(subject, name, 100 + turn, "cuda")
    subject.restore({key: tensor.clone() for key, tensor in plain.tensors().items()})
    for turn in range(12):
        for each in (plain, subject):
            learn(each, name, 200 + turn, "cuda")
    assert subject._step.graphs
    same(subject, plain)


def same(one: Any, other: Any) -> None:
    tensors = other.tensors()
    assert one.tensors().keys() == tensors.keys()
    for key, tensor in one.tensors().items():
        # An optimiser that need not be recorded counts its steps on the CPU.
        torch.testing.assert_close(tensor.cpu(), tensors[key].cpu(), rtol=1e-2, atol=1e-4)


class Replayed:
    """As a step that is played back: it reads where the first inputs of these shapes lay, and writes where the first
    outputs lay.
    """

    def __init__(self, step: Any) -> None:
        self.step = step
        self.held: dict[Any, tuple[Any, list[Any]]] = {}

    def __call__(self, *inputs: Any) -> Any:
        shapes = tuple(tensor.shape for tensor in trees.leaves(inputs))
        own, outputs = self.held.setdefault(shapes, (trees.each(torch.clone, inputs), []))
        trees.pairwise(torch.Tensor.copy_, own, inputs)
        told = self.step(*own)
        if not outputs:
            outputs.append(trees.each(torch.clone, told))
        trees.pairwise(torch.Tensor.copy_, outputs[0], told)
        return outputs[0]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_step_that_is_played_back_may_use_its_memory_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, subject = updater(name, "off", "cpu"), updater(name, "off", "cpu")
    subject._step = played = Replayed(subject.gradient_step)
    for turn in range(12):
        expected = learn(plain, name, turn, "cpu", 1.0 - turn / 24)
        with monkeypatch.context() as patch:
            patch.setattr(Updater, "is_recordable", True)
            found = learn(subject, name, turn, "cpu", 1.0 - turn / 24)
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert len(played.held) == (2 if name.startswith("ppo") else 3)  # sizes of minibatches; room for 2, 4 and 8 ends


def inputs_of_a_step(subject: Any, name: str) -> list[Any]:
    """What an update would give to the step."""
    seen: list[tuple[Any, ...]] = []

    def noted(*inputs: Any) -> Any:
        seen.append(inputs)
        return subject.gradient_step(*inputs)

    subject._step = noted
    learn(subject, name, 1, "cpu")
    return list(seen[-1])


@pytest.mark.parametrize(
    ("name", "number"), [*((name, -1) for name in SETTINGS), *((name, -2) for name in SETTINGS if "impact" in name)]
)
def test_a_number_that_changes_is_an_input(name: str, number: int) -> None:
    """What a step takes from elsewhere is recorded as it was: the share of the budget, IMPACT's weight of the KL."""
    weights = []
    for value in (0.0, 100.0):
        subject = updater(name, "off", "cpu", entropy_coef=0.1)
        inputs = inputs_of_a_step(subject, name)
        inputs[number] = torch.tensor(value)
        subject.gradient_step(*inputs)
        weights.append(torch.cat([each.detach().flatten() for each in subject.network.parameters()]))
    assert not torch.equal(*weights)
