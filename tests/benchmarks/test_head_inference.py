"""The benchmark of inference on the head runs, and tells what it measured."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks.head_inference import Args, main

if TYPE_CHECKING:
    import pathlib

    import pytest


def test_every_number_is_written(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(Args(slots=(4, 6), repeats=2, seconds=0.2, out=tmp_path))
    told = json.loads((tmp_path / "head-inference.json").read_text())
    assert [line["slots"] for line in told["numbers"]] == [4, 6]
    for line in told["numbers"]:
        assert all(len(line[name]) == 2 for name in ("steps_per_s", "thread_us", "p50_ms", "p99_ms"))
        assert min(line["steps_per_s"]) > 0
        assert all(one <= other for one, other in zip(line["p50_ms"], line["p99_ms"], strict=True))
    assert "Inference on the head" in capsys.readouterr().out
