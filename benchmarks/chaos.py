"""Chaos: a nemesis kills and stops workers and nodes while a batch is used in every way, and the history is checked.

python -m benchmarks.chaos --seeds 20 --seconds 20

Environments echo where a transition comes from, the policy echoes its version (`clusterenv.testing`). Every run goes
through steps, send/recv, rollouts and streams in a random order. A run that finds a violation, hangs or leaves a
process behind makes the program end with 1; its history is kept beside the JSON file.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import pathlib  # noqa: TC003 - tyro reads the annotations
import platform
import random
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

import clusterenv
from benchmarks.paths import RESULTS
from clusterenv.testing import (
    EchoPolicy,
    History,
    Nemesis,
    check_history,
    echo_module,
    echo_slots,
    nodes_of,
    processes,
    workers_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterenv import ClusterEnv

MODES = ("step", "send", "rollout", "stream")
# Some stops are shorter than a step may take, some longer: then the worker is lost although it lives.
TIMEOUTS = clusterenv.Timeouts(step_s=2.0, reset_s=10.0, call_s=10.0, start_s=60.0, close_s=2.0)
STOP_S, EVERY_S = (0.05, 3.0), (0.3, 2.5)
DEEDS = ("kill", "kill", "stop")
# A node that is silent for ten seconds is lost.
NODE_EVERY_S, NODE_STOP_S = (5.0, 12.0), (0.1, 12.0)
END_S, START_S = 120.0, 60.0
# How long it may take until nobody is left.
LEFT_S = 15.0
PHASE_S = 1.5
RESETS = 5
SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class Args:
    """Hurt clusters, and look for transitions that cannot have been."""

    clusters: list[str] = field(default_factory=lambda: ["local:3", "tcp:nodes=2,workers=2"])
    """where the environments run"""
    modes: list[str] = field(default_factory=lambda: list(MODES))
    """in which ways they are used: step, send, rollout, stream"""
    num_envs: int = 12
    """number of environments"""
    seconds: float = 20.0
    """how long each run is hurt"""
    seeds: int = 5
    """runs per cluster"""
    first_seed: int = 0
    """the first of them; 0 takes seeds that nobody has seen"""
    calm: bool = False
    """hurt nobody, to compare"""
    out: pathlib.Path = RESULTS
    """folder for the JSON file, and for histories with violations"""
    one: str | None = None
    """used by the program itself: the cluster and the seed of one run"""


class Run:
    """One batch that is used, and what it answers."""

    def __init__(self, envs: ClusterEnv, policy: Any, seed: int) -> None:
        self.envs, self.policy = envs, policy
        self.history = History(envs.num_envs)
        self.given_up: list[str] = []
        self._dice = random.Random(seed)
        self._ways: dict[str, Callable[[float], None]] = {
            "step": self._step,
            "send": self._send,
            "rollout": self._rollout,
            "stream": self._stream,
        }

    def use(self, modes: list[str], seconds: float, rest: float = 0.0) -> None:
        """In one way after the other, each for a moment, with this many seconds of rest for each second of work."""
        end = time.monotonic() + seconds
        whole = self._begin()
        while whole and (began := time.monotonic()) < end:
            try:
                self._ways[self._dice.choice(modes)](min(end, began + self._dice.uniform(0.2, PHASE_S)))
            except (clusterenv.WorkerLost, clusterenv.EnvError, clusterenv.LaunchError) as error:
                # Somebody was lost again and again: as promised the batch says so, and a reset makes it whole.
                self.given_up.append(f"{type(error).__name__}: {error}"[:500])
                whole = self._begin()
            now = time.monotonic()
            time.sleep(max(0.0, min(rest * (now - began), end - now)))

    def _begin(self) -> bool:
        """Reset; False if that fails again and again, since the nemesis is faster than the cluster comes back."""
        for _ in range(RESETS):
            try:
                self.history.reset(self.envs.reset(seed=self._dice.randrange(2**31))[0])
                return True
            except (clusterenv.WorkerLost, clusterenv.EnvError, clusterenv.LaunchError) as error:
                self.given_up.append(f"{type(error).__name__}: {error}"[:500])
        return False

    def _actions(self) -> Any:
        return np.array([self._dice.randrange(64) for _ in range(self.envs.num_envs)])

    def _step(self, end: float) -> None:
        while time.monotonic() < end:
            actions = self._actions()
            self.history.step(actions, self.envs.step(actions))

    def _send(self, end: float) -> None:
        actions = self._actions()
        self.envs.send(actions)
        while time.monotonic() < end:
            least = self._dice.randint(1, self.envs.num_envs)
            result = self.envs.recv(min_slots=least)
            self.history.step(actions, result)
            slots = result[4]["env_id"]
            actions[slots] = self._actions()[slots]
            self.envs.send(actions[slots], slots)
        self.history.step(actions, self.envs.recv(min_slots=self.envs.num_envs))

    def _rollout(self, end: float) -> None:
        steps = self._dice.randint(1, 40)
        while time.monotonic() < end:
            self.history.batch(self.envs.rollout(steps))
            self._publish()

    def _stream(self, end: float) -> None:
        steps, slots = self._dice.randint(1, 40), self._dice.randint(1, self.envs.num_envs)
        try:
            with self.envs.stream(steps, slots, buffers=self._dice.randint(1, 3)) as stream:
                for batch in stream:
                    self.history.batch(batch)
                    self._publish()
                    if time.monotonic() >= end:
                        break
        finally:
            self.history.cut()

    def _publish(self) -> None:
        if self._dice.random() < 0.5:
            self.policy.number += 1
            version = self.envs.publish(self.policy)
            if version.number != self.policy.number:
                raise AssertionError(f"published {self.policy.number}, got {version}")


def run(args: Args, cluster: str, seed: int) -> dict[str, Any]:
    """Hurt one batch for a while."""
    faulthandler.dump_traceback_later(args.seconds + END_S, exit=True)
    slots = [{"env_kwargs": each} for each in echo_slots(args.num_envs)]
    chaos = {"env_id": "Echo-v0", "chances": {"raise": 0.0005, "sleep": 0.0005}, "sleep_s": 0.005, "seed": seed}
    policy = EchoPolicy() if cluster.startswith("local") else echo_module()
    envs = clusterenv.make_vec(
        "clusterenv.testing:Chaos-v0",
        args.num_envs,
        cluster=cluster,
        timeouts=TIMEOUTS,
        slot_kwargs=slots,
        **({"env_id": "Echo-v0"} if args.calm else chaos),
    )
    began = time.monotonic()
    with envs, contextlib.ExitStack() as hurting:
        used = Run(envs, policy, seed)
        envs.reset(seed=seed)
        envs.attach(policy, sync="on-change", seed=seed)
        hurt = []
        if not args.calm:
            hurt = [Nemesis(workers_of, seed, every_s=EVERY_S, stop_s=STOP_S, deeds=DEEDS)]
            if not cluster.startswith("local"):
                hurt.append(Nemesis(nodes_of, seed + 1, every_s=NODE_EVERY_S, stop_s=NODE_STOP_S))
        for nemesis in hurt:
            hurting.enter_context(nemesis)
        used.use(args.modes, args.seconds)
        hurting.close()
        restarts = envs.stats()["restarts"]
    seconds = time.monotonic() - began
    violations = [violation._asdict() for violation in check_history(used.history)]
    if left := processes.left_behind(LEFT_S):
        violations.append({"kind": "left behind", "text": str(left)})
    if violations:
        args.out.mkdir(parents=True, exist_ok=True)
        used.history.save(args.out / f"chaos-{cluster.partition(':')[0]}-{seed}.npy")
    deeds = [f"{deed.deed} {who}" for who, each in zip(("worker", "node"), hurt, strict=False) for deed in each.done]
    return {
        "cluster": cluster,
        "seed": seed,
        "seconds": seconds,
        "rows": used.history.counts(),
        "versions": policy.number,
        "restarts_in_play": restarts,
        "deeds": {deed: deeds.count(deed) for deed in sorted(set(deeds))},
        "given_up": used.given_up,
        "violations": len(violations),
        "first_violations": violations[:SHOWN],
    }


def in_child(args: Args, cluster: str, seed: int) -> dict[str, Any]:
    """A run in a process of its own: one that hangs is a finding too."""
    words = [sys.executable, "-m", "benchmarks.chaos", "--one", json.dumps([cluster, seed])]
    words += ["--seconds", str(args.seconds), "--num-envs", str(args.num_envs), "--out", str(args.out)]
    words += ["--modes", *args.modes, *(["--calm"] if args.calm else [])]
    limit_s = args.seconds + END_S + START_S
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        told, errors = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        child.kill()
        told, errors = child.communicate()
    lines = told.splitlines()
    if child.returncode == 0 and lines:
        found: dict[str, Any] = json.loads(lines[-1])
        return found
    failure = {"kind": "crash or hang", "text": f"exit code {child.returncode}: {errors[-6000:]}"}
    return {"cluster": cluster, "seed": seed, "violations": 1, "first_violations": [failure]}


def show(runs: list[dict[str, Any]]) -> Table:
    """One line per run."""
    table = Table("cluster", "seed", "transitions", "versions", "deeds", "marked losses", "given up", "violations")
    for each in runs:
        rows = each.get("rows", {})
        deeds = ", ".join(f"{count} x {deed}" for deed, count in each.get("deeds", {}).items())
        losses = rows.get("lost", 0) + rows.get("fresh", 0)
        cells = [each["seed"], f"{rows.get('step', 0):,}", each.get("versions", ""), deeds, losses]
        cells += [len(each.get("given_up", [])), each["violations"]]
        table.add_row(each["cluster"], *map(str, cells))
    return table


def save(args: Args, runs: list[dict[str, Any]]) -> None:
    """After every run: one that is stopped half way has measured something too."""
    about = {"machine": platform.processor() or platform.machine(), "python": platform.python_version()}
    settings = {name: value for name, value in asdict(args).items() if name not in ("out", "one")}
    args.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"about": about, "settings": settings, "runs": runs}, indent=1)
    (args.out / "chaos.json").write_text(text + "\n")


def main(args: Args) -> int:
    """Hurt, check, show and save; 1 if anything was found."""
    if args.one is not None:
        processes.adopt_orphans()  # of this process, which does nothing else
        sys.stdout.write(json.dumps(run(args, *json.loads(args.one))) + "\n")
        return 0
    first = args.first_seed or random.SystemRandom().randrange(10**6, 10**9)
    runs = []
    for seed in range(first, first + args.seeds):
        for cluster in args.clusters:
            runs.append(in_child(args, cluster, seed))
            Console(width=160).print(show(runs[-1:]))
            save(args, runs)
    Console(width=160).print(show(runs))
    return 1 if any(each["violations"] for each in runs) else 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args)))
