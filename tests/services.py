"""Real services for tests. `scripts/test-services` starts them and tells where they are.

Without them the tests that need them are skipped, with the reason; with CLUSTERENV_NEED_SERVICES=1 that is a failure.
"""

from __future__ import annotations

import os
import pathlib
import sys
from dataclasses import dataclass
from typing import NoReturn

import pytest

import clusterenv
from clusterenv.testing import why_not


@dataclass(frozen=True)
class SshServer:
    """An sshd that accepts one key, on two addresses of loopback."""

    folder: pathlib.Path

    @property
    def port(self) -> int:
        """Where it listens."""
        return int((self.folder / "port").read_text())

    @property
    def hosts(self) -> tuple[str, str]:
        """Two names under which it is known."""
        return (f"root@127.0.0.1:{self.port}", f"root@127.0.0.2:{self.port}")

    def file(self, name: str) -> str:
        """The path of `known_hosts`, `id` (the accepted key) or `stranger` (another key)."""
        return str(self.folder / name)


def needs_network(*programs: str) -> None:
    """Skip the test, or fail it, if no network of namespaces can be made here, or one of these programs is missing."""
    reason = why_not(*programs)
    if reason is not None:
        _missing(reason)


def interpreter(folder: pathlib.Path) -> str:
    """A Python that finds this repository as an installed one would: who logs in is at home, without our paths."""
    program = folder / "python"
    root = pathlib.Path(__file__).parents[1]
    paths = os.pathsep.join([str(pathlib.Path(clusterenv.__file__).parents[1]), str(root)])
    program.write_text(f'#!/bin/sh\ncd "{root}"\nPYTHONPATH="{paths}" exec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    return str(program)


def path_of(variable: str) -> pathlib.Path:
    """Where a service is; skips the test, or fails it, if it does not run."""
    told = os.environ.get(variable, "")
    if not told or not pathlib.Path(told).exists():
        _missing(f"{variable} is {told!r}. Start the services with scripts/test-services and load its env file.")
    return pathlib.Path(told)


def _missing(reason: str) -> NoReturn:
    if os.environ.get("CLUSTERENV_NEED_SERVICES") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def kubernetes_folder() -> pathlib.Path:
    """Where the Kubernetes of `scripts/test-kubernetes` is, which CI does not build; skips the test without one."""
    told = os.environ.get("CLUSTERENV_TEST_KUBERNETES", "")
    if told and pathlib.Path(told, "env").exists():
        return pathlib.Path(told)
    reason = f"CLUSTERENV_TEST_KUBERNETES is {told!r}. Run these tests with scripts/test-kubernetes."
    if os.environ.get("CLUSTERENV_NEED_KUBERNETES") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
