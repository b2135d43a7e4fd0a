"""The experiments on learners, for a moment each: they run, and what they measure is saved."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from experiments import learners, learners_report, memory, stale

if TYPE_CHECKING:
    import pathlib


PROGRAM = """
import pathlib, sys
from experiments.learners import Run, play_all

run = Run("impala", "CartPole-v1", "on-change", 1, {"total_steps": 3_200, "cluster": "inproc"})
play_all([run], pathlib.Path(sys.argv[1]), jobs=1, cores=None)
"""


def test_runs_are_made_once_and_told_in_a_table(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "learners.json"
    said = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(out)], capture_output=True, text=True, check=True, timeout=120
        )
        for _ in range(2)
    ]
    assert ["1/1 impala CartPole-v1" in each.stdout for each in said] == [True, False]
    (told,) = learners.read(out)
    assert told["steps"] == 3_200
    assert told["publishes"] == 20
    assert told["curve"][-1][0] == 3_200
    learners_report.main(out)
    assert f"| {told['final_return']:.0f} | 3,200 |" in learners_report.table([told])
    assert "| CartPole-v1 | 475 | impala | on-change | 0 of 1 | - | - |" in learners_report.goals([told])
    assert out.with_suffix(".png").stat().st_size > 0


def test_corrections_are_compared_on_stale_data(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "stale.json"
    stale.main(stale.Args(lag=3, seeds=1, total_steps=1_600, out=out))
    told = json.loads(out.read_text())
    assert [run["variant"] for run in told["runs"]] == ["v-trace", "none", "impact"]
    assert all(-1 <= run["return"] <= 1 for run in told["runs"])


def test_memory_is_compared_with_none(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "memory.json"
    memory.main(memory.Args(seeds=1, lstm=8, total_steps=1_024, cluster="inproc", out=out))
    assert [run["lstm"] for run in json.loads(out.read_text())["runs"]] == [8, 0]
