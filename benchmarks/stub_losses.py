"""How fast a head with many nodes is while some of them are killed all the time.

python -m benchmarks.stub_losses --nodes 64 --share-per-minute 0.1 --minutes 10

The nodes have no environments (`benchmarks.stub_nodes`) and a process each, on this machine. Minutes in which this
share of the nodes is killed, one after the other, take turns with calm ones; a killed node is started again at once.
The batch goes on in lock step: everybody waits for whoever is on the way back. Speed is compared with that of all nodes
in the calm times before and after. Every row tells its slot and how often that was stepped, so one that is lost without
a mark, doubled or in another slot is seen.
"""

from __future__ import annotations

import json
import os
import pathlib  # noqa: TC003 - tyro reads the annotations
import platform
import random
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import tyro
from gymnasium.vector import AutoresetMode
from rich.console import Console
from rich.table import Table

from benchmarks.paths import RESULTS
from benchmarks.scale import BLOCK
from clusterenv.clusters import Join
from clusterenv.config import OnLoss, Timeouts
from clusterenv.env.opening import Plan, open_batch
from clusterenv.node.remote import RemoteNode
from clusterenv.testing import processes
from clusterenv.wire.envs import BuildOrder

TARGET = 0.8
SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class Args:
    """Kill some of many nodes, again and again."""

    nodes: int = 64
    """how many, with a block of 64 rows each"""
    share_per_minute: float = 0.1
    """how many of them are killed in a minute"""
    minutes: float = 10.0
    """how long nodes are killed, in all"""
    turn_s: float = 60.0
    """length of a turn in which nodes are killed"""
    calm_s: float = 20.0
    """length of a calm one"""
    seed: int = 1
    """of who is killed, and when"""
    out: pathlib.Path = RESULTS
    """folder for the JSON file"""


