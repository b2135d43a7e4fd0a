"""Nodes as processes on this host: for trying things, and for tests.

Each node gets the keys as the first line of its standard input, which stays open: when it closes, because we closed it
or because we died, the node ends itself. What a node writes goes into a file without a name.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

from clusterenv.errors import LaunchError
from clusterenv.launchers.tail import file_tail, last_lines

if TYPE_CHECKING:
    from clusterenv.clusters import Tcp
    from clusterenv.launchers.base import NodeJob

# A killed process is gone at once, unless it hangs in the kernel.
_KILL_S = 2.0
# The system counts such a wait in milliseconds, with 31 bits.
_MAX_WAIT_S = 2_000_000.0


@dataclass(slots=True)
class _Node:
    """A process and what it wrote, also by those that ran in its place before."""

    output: IO[bytes] = field(default_factory=lambda: tempfile.TemporaryFile())  # noqa: SIM115 (closed in `close`)
    process: subprocess.Popen[bytes] | None = None


class ProcessLauncher:
    """Starts the nodes of a `Tcp` cluster."""

    def __init__(self, cluster: Tcp) -> None:
        self._cluster = cluster
        self._job: NodeJob | None = None
        self._nodes: list[_Node] = []

    @property
    def nodes(self) -> int:
        """How many nodes it starts."""
        return self._cluster.nodes

    def script(self, job: NodeJob) -> str:
        """The commands, one per node."""
        return "".join(job.line("-", node) + "\n" for node in range(self.nodes))

    def start(self, job: NodeJob) -> None:
        """Start every process; none is left if one cannot be started."""
        if self._job is not None:
            raise LaunchError("these nodes were started before. Make a new launcher for new ones.")
        self._job = job
        try:
            for _ in range(self.nodes):
                self._nodes.append(_Node())
                self._run(len(self._nodes) - 1, job)
        except BaseException:
            self.close(_KILL_S)
            raise

    def restart(self, node: int) -> bool:
        """End what is left of this node and start it again; False after `close`."""
        if self._job is None or not 0 <= node < len(self._nodes):
            return False
        _end([self._nodes[node]], limit_s=0.0)
        self._run(node, self._job)
        return True

    def status(self) -> str:
        """How many of the processes run."""
        running = sum(each.process is not None and _exit_code(each.process) is None for each in self._nodes)
        return f"{running} of {self.nodes} node processes running"

    def failure(self) -> str | None:
        """The exit code and the last words of each node that ended badly."""
        found = []
        for index, each in enumerate(self._nodes):
            code = _exit_code(each.process) if each.process else None
            if code:
                words = last_lines(file_tail(each.output.fileno())) or "it wrote nothing"
                found.append(f"node {index} ended with {_ending(code)}: {words}")
        return "\n".join(found) or None

    def logs(self) -> dict[str, str]:
        """The last lines that each node wrote."""
        return {f"node {index}": file_tail(each.output.fileno()) for index, each in enumerate(self._nodes)}

    def close(self, limit_s: float) -> None:
        """Close the standard input of every node, wait, and kill what is left."""
        nodes, self._nodes = self._nodes, []
        _end(nodes, limit_s)
        for each in nodes:
            each.output.close()

    def _run(self, index: int, job: NodeJob) -> None:
        """Start the process of one node and hand it the keys."""
        node = self._nodes[index]
        try:
            process = subprocess.Popen(
                job.command("-", index),
                stdin=subprocess.PIPE,
                stdout=node.output,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,  # Ctrl-C reaches the head only, which then ends its nodes
            )
        except (OSError, ValueError) as error:
            raise LaunchError(
                f"the node could not be started with {job.python!r}: {error}. "
                "Set python= to an interpreter of this host that has clusterenv."
            ) from error
        node.process = process
        assert process.stdin is not None  # noqa: S101 (stdin=PIPE)
        with contextlib.suppress(BrokenPipeError):  # it has ended already, which `failure` tells
            process.stdin.write(job.keys.rstrip("\n").encode() + b"\n")


def _end(nodes: list[_Node], limit_s: float) -> None:
    """End these processes and all that belong to their groups."""
    running = [each.process for each in nodes if each.process is not None]
    for process in running:
        if process.stdin:
            with contextlib.suppress(OSError):
                process.stdin.close()
    end = time.monotonic() + limit_s
    for process in running:
        _wait(process, end - time.monotonic())
    for process in running:
        # Also the group of one that has ended: its children may live on.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_S)
    for each in nodes:
        each.process = None


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """How a process ended; None while it runs.

    The dead are left unburied until `_end`: as long as they are, nobody else can get their number, and killing the
    group of that number hits nobody else.
    """
    found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> None:
    """Wait for the end of a process, without burying it."""
    handle = os.pidfd_open(process.pid)
    try:
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        poller.poll(min(max(limit_s, 0.0), _MAX_WAIT_S) * 1000)
    finally:
        os.close(handle)


def _ending(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"
