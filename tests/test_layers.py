"""Imports go downwards only: the contracts of pyproject.toml hold."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import clusterenv

ROOT = pathlib.Path(__file__).parent.parent


def test_the_contracts_hold() -> None:
    # In a process of its own: import-linter sets up logging for itself and silences everybody else's.
    source = pathlib.Path(clusterenv.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.fspath(source), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken" in done.stdout
