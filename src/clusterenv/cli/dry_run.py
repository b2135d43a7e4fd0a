"""`--dry-run`: what a command would start, as text. Nothing is started, and nothing is left behind."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from clusterenv.cluster.slots import split
from clusterenv.clusters import Remote
from clusterenv.config import Inproc

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterenv.config import Cluster


def would_start(cluster: Cluster, env_ids: Iterable[str] = (), num_envs: int | None = None) -> str:
    """The script or manifest that would be submitted, the commands that would be run, or a line about this host.

    Args:
        cluster: where.
        env_ids: what is played; nodes import the modules that are named in "module:Id-v0".
        num_envs: how many environments; None where the command has no such number.

    Example:
        >>> from clusterenv.config import Local
        >>> would_start(Local(4), ["CartPole-v1"], 2)
        'local:4 would start 2 worker processes on this host, for 2 environments.'
    """
    if isinstance(cluster, Remote):
        from clusterenv.node.joining import Joining

        modules = [env_id.rpartition(":")[0] for env_id in env_ids]
        imports = tuple(dict.fromkeys([*cluster.imports, *filter(None, modules)]))
        return Joining(dataclasses.replace(cluster, imports=imports)).script().rstrip("\n")
    played = "" if num_envs is None else f", for {num_envs} environment{'s' if num_envs != 1 else ''}"
    if isinstance(cluster, Inproc):
        return f"{cluster.text} would start nothing: the environments run in this process{played}."
    workers = cluster.workers if num_envs is None else len(split(num_envs, cluster.workers))
    return f"{cluster.text} would start {workers} worker process{'es' if workers != 1 else ''} on this host{played}."
