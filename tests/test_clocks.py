"""The wall clock may jump by an hour at any time: nothing of ours waits, counts or decides by it."""

from __future__ import annotations

import ast
import itertools
import os
import pathlib
import signal
import time
from typing import TYPE_CHECKING

import clusterenv

if TYPE_CHECKING:
    import pytest

SOURCE = pathlib.Path(clusterenv.__file__).parent
# Where the time of day is what is wanted.
TIME_OF_DAY = {
    "cli/train.py": {"datetime.datetime.now"},  # the name of a run's folder
    "metrics/sinks/tensorboard.py": {"time.time"},  # shown by TensorBoard beside every point
}
WALL_CLOCKS = {"time.time", "time.time_ns", "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.date.today"}


def wall_clocks_of(path: pathlib.Path) -> set[str]:
    """The names of wall clocks that a module uses."""
    tree = ast.parse(path.read_text())
    names = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    imported = {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return (names | imported) & WALL_CLOCKS


def test_only_time_of_day_comes_from_the_wall_clock() -> None:
    used = {str(path.relative_to(SOURCE)): wall_clocks_of(path) for path in SOURCE.rglob("*.py")}
    assert {name: clocks for name, clocks in used.items() if clocks} == TIME_OF_DAY


def test_a_clock_that_jumps_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    real, jumps = time.time, itertools.cycle([0.0, 3600.0, -3600.0, 1e6])
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    limits = clusterenv.Timeouts(step_s=30.0, reset_s=30.0, start_s=30.0)
    with clusterenv.make_vec("CartPole-v1", 4, cluster="tcp:nodes=2,workers=1", timeouts=limits) as envs:
        envs.reset(seed=1)
        for _ in range(20):
            assert "worker_lost" not in envs.step([0, 1, 0, 1])[4]
        pid = envs.worker_pids()[0]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        lost = [bool(envs.step([0, 1, 0, 1])[4].get("worker_lost") is not None) for _ in range(5)]
        assert sum(lost) == 1
