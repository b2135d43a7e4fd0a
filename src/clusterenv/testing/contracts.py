"""What contracts have in common: how one is broken, how they wait, and a program that stands in for the node."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterenv.launchers.base import NodeJob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEYS = 'curve "canary-of-the-secret-key" $(echo no)'
CANARY = "canary-of-the-secret-key"
_LOOK_S = 0.02
# How long a program may take to start, on however busy a machine.
_START_S = 60.0


class ContractBroken(AssertionError):
    """Something does not keep what its interface promises."""


def require(holds: object, text: str) -> None:
    """Raise ContractBroken unless this holds."""
    if not holds:
        raise ContractBroken(text)


def wait_for(holds: Callable[[], object], limit_s: float, text: str) -> None:
    """Wait until this holds; ContractBroken if it does not within the limit."""
    end = time.monotonic() + limit_s
    while not holds():
        require(time.monotonic() < end, f"{text}, not even within {limit_s} s")
        time.sleep(_LOOK_S)


def broken_rules(contract: object) -> dict[str, str]:
    """Try every rule of a contract, without pytest; those that are broken, with the reason.

    Example:
        >>> from clusterenv.testing import ClusterContract
        >>> class Mine(ClusterContract):
        ...     cluster = "inproc:2"
        >>> broken_rules(Mine())
        {}
    """
    found = {}
    for name in dir(contract):
        if name.startswith("test_"):
            try:
                getattr(contract, name)()
            except Exception as error:  # a part of a stranger's may raise anything
                found[name.removeprefix("test_")] = f"{type(error).__name__}: {error}"
    return found


def runs_here(pid: int) -> bool:
    """Whether a process of this host runs; one that has ended and was not buried does not.

    Example:
        >>> runs_here(os.getpid())
        True
    """
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@dataclass(frozen=True)
class StandIn:
    """A program that is started in place of the interpreter, and the folder in which it records itself."""

    program: str
    folder: pathlib.Path

    def job(self, do: str = "wait", *more: str) -> NodeJob:
        """A job that does as it is told: "wait", "fail", "leave", "stubborn", "child", "say" or "die"."""
        return NodeJob(("--record", str(self.folder), "--do", do, *more), KEYS, self.program)

    def records(self) -> list[dict[str, Any]]:
        """What those that have started recorded, in the order of their starts."""
        paths = sorted(self.folder.glob("*.json"), key=lambda path: int(path.stem.partition("-")[2]))
        return [json.loads(path.read_text()) for path in paths]

    def wait_for(self, count: int, limit_s: float = _START_S) -> list[dict[str, Any]]:
        """Wait until so many have started."""
        wait_for(lambda: len(self.records()) >= count, limit_s, f"{count} nodes should have started")
        return self.records()


def make_stand_in(folder: pathlib.Path) -> StandIn:
    """Write the program. Blanks and quotes in its path are there on purpose."""
    place = folder / "with 'blanks'"
    place.mkdir(parents=True)
    program, script = place / "python", pathlib.Path(__file__).with_name("stand_in.py")
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{script}" "$@"\n')
    program.chmod(0o755)
    return StandIn(os.fspath(program), place)


@contextlib.contextmanager
def standing_in(parent: str | None) -> Iterator[StandIn]:
    """The program, in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(dir=parent) as made:
        yield make_stand_in(pathlib.Path(made))
