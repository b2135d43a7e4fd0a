"""A node that is nobody's child and has no standard input, as one that somebody has started on another machine."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import TYPE_CHECKING

from clusterenv.launchers.join import JoinLauncher
from clusterenv.node import joining

if TYPE_CHECKING:
    from clusterenv.launchers.base import NodeJob


def start_nodes_by_hand(folder: str) -> None:
    """Heads of this process start their node so from now on. Its words go to "node.log", its number to "node.pid"."""
    place = pathlib.Path(folder)

    class ByHand(JoinLauncher):
        def start(self, job: NodeJob) -> None:
            (place / "node.key").touch(0o600)
            (place / "node.key").write_text(job.keys)
            words = job.command(str(place / "node.key"), 0)
            with open(place / "node.log", "wb") as log:
                node = subprocess.Popen([sys.executable, *words[1:]], stdout=log, stderr=log, start_new_session=True)
            (place / "node.pid").write_text(f"{node.pid}\n")

    joining.launcher_for = ByHand  # type: ignore[attr-defined,assignment]
