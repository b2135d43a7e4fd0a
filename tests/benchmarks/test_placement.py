"""The experiment on placement, for a moment: it runs, and what it measures is saved."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from experiments.busy import Busy
from experiments.placement import Args, Cell, cells, has_atari, main, run, table

if TYPE_CHECKING:
    import pathlib

QUICK = {"workers": 1, "envs_per_worker": 4, "seconds": 0.1, "turns": 1, "atari": False}


def test_both_placements_are_measured(tmp_path: pathlib.Path) -> None:
    main(Args(networks=["mlp 64-64"], step_us=[1000.0], out=tmp_path, **QUICK))  # type: ignore[arg-type]
    told = json.loads((tmp_path / "placement-cpu.json").read_text())
    assert [cell["inference"] for cell in told["cells"]] == ["worker", "head"]
    for cell in told["cells"]:
        assert cell["acting_steps_per_s"] > 0
        assert cell["learning_steps_per_s"] > 0
        turn = cell["turns"][0]
        share = turn["acting"]["steps_per_s"] / turn["limit"]["steps_per_s"]
        assert cell["acting_of_limit"] == pytest.approx(share, abs=1e-3)
    assert told["cells"][1]["learning_batch"] == pytest.approx(2, abs=1)
    assert told["cells"][0]["acting_env_us"] > 900
    assert told["cells"][0]["acting_policy_us"] > 0
    page = (tmp_path / "placement.md").read_text()
    assert told["machine"] in page
    row = next(line for line in page.splitlines() if line.startswith("| mlp 64-64 | 1000 us |"))
    rates = [cell["acting_steps_per_s"] for cell in told["cells"]]
    assert f"| {rates[0]:,} | {rates[1]:,} | {rates[1] / rates[0]:.2f} |" in row


def test_a_cell_that_fails_costs_itself_only() -> None:
    cell = Cell(network="shallow", env="-", env_id="NoSuchEnv-v0", env_args=(), inference="head")
    told = run(cell, Args(**QUICK))  # type: ignore[arg-type]
    assert "NoSuchEnv" in told["error"]
    assert table([told]).row_count == 1


def test_games_are_played_where_they_are_installed() -> None:
    found = {cell.env for cell in cells(Args(networks=["shallow", "mlp 64-64"], step_us=[5.0]))}
    assert found == {"5 us", "Pong"} if has_atari() else {"5 us"}


@pytest.mark.parametrize("image", [False, True])
def test_a_step_takes_as_long_as_it_is_told(image: bool) -> None:
    env = Busy(step_us=2000.0, image=image)
    first, _ = env.reset(seed=1)
    began = time.thread_time()
    seen, *_ = env.step(1)
    assert time.thread_time() - began >= 2e-3
    assert env.observation_space.contains(first)
    assert env.observation_space.contains(seen)
    assert not np.array_equal(first, seen)
