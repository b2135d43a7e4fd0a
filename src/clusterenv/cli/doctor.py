"""`clusterenv doctor`: try a cluster before a run needs it, and name the first thing that is wrong."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

import tyro

from clusterenv.cli.exits import OK, say
from clusterenv.clusters import Remote
from clusterenv.config import parse_cluster


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
    if isinstance(cluster, Remote):
        if args.dry_run:
            return _show(cluster)
        _look_at_nodes(cluster if not args.env_id else _with_module(cluster, args.env_id))
    if args.env_id and not args.dry_run:
        _step(args.cluster, args.env_id)
    say("ok  nothing is wrong")
    return OK


def _show(cluster: Remote) -> int:
    from clusterenv.node.joining import Joining

    say(Joining(cluster).script().rstrip("\n"))
    return OK


def _with_module(cluster: Remote, env_id: str) -> Remote:
    module = env_id.rpartition(":")[0]
    return dataclasses.replace(cluster, imports=(*cluster.imports, module)) if module else cluster


def _look_at_nodes(cluster: Remote) -> None:
    from clusterenv.node.joining import Joining

    joining = Joining(cluster)
    began = time.monotonic()
    try:
        hosts, _ = joining.gather(num_envs=cluster.nodes * 10_000)
        say(f"ok  {len(hosts)} nodes joined within {time.monotonic() - began:.1f} s, through {joining.heads}")
        for host in hosts:
            hello = host.hello
            say(
                f"ok  node {hello.name}: {hello.cores} cores, Python {hello.python}, Gymnasium {hello.gymnasium}, "
                f"clusterenv {hello.clusterenv}"
            )
    finally:
        joining.close(5.0)


def _step(cluster: str, env_id: str) -> None:
    from clusterenv.env.make import make_vec

    began = time.monotonic()
    parsed = parse_cluster(cluster)
    count = parsed.nodes if isinstance(parsed, Remote) else parsed.workers
    where = dataclasses.replace(parsed, workers=1) if isinstance(parsed, Remote) else parsed  # a slot on every node
    with make_vec(env_id, num_envs=count, cluster=where) as envs:
        envs.reset(seed=0)
        envs.step(envs.action_space.sample())
    say(f"ok  {env_id} was built and stepped on every node within {time.monotonic() - began:.1f} s")
