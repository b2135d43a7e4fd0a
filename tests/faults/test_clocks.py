"""Clocks that jump: nothing that waits, decides or counts looks at the time of day."""

from __future__ import annotations

import ast
import pathlib

import pytest

import clusterenv

SOURCE = pathlib.Path(clusterenv.__file__).parent
TIME_OF_DAY = {"time.time", "time.time_ns", "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.date.today"}
# Names of folders and curves, which people read. The probe of a pod runs in a process of its own, as text.
ALLOWED = {"cli/train.py": "datetime.datetime.now", "metrics/sinks/tensorboard.py": "time.time"}


def looks_at_the_time_of_day(text: str) -> list[str]:
    """What a module asks for the time of day."""
    tree = ast.parse(text)
    found = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    imported = [
        f"{node.module}.{name.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in ("time", "datetime")
        for name in node.names
    ]
    return [name for name in found if name in TIME_OF_DAY] + [name for name in imported if name != "time.monotonic"]


@pytest.mark.fault("F46")
def test_only_monotonic_clocks_are_used() -> None:
    modules = sorted(SOURCE.rglob("*.py"))
    assert len(modules) > 50
    found = {str(path.relative_to(SOURCE)): looks_at_the_time_of_day(path.read_text()) for path in modules}
    assert {name: looks[0] for name, looks in found.items() if looks} == ALLOWED


@pytest.mark.parametrize("text", ["import time\ntime.time()", "from time import time", "from datetime import datetime"])
def test_the_search_finds_it(text: str) -> None:
    assert looks_at_the_time_of_day(text)
