"""Checkpoints: whole or not there, and never loaded when damaged."""

from __future__ import annotations

import json
import logging
import os
import struct
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save

from clusterenv.errors import WeightsCorrupt
from clusterenv.learners.common import checkpoint
from clusterenv.learners.common.checkpoint import Checkpoints, optimizer_tensors, restore_optimizer

if TYPE_CHECKING:
    import pathlib

TENSORS = {
    "model/weight": torch.arange(6.0).reshape(2, 3),
    "model/half": torch.ones(3, dtype=torch.bfloat16),
    "adam/step": torch.tensor(5),
    "empty": torch.zeros(0, 4),
    "flag": torch.tensor([True, False]),
}
FACTS = {"global_step": 4096, "returns": [1.5, 2.5], "seed": 1}


def test_what_was_saved_comes_back(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(tmp_path / "made" / "on demand")
    path = checkpoints.save(4096, TENSORS, FACTS)
    assert path.name == "000000004096.safetensors"
    loaded = checkpoints.load()
    assert loaded is not None
    assert loaded.facts == FACTS
    assert loaded.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert torch.equal(loaded.tensors[name], tensor)
        assert loaded.tensors[name].dtype == tensor.dtype


def test_tensors_with_gradients_and_odd_layouts_can_be_saved(tmp_path: pathlib.Path) -> None:
    turned = torch.arange(6.0).reshape(2, 3).requires_grad_().T
    Checkpoints(tmp_path).save(1, {"turned": turned}, {})
    loaded = Checkpoints(tmp_path).load()
    assert loaded is not None
    assert torch.equal(loaded.tensors["turned"], turned.detach())


def test_nothing_saved_is_nothing_loaded(tmp_path: pathlib.Path) -> None:
    assert Checkpoints(tmp_path / "nowhere").load() is None


def test_the_newest_two_are_kept_and_the_newest_is_loaded(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (100, 1_000, 20_000, 300_000):
        checkpoints.save(step, TENSORS, {"global_step": step})
    assert [int(path.stem) for path in checkpoints.paths()] == [20_000, 300_000]
    loaded = checkpoints.load()
    assert loaded is not None
    assert loaded.facts["global_step"] == 300_000


def damage(path: pathlib.Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "cut":
        content = content[:-3]
    elif how == "bit":
        content[-9] ^= 1
    elif how == "facts":
        content = bytearray(bytes(content).replace(b"global_step", b"global_stop"))
    else:
        content = bytearray(b"nonsense")
    path.write_bytes(content)


@pytest.mark.fault("F41")
@pytest.mark.parametrize("how", ["cut", "bit", "facts", "nonsense"])
def test_a_damaged_one_is_refused_and_the_one_before_it_is_used(
    tmp_path: pathlib.Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, TENSORS, {"global_step": 1})
    newest = checkpoints.save(2, TENSORS, {"global_step": 2})
    damage(newest, how)
    with pytest.raises(WeightsCorrupt, match=newest.name):
        checkpoint.read(newest)
    with caplog.at_level(logging.WARNING):
        loaded = checkpoints.load()
    assert loaded is not None
    assert loaded.facts["global_step"] == 1
    assert "000000000001.safetensors is used in its place" in caplog.text


@pytest.mark.fault("F41")
def test_a_damaged_one_never_takes_the_place_of_a_sound_one(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1000, TENSORS, {"global_step": 1000})
    damage(checkpoints.save(2000, TENSORS, {}), "bit")  # so the run goes on from 1000
    for step in (1500, 1900, 2300):
        newest = checkpoints.save(step, TENSORS, {"global_step": step})
    damage(newest, "bit")
    loaded = checkpoints.load()
    assert loaded is not None
    assert loaded.facts["global_step"] == 1900


def test_a_sound_one_of_a_later_step_is_not_deleted(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(2000, TENSORS, {"global_step": 2000})
    for step in (1000, 1500, 1900):
        checkpoints.save(step, TENSORS, {"global_step": step})
    assert [int(path.stem) for path in checkpoints.paths()] == [1500, 1900, 2000]


@pytest.mark.parametrize("count", [1, 2])
def test_when_all_are_damaged_that_is_said_of_each(
    tmp_path: pathlib.Path, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path)
    paths = [checkpoints.save(step, TENSORS, {}) for step in range(count)]
    for path in paths:
        damage(path, "bit")
    with pytest.raises(WeightsCorrupt, match="does not have its hash") as raised:
        checkpoints.load()
    assert all(path.name in str(raised.value) for path in paths)
    assert str(raised.value).endswith(f"Put one back from a copy of {tmp_path}, or begin a new run.")
    assert caplog.text == "", "nothing is used in their place"


def test_another_format_is_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.safetensors"
    monkeypatch.setattr(checkpoint, "FORMAT", 99)
    checkpoint.write(path, TENSORS, {})
    monkeypatch.undo()
    with pytest.raises(WeightsCorrupt, match="has format '99'; this version reads 1"):
        checkpoint.read(path)


@pytest.mark.threat("T17")
@pytest.mark.parametrize("facts", ["", "{", "7", "[]", '"x"', "[" * 100_000], ids=lambda facts: facts[:3])
def test_facts_that_cannot_be_read_are_damage(tmp_path: pathlib.Path, facts: str) -> None:
    """Whoever wrote the file can have given it the hash that fits."""
    about = {"format": str(checkpoint.FORMAT), "facts": facts, "hash": checkpoint._hash({}, facts)}
    path = tmp_path / "1.safetensors"
    path.write_bytes(save({}, about))
    with pytest.raises(WeightsCorrupt, match="facts that cannot be read"):
        checkpoint.read(path)


@pytest.mark.threat("T17")
@pytest.mark.parametrize("shape", [[0, 2**63], [0, 2**64 - 1], [2**63 - 1, 0]])
def test_a_shape_that_torch_cannot_hold_is_damage(tmp_path: pathlib.Path, shape: list[int]) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    path = tmp_path / "1.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(WeightsCorrupt):
        checkpoint.read(path)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, TENSORS, {"global_step": 1})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(2, TENSORS, {"global_step": 2})
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["000000000001.safetensors"]
    loaded = checkpoints.load()
    assert loaded is not None
    assert loaded.facts["global_step"] == 1


def test_an_optimiser_goes_on_as_if_nothing_had_happened(tmp_path: pathlib.Path) -> None:
    def fresh() -> tuple[torch.nn.Linear, torch.optim.Adam]:
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 2)
        return layer, torch.optim.Adam(layer.parameters(), lr=0.1)

    def step(layer: torch.nn.Linear, adam: torch.optim.Adam) -> None:
        adam.zero_grad()
        layer(torch.ones(1, 3)).square().sum().backward()
        adam.step()

    straight, adam = fresh()
    for _ in range(3):
        step(straight, adam)
    halfway = Checkpoints(tmp_path)
    halfway.save(3, {**{f"m/{k}": v for k, v in straight.state_dict().items()}, **optimizer_tensors(adam)}, {})
    for _ in range(3):
        step(straight, adam)

    loaded = halfway.load()
    assert loaded is not None
    resumed, again = fresh()
    resumed.load_state_dict({k[2:]: v for k, v in loaded.tensors.items() if k.startswith("m/")})
    restore_optimizer(again, {k: v for k, v in loaded.tensors.items() if not k.startswith("m/")})
    for _ in range(3):
        step(resumed, again)
    assert torch.equal(resumed.weight, straight.weight)
