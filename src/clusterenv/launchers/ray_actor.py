"""What runs on a host of Ray: an actor, with its node as a process beside it."""

from __future__ import annotations

import dataclasses
import socket
import sys
from dataclasses import dataclass
from typing import Any

from clusterenv.clusters import Tcp
from clusterenv.errors import LaunchError, words_of
from clusterenv.launchers.base import NodeJob
from clusterenv.launchers.processes import ProcessLauncher

# How much of what a node wrote last is told.
_LOG_CHARACTERS = 4000


@dataclass(frozen=True, slots=True, repr=False)
class OneJob(NodeJob):
    """The job of the one node that runs beside an actor."""

    index: int

    def command(self, key_file: str, node: int | None = None) -> list[str]:
        """The words of the command, with the number that this node has in the whole cluster."""
        return NodeJob.command(self, key_file, self.index)


class NodeActor:
    """Runs one node on the host of its actor. When Ray restarts the actor, this starts the node anew."""

    def __init__(self, job: OneJob) -> None:
        self._job = job if job.python else dataclasses.replace(job, python=sys.executable)
        self._process = ProcessLauncher(Tcp(nodes=1))
        self.restart()

    def restart(self) -> None:
        """End what is left of the node and start it again."""
        self._problem: str | None = None
        try:
            if not self._process.restart(0):
                self._process = ProcessLauncher(Tcp(nodes=1))
                self._process.start(self._job)
        except LaunchError as error:
            self._problem = f"on {socket.gethostname()}: {words_of(error)}"

    def look(self) -> dict[str, Any]:
        """How the node fares, as plain data."""
        problem = self._problem
        if problem is None and (failure := self._process.failure()) is not None:
            problem = f"on {socket.gethostname()} {failure.removeprefix('node 0 ')}"
        running = problem is None and self._process.status().startswith("1 ")
        log = "".join(self._process.logs().values())[-_LOG_CHARACTERS:]
        return {"state": "running" if running else "ended", "problem": problem, "log": log}

    def end(self, limit_s: float) -> None:
        """End the node."""
        self._process.close(limit_s)