class ApartLauncher:
    """Starts stub nodes in a process each; all are forked from one, so that a start costs little."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.pids: dict[int, int] = {}
        self._nest: subprocess.Popen[str] | None = None

    def script(self, job: Any) -> str:
        """Nothing to show."""
        return ""

    def start(self, job: Any) -> None:
        """Start all."""
        head = job.arguments[job.arguments.index("--head") + 1]
        words = [sys.executable, "-m", "benchmarks.stub_nodes", "--head", head, "--apart"]
        self._nest = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self._write(job.keys.strip())
        for node in range(self.nodes):
            self.restart(node)

    def restart(self, node: int) -> bool:
        """Fork another."""
        assert self._nest is not None
        assert self._nest.stdout is not None
        self._write(str(node))
        self.pids[node] = int(self._nest.stdout.readline())
        return True

    def status(self) -> str:
        """How many run."""
        return f"{self.nodes - len(self._ended())} of {self.nodes} stub nodes running"

    def failure(self) -> str | None:
        """Who has ended."""
        ended = self._ended()
        return f"stub nodes {ended} have ended" if ended else None

    def logs(self) -> dict[str, str]:
        """They write nothing."""
        return {}

    def close(self, limit_s: float) -> None:
        """End all."""
        nest, self._nest = self._nest, None
        if nest is None:
            return
        assert nest.stdin is not None
        assert nest.stdout is not None
        nest.stdin.close()
        try:
            nest.wait(max(5.0, limit_s))
        except subprocess.TimeoutExpired:
            nest.kill()
            nest.wait()
        nest.stdout.close()

    def _write(self, line: str) -> None:
        assert self._nest is not None
        assert self._nest.stdin is not None
        self._nest.stdin.write(line + "\n")

    def _ended(self) -> list[int]:
        return [node for node, pid in self.pids.items() if not os.path.exists(f"/proc/{pid}")]


class Checked:
    """A batch of stub rows that is stepped, each row looked at."""

    def __init__(self, engine: Any, num_envs: int) -> None:
        self._engine = engine
        self._slots = np.arange(num_envs)
        self._count, self._lost = np.zeros(num_envs), np.zeros(num_envs, np.bool_)
        self.losses = self.steps = 0
        self.wrong: list[str] = []

    @property
    def whole(self) -> bool:
        """Whether nobody is on the way back."""
        return not self._lost.any()

    def step(self) -> None:
        """One step of all rows."""
        self._engine.begin_step(None)
        self._engine.end_step(None)
        arena = self._engine.arena
        obs, lost = arena.observation[0], arena.truncated.copy()
        expected = np.where(self._lost, 1, self._count + 1)
        right = (obs[:, 0] == self._slots) & (obs[:, 1] == expected)
        for slot in np.flatnonzero(~lost & ~right)[: SHOWN - len(self.wrong)]:
            self.wrong.append(f"slot {slot}: expected step {expected[slot]}, got {obs[slot].tolist()}")
        self._count, self._lost = obs[:, 1].astype(np.float64), lost
        self.losses += int(lost.sum())
        self.steps += int((~lost).sum())


@dataclass(slots=True)
class Turn:
    """What happened in one stretch of time."""

    killing: bool
    seconds: float = 0.0
    steps: int = 0
    losses: int = 0
    killed: int = 0

    @property
    def speed(self) -> float:
        """Rows per second."""
        return self.steps / self.seconds


def turn(args: Args, checked: Checked, launcher: ApartLauncher, dice: random.Random, *, killing: bool) -> Turn:
    """Step for a while; with `killing`, nodes die at random moments of it."""
    found = Turn(killing)
    length = args.turn_s if killing else args.calm_s
    kills = round(args.nodes * args.share_per_minute * length / 60) if killing else 0
    moments = sorted(dice.uniform(0, length) for _ in range(kills))
    steps, losses, began = checked.steps, checked.losses, time.perf_counter()
    while (now := time.perf_counter() - began) < length or moments or not checked.whole:
        # One that dies on its way back has no rows yet, and leaves no mark: such a death could not be counted.
        if moments and now >= moments[0] and checked.whole:
            moments.pop(0)
            found.killed += processes.kill(launcher.pids[dice.randrange(args.nodes)])
        checked.step()
    found.seconds = time.perf_counter() - began
    found.steps, found.losses = checked.steps - steps, checked.losses - losses
    return found


def measure(args: Args) -> tuple[list[Turn], list[str]]:
    """Calm and killing turns, one after the other, with what was wrong."""
    num_envs, cluster = BLOCK * args.nodes, Join(nodes=args.nodes, bind="127.0.0.1", wait_s=60.0)
    launcher = ApartLauncher(args.nodes)
    order = BuildOrder([], [0] * num_envs, AutoresetMode.NEXT_STEP, False)
    node = RemoteNode(order, num_envs, cluster, launcher)
    plan = Plan(cluster, num_envs, lambda: node, "same", AutoresetMode.NEXT_STEP, OnLoss.RESTART, Timeouts())
    engine, _, _ = open_batch(plan)
    try:
        engine.recovery.was_reset = True  # stubs have nothing to reset
        checked, dice = Checked(engine, num_envs), random.Random(args.seed)
        for _ in range(20):
            checked.step()
        turns = [turn(args, checked, launcher, dice, killing=False)]
        for _ in range(max(1, round(args.minutes * 60 / args.turn_s))):
            turns.append(turn(args, checked, launcher, dice, killing=True))
            turns.append(turn(args, checked, launcher, dice, killing=False))
    finally:
        node.close(5.0)
    killed, losses = sum(each.killed for each in turns), sum(each.losses for each in turns)
    unmarked = [] if losses == killed * BLOCK else [f"{killed} nodes were killed, but {losses} rows are marked"]
    return turns, checked.wrong + unmarked


def summary(turns: list[Turn]) -> dict[str, float]:
    """The speed while nodes are killed, by that beside it."""
    ratios = []
    for index in range(1, len(turns) - 1, 2):
        calm = (turns[index - 1].speed + turns[index + 1].speed) / 2
        ratios.append(turns[index].speed / calm)
    killing = [each for each in turns if each.killing]
    return {
        "killed": sum(each.killed for each in killing),
        "minutes": sum(each.seconds for each in killing) / 60,
        "calm_steps_per_s": float(np.mean([each.speed for each in turns if not each.killing])),
        "killing_steps_per_s": sum(each.steps for each in killing) / sum(each.seconds for each in killing),
        "killing_by_calm_mean": float(np.mean(ratios)),
        "killing_by_calm_lowest": min(ratios),
        "killing_by_calm_highest": max(ratios),
    }


def main(args: Args) -> int:
    """Measure, show and save; 1 if a row was wrong."""
    turns, wrong = measure(args)
    told = summary(turns)
    table = Table("measured", "value")
    for name, value in told.items():
        table.add_row(name.replace("_", " "), f"{value:,.3f}")
    table.add_row("wrong rows", str(len(wrong)))
    Console(width=100).print(table)
    about: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    about |= {"python": platform.python_version(), "target": TARGET}
    settings = {name: value for name, value in asdict(args).items() if name != "out"}
    args.out.mkdir(parents=True, exist_ok=True)
    content = {"about": about, "settings": settings, "summary": told, "wrong": wrong, "turns": list(map(asdict, turns))}
    (args.out / "stub-nodes-killed.json").write_text(json.dumps(content, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args)))
