"""The experiment on a slow link, for a moment: head and node find one another, and what is measured is saved."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from experiments.slow_link import Args, main
from tests.services import needs_network

if TYPE_CHECKING:
    import pathlib


def test_it_measures_and_saves(tmp_path: pathlib.Path) -> None:
    needs_network()
    main(Args(seconds=1.0, seeds=1, rules=["on-change"], hidden=8, epochs=1, out=tmp_path))
    found = json.loads((tmp_path / "slow-link.json").read_text())
    assert found["about"]["mbit"] == 10.0
    (run,) = found["runs"]
    assert run["rule"] == "on-change"
    assert run["steps_per_s"] > 0
    assert run["syncs"] > 1
    assert [steps for _, steps, _ in run["curve"]] == sorted(steps for _, steps, _ in run["curve"])
    assert (tmp_path / "slow-link.png").stat().st_size > 0
