"""Nodes that somebody starts by hand: nothing is launched, the command to type is told, and the token is put aside."""

from __future__ import annotations

import contextlib
import logging
import pathlib
import secrets
import shlex
from typing import TYPE_CHECKING

from clusterenv.errors import LaunchError
from clusterenv.private import holds, write_private

if TYPE_CHECKING:
    from clusterenv.clusters import Join
    from clusterenv.launchers.base import NodeJob

_logger = logging.getLogger(__name__)

_FOLDER = pathlib.Path("~/.clusterenv")
_KEEP_TRYING_S = 600


class JoinLauncher:
    """Waits for nodes that somebody else starts."""

    def __init__(self, cluster: Join) -> None:
        self._cluster = cluster
        self._token: pathlib.Path | None = None

    @property
    def nodes(self) -> int:
        """How many nodes are expected."""
        return self._cluster.nodes

    def script(self, job: NodeJob) -> str:
        """The line to type on each machine, beside a copy of the token file."""
        heads = job.arguments[job.arguments.index("--head") + 1].split(",")
        rest = [word for word in job.arguments if word not in ("--head", ",".join(heads))]
        address = heads[0].partition("://")[2]
        # Only a head with a file of keys can have a successor that these nodes know.
        wait = ["--keep-trying", str(_KEEP_TRYING_S)] if self._cluster.key_file else []
        words = ["clusterenv", "join", f"cluster://{address}", "--token-file", str(self._path()), *wait, *rest]
        return shlex.join(words) + "\n"

    def start(self, job: NodeJob) -> None:
        """Put the token where only its owner can read it, and tell what to type."""
        token = self._path()
        if not token.exists():  # then it is ours, also if we are stopped on the way
            self._token = token
        try:
            token.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A head of this run that was killed has left it.
            if not (self._cluster.key_file and holds(token, job.keys)):
                write_private(token, job.keys)
        except OSError as error:
            self._token = None  # somebody else's, if there is one now
            raise LaunchError(f"the token file {str(token)!r} cannot be made: {error.strerror}.") from error
        self._token = token
        _logger.warning(
            "waiting for %d nodes. Copy the token file to each machine (or paste what is in it when asked), and run "
            "there:\n  %s",
            self.nodes,
            self.script(job).strip(),
        )

    def _path(self) -> pathlib.Path:
        if self._token is not None:
            return self._token
        if self._cluster.token_file:
            return pathlib.Path(self._cluster.token_file).expanduser()
        return _FOLDER.expanduser() / f"join-{secrets.token_hex(4)}.token"

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
        """Remove the token. The nodes end themselves when the head falls silent."""
        token, self._token = self._token, None
        if token is not None:
            with contextlib.suppress(OSError):
                token.unlink()
