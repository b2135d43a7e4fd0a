"""Imports go downwards only: the contracts of pyproject.toml hold."""

from __future__ import annotations

import pathlib
import sys
from typing import TYPE_CHECKING

from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

if TYPE_CHECKING:
    import pytest

ROOT = pathlib.Path(__file__).parent.parent


def test_the_contracts_hold(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [str(ROOT / "src"), *sys.path])
    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), cache_dir=None)
    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out
