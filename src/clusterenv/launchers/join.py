"""Nodes that somebody starts by hand: nothing is launched, the command to type is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterenv.clusters import Join
    from clusterenv.launchers.base import NodeJob

# Where the person who starts a node has put the keys on that machine.
KEY_FILE = "node.key"


class JoinLauncher:
    """Waits for nodes that somebody else starts."""

    def __init__(self, cluster: Join) -> None:
        self._cluster = cluster

    @property
    def nodes(self) -> int:
        """How many nodes are expected."""
        return self._cluster.nodes

    def script(self, job: NodeJob) -> str:
        """The line to type on each machine, beside a copy of the key file."""
        return job.line(KEY_FILE) + "\n"

    def start(self, job: NodeJob) -> None:
        """Nothing is started."""

    def restart(self, node: int) -> bool:
        """Nobody but the person who started a node can start it again."""
        return False

    def status(self) -> str:
        """What is waited for."""
        return f"waiting for {self.nodes} node{'s' if self.nodes != 1 else ''} that you start by hand"

    def failure(self) -> str | None:
        """There is always hope."""
        return None

    def logs(self) -> dict[str, str]:
        """What a node writes stays on its machine."""
        return {}

    def close(self, limit_s: float) -> None:
        """Nothing was started. The nodes end themselves when the head falls silent."""
