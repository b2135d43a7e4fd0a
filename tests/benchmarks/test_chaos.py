"""The benchmarks of faults, for a moment: they hurt, check and save, and a run that fails is a finding."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks import chaos, recovery

if TYPE_CHECKING:
    import pathlib


def test_a_sound_cluster_is_found_sound(tmp_path: pathlib.Path) -> None:
    args = chaos.Args(clusters=["local:2"], num_envs=4, seconds=3.0, seeds=1, first_seed=7, out=tmp_path)
    assert chaos.main(args) == 0
    found = json.loads((tmp_path / "chaos.json").read_text())
    assert found["settings"]["seconds"] == 3.0
    (run,) = found["runs"]
    assert (run["seed"], run["violations"]) == (7, 0)
    assert run["rows"]["step"] > 0
    assert not list(tmp_path.glob("*.npy"))


def test_a_run_that_fails_is_a_finding(tmp_path: pathlib.Path) -> None:
    assert chaos.main(chaos.Args(clusters=["local:0"], seconds=1.0, seeds=1, first_seed=7, out=tmp_path)) == 1
    (run,) = json.loads((tmp_path / "chaos.json").read_text())["runs"]
    assert run["violations"] == 1
    (violation,) = run["first_violations"]
    assert violation["kind"] == "crash or hang"
    assert "ConfigError" in violation["text"]


def test_a_killed_worker_is_missed_and_comes_back(tmp_path: pathlib.Path) -> None:
    recovery.main(recovery.Args(kills=1, before_s=0.25, num_envs=4, out=tmp_path))
    (kill,) = json.loads((tmp_path / "recovery.json").read_text())["found"]
    assert 0 < kill["told_s"] < kill["back_s"]
