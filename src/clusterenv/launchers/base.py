"""What a launcher is: it starts nodes somewhere, tells how they fare, and ends them. It knows nothing else of them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class NodeJob:
    """What is started on each host: `<python> -m clusterenv node <arguments>`, with the keys in a file or on stdin.

    Attributes:
        arguments: after `node`, without those about keys: the address of the head and the rest. Nothing secret.
        keys: the text of the key file. Secret: it goes through a private file, standard input or a Secret, never
            through a command line, an environment variable or a log.
        python: the interpreter on the hosts.
    """

    arguments: tuple[str, ...]
    keys: str
    python: str

    def command(self, key_file: str, node: int | None = None) -> list[str]:
        """The words of the command.

        Args:
            key_file: "-" means standard input, which then must stay open.
            node: which node of the launcher this is, if each has a command of its own. Where all have the same, a node
                finds its number in the variables of the engine, or has none and cannot be restarted by it.
        """
        index = [] if node is None else ["--index", str(node)]
        return [self.python, "-m", "clusterenv", "node", *self.arguments, *index, "--key-file", key_file]

    def line(self, key_file: str, node: int | None = None) -> str:
        """The command as one line for a shell."""
        return shlex.join(self.command(key_file, node))

    def __repr__(self) -> str:
        return f"NodeJob({shlex.join(self.arguments)}, keys=<hidden>)"


class Launcher(Protocol):
    """Starts the nodes of one cluster. None of the calls waits for a node to connect."""

    @property
    def nodes(self) -> int:
        """How many nodes it starts."""

    def script(self, job: NodeJob) -> str:
        """What would be run, as a script or a manifest, without the keys. For `--dry-run`."""

    def start(self, job: NodeJob) -> None:
        """Start every node. Raises LaunchError with the engine's own words if it refuses."""

    def restart(self, node: int) -> bool:
        """Start this node again after it was lost; False if this engine cannot do that, or does it by itself."""

    def status(self) -> str:
        """One short line about how the start goes, for somebody who waits: "job 12: PENDING (Priority)"."""

    def failure(self) -> str | None:
        """Why no more nodes will come, in the engine's own words; None while there is hope."""

    def logs(self) -> dict[str, str]:
        """The last lines that each node wrote, by its name here."""

    def close(self, limit_s: float) -> None:
        """End every node and leave nothing behind. Never raises, may be called twice."""
