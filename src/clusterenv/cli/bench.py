"""`clusterenv bench`: how fast environment, policy and cluster are here, and what to make of that."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import tyro

from clusterenv.cli.dry_run import would_start
from clusterenv.cli.exits import OK, say
from clusterenv.cli.json_lines import json_line
from clusterenv.clusters import Remote, Tcp
from clusterenv.config import Inproc, Timeouts, parse_cluster, usable_cores
from clusterenv.learners.common.config import MOST_THREADS, check
from clusterenv.learners.common.env_args import parse_env_args

if TYPE_CHECKING:
    from clusterenv.learners.common.placement import Measurements, Plan

# More is taken for a typing error: weights of more than two gigabytes.
_MOST_LSTM = 8192


@dataclass(frozen=True, kw_only=True)
class BenchArgs:
    """Measure environment, policy and cluster; with --tune, say how to run them."""

    env_id: str
    """the environment"""
    env_args: tuple[str, ...] = ()
    """its arguments, such as game=Pong"""
    tune: bool = False
    """say where the policy should act, with how many workers, environments and rows, and why"""
    cluster: str = "local"
    """where the environments run; of a local one as many workers as it names, or one per core"""
    timeouts: Timeouts = field(default_factory=Timeouts)
    """how long something may take before it counts as lost"""
    policy: Literal["mlp", "shallow", "deep", "nature"] = "mlp"
    """the network: dense layers, or for images IMPALA's small or deep one, or DQN's"""
    lstm: int = 0
    """size of an LSTM behind it; 0 for none"""
    device: str = "cpu"
    """the head's device, for torch"""
    torch_threads: int = 1
    """threads of the head's policy on a CPU; the other cores are for the workers"""
    most_envs: int = 64
    """the largest number of environments that is tried, and that is advised"""
    seconds: float = 1.0
    """how long each of about ten things is measured"""
    dry_run: bool = False
    """only show what would be started or submitted for the environments"""
    json: bool = False
    """as one line of JSON"""

    def check(self) -> None:
        """Refuse what cannot be measured. Not when it is made: the parser would put our words into a box of its own."""
        check("seconds", self.seconds, above=0)
        check("most_envs", self.most_envs, least=2)
        check("lstm", self.lstm, least=0, most=_MOST_LSTM)
        check("torch_threads", self.torch_threads, least=1, most=MOST_THREADS)
        parse_env_args(self.env_args)
        parse_cluster(self.cluster)
        # torch takes seconds to import: not before all else is known to be right.
        from clusterenv.learners.common.devices import check_device

        check_device(self.device)

    def env_kwargs(self) -> dict[str, Any]:
        """The arguments of the environment."""
        return parse_env_args(self.env_args)

    def worker_rows(self) -> list[int]:
        """The blocks that are tried: so many environments on a worker."""
        return [rows for rows in (1, 4, 16) if rows <= self.most_envs]

    def head_rows(self) -> list[int]:
        """The batches that are tried on the head; two of them are under way, so half of the slots at most."""
        return [rows for rows in (1, 8, 32, 128, 512) if 2 * rows <= self.most_envs] or [1]

    def slots(self) -> int:
        """The environments on the cluster: the largest batch, and one for each worker if there may be so many."""
        cluster = parse_cluster(self.cluster)
        workers = cluster.workers * (cluster.nodes if isinstance(cluster, Remote) else 1)
        # Without a number each host has a worker per core, and only the hosts know how many that are.
        return min(self.most_envs, max(workers, *self.head_rows())) if workers else self.most_envs

    def cores(self) -> int | None:
        """How many workers can run at the same time; None on other hosts, which are taken to have a core for each."""
        cluster = parse_cluster(self.cluster)
        if isinstance(cluster, Inproc):
            return 1
        return None if isinstance(cluster, Remote) and not isinstance(cluster, Tcp) else usable_cores()

    @property
    def here(self) -> bool:
        """Whether all of it is on this host."""
        return not isinstance(parse_cluster(self.cluster), Remote)


def run(argv: list[str]) -> int:
    """Run `clusterenv bench`."""
    args = tyro.cli(BenchArgs, prog="clusterenv bench", args=argv)
    args.check()
    if args.dry_run:
        text = would_start(parse_cluster(args.cluster), [args.env_id], args.slots())
        say(json_line({"would_start": text}) if args.json else text)
        return OK
    from clusterenv.cli.measure import measure
    from clusterenv.learners.common.placement import decide

    measured = measure(args, (lambda text: None) if args.json else (lambda text: say(f"measuring {text} ...")))
    plan = decide(measured, most_envs=args.most_envs) if args.tune else None
    if args.json:
        told = {"measured": asdict(measured), "plan": None if plan is None else asdict(plan)}
        say(json_line(told))
        return OK
    for line in shown(measured):
        say(line)
    if plan is not None:
        for line in advice(args, plan):
            say(line)
    return OK


def shown(measured: Measurements) -> list[str]:
    """The measurements, a line each."""
    worker = ", ".join(f"{rows}: {_us(seconds)}" for rows, seconds in measured.worker_s.items())
    head = ", ".join(f"{rows}: {_us(seconds)}" for rows, seconds in measured.head_s.items())
    exchange = ", ".join(f"{rows}: {_us(seconds)}" for rows, seconds in measured.exchange_s.items())
    link = "" if measured.link_bytes_s is None else f", {measured.link_bytes_s / 1e6:,.1f} MB/s"
    return [
        f"step of the environment      {_us(measured.step_s)}, observation of {measured.observation_bytes:,} bytes",
        f"policy on a worker, by rows  {worker}",
        f"policy on the head, by rows  {head}",
        f"answers in and actions out   {exchange}",
        f"there and back               {_us(measured.round_trip_s)}{link}",
        f"stepping alone               {measured.stepping_rate:,.0f} steps/s on {measured.workers} worker(s)",
        f"weights                      {measured.weights_bytes:,} bytes",
    ]


def advice(args: BenchArgs, plan: Plan) -> list[str]:
    """The plan in words, and as a command."""
    slots = plan.workers * plan.envs_per_worker
    cluster = parse_cluster(args.cluster)
    where = args.cluster if isinstance(cluster, Remote) else replace(cluster, workers=plan.workers).text
    words = ["clusterenv", "train", "impala", "--env-id", args.env_id]
    words += ["--env-args", *args.env_args] if args.env_args else []
    words += ["--cluster", where, "--num-envs", str(slots), "--inference", plan.inference]
    words += ["--inference-batch", str(plan.inference_batch)] if plan.inference_batch is not None else []
    words += ["--body", args.policy] if args.policy != "mlp" else []
    words += ["--lstm", str(args.lstm)] if args.lstm else []
    words += ["--device", args.device] if args.device != "cpu" else []
    words += ["--torch-threads", str(args.torch_threads)] if args.torch_threads > 1 else []
    for name, limit in asdict(args.timeouts).items():
        if limit != getattr(Timeouts(), name):
            words += [f"--timeouts.{name.replace('_', '-')}", str(limit)]
    other = "head" if plan.inference == "worker" else "worker"
    return [
        "",
        *plan.reasons,
        "",
        f"Let the policy act on the {plan.inference}: {plan.workers} worker(s) with {plan.envs_per_worker} "
        f"environment(s) each, about {plan.rate:,.0f} steps per second if the learner keeps up "
        f"({plan.other_rate:,.0f} on the {other}).",
        shlex.join(words),
    ]


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} us"
