"""The benchmark of memories runs, and tells what it measured."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from benchmarks.replay import Args, Bytes, main

if TYPE_CHECKING:
    import pathlib


def test_every_number_is_written(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(Args(repeats=2, capacity=12_800, out=tmp_path))
    told = json.loads((tmp_path / "replay.json").read_text())
    assert len(told["numbers"]) == 8
    assert all(0 < line["low"] <= line["median"] <= line["high"] for line in told["numbers"])
    floats, frames = told["memory"]
    assert floats["observations"] == 12_800 * 32
    assert frames["arrays"] == pytest.approx(12_800 * 84 * 84, rel=0.05)
    assert "draw 64" in " ".join(capsys.readouterr().out.split())


def test_what_is_more_counts_the_larger_of_two() -> None:
    assert Bytes("frames", observations=100, arrays=103, resident=110).more == pytest.approx(0.1)
    assert Bytes("frames", observations=100, arrays=103, resident=50).more == pytest.approx(0.03)
