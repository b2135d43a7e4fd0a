"""`clusterenv doctor`: try a cluster before a run needs it, and name the first thing that is wrong."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import tyro

from clusterenv.cli.dry_run import would_start
from clusterenv.cli.exits import OK, say
from clusterenv.clusters import Remote
from clusterenv.config import parse_cluster

if TYPE_CHECKING:
    from clusterenv.config import Cluster
    from clusterenv.node.remote import RemoteNode
    from clusterenv.wire.messages import Hello


@dataclass(frozen=True, kw_only=True)
class DoctorArgs:
    """Start the nodes of a cluster, look at them, and end them again."""

    cluster: str
    """where the workers shall run, as for make_vec: local:4, tcp:nodes=2, ssh://a,b, slurm:nodes=4, ..."""
    env_id: str = ""
    """also build and step this environment on every node"""
    dry_run: bool = False
    """only show what would be started"""


def run(argv: list[str]) -> int:
    """Run `clusterenv doctor`. What is wrong comes as the error of the part that found it."""
    args = tyro.cli(DoctorArgs, prog="clusterenv doctor", args=argv)
    cluster = parse_cluster(args.cluster)
    say(f"ok  the cluster is {cluster.text}")
    if args.dry_run:
        say(would_start(cluster, [args.env_id]))
        return OK
    if args.env_id:
        _step(cluster, args.env_id)
    elif isinstance(cluster, Remote):
        _look_at_nodes(cluster)
    say("ok  nothing is wrong")
    return OK


def _look_at_nodes(cluster: Remote) -> None:
    from clusterenv.node.joining import Joining

    joining = Joining(cluster)
    began = time.monotonic()
    try:
        hosts, _ = joining.gather(num_envs=cluster.nodes * 10_000)
        members = [host.hello for host in hosts]
        _say_nodes(members, f"joined within {time.monotonic() - began:.1f} s, through {joining.heads}")
    finally:
        joining.close(5.0)


def _say_nodes(members: list[Hello], how: str) -> None:
    say(f"ok  {len(members)} nodes {how}")
    for hello in members:
        say(
            f"ok  node {hello.name}: {hello.cores} cores, Python {hello.python}, Gymnasium {hello.gymnasium}, "
            f"clusterenv {hello.clusterenv}"
        )


def _step(cluster: Cluster, env_id: str) -> None:
    from clusterenv.env.make import make_vec

    began, on, why = time.monotonic(), "every node", ""
    count = cluster.nodes if isinstance(cluster, Remote) else cluster.workers
    where = dataclasses.replace(cluster, workers=1) if isinstance(cluster, Remote) else cluster  # a slot on every node
    with make_vec(env_id, num_envs=count, cluster=where) as envs:
        if isinstance(cluster, Remote):
            # Looked at while they are there: who starts nodes by hand shall do it once.
            node = cast("RemoteNode", envs._engine.node)
            _say_nodes(node.members, f"joined, through {node.heads}")
            if len(node.members) < count:
                on, why = f"{len(node.members)} of {count} nodes", "; the others were started with fewer workers"
        envs.reset(seed=0)
        envs.step(envs.action_space.sample())
    say(f"ok  {env_id} was built and stepped on {on} within {time.monotonic() - began:.1f} s{why}")
