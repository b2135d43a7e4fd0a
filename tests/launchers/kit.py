"""Stand-ins for the node, and what they recorded."""

from __future__ import annotations

import json
import pathlib
import sys
from dataclasses import dataclass
from typing import Any

import psutil

from clusterenv import testing
from clusterenv.launchers.base import NodeJob
from tests.zoo import wait_until

LIMIT_S = 60.0
KEYS = 'curve "canary-of-the-secret-key" $(echo no)'


@dataclass(frozen=True)
class StandIn:
    """A program that is started in place of the interpreter, and the folder in which it records itself."""

    program: str
    folder: pathlib.Path

    def job(self, do: str = "wait", *more: str) -> NodeJob:
        """A job that does as it is told."""
        return NodeJob(("--record", str(self.folder), "--do", do, *more), KEYS, self.program)

    def records(self) -> list[dict[str, Any]]:
        """What the stand-ins that started have recorded, in the order of their starts."""
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("*.json"), key=_age)]

    def wait_for(self, count: int, limit_s: float = LIMIT_S) -> list[dict[str, Any]]:
        """Wait until so many have started."""
        wait_until(lambda: len(self.records()) >= count, limit_s, lambda: f"only {self.records()}")
        return self.records()


def stand_in(folder: pathlib.Path) -> StandIn:
    """Write the program. Blanks and quotes in its path are there on purpose."""
    place = folder / "with 'blanks'"
    place.mkdir(parents=True)
    program = place / "python"
    script = pathlib.Path(testing.__file__).with_name("stand_in.py")
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{script}" "$@"\n')
    program.chmod(0o755)
    return StandIn(str(program), place)


def gone(pid: int) -> bool:
    """Whether a process has ended, buried or not."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def wait_gone(*pids: int, limit_s: float = LIMIT_S) -> None:
    """Wait until these processes have ended."""
    wait_until(lambda: all(map(gone, pids)), limit_s, lambda: f"still there: {[pid for pid in pids if not gone(pid)]}")


def _age(path: pathlib.Path) -> int:
    return int(path.stem.partition("-")[2])
