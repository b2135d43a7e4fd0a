"""How long a killed worker is missed: until the batch says so, and until it is as fast as before; and a silent node.

python -m benchmarks.recovery [--kills 10] [--silences 3] [--out DIR]

Lock step on this host. After each kill the steps go on without a pause. Speed is that of windows of a quarter of a
second; it is back when a window reaches 95 % of the median of those before the kill. A silent node is one whose process
is stopped: its connection stays open, and nothing comes through it.
"""

from __future__ import annotations

import json
import pathlib  # noqa: TC003 - tyro reads the annotations
import platform
import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

import clusterenv
from benchmarks.paths import RESULTS
from benchmarks.stats import spread
from clusterenv.testing import nodes_of, processes, workers_of

WINDOW_S, LIMIT_S = 0.25, 60.0


@dataclass(frozen=True, kw_only=True)
class Args:
    """Kill workers, and see when they are missed no more."""

    kills: int = 10
    """how many workers are killed, one after the other"""
    before_s: float = 2.0
    """how long the speed is measured before each kill"""
    num_envs: int = 64
    """number of environments"""
    cluster: str = "local:2"
    """where they run"""
    silences: int = 3
    """how many nodes are stopped, one after the other"""
    silence_s: float = 5.0
    """after how many seconds without a word such a node is to be given up"""
    env_id: str = "CartPole-v1"
    """the environment"""
    out: pathlib.Path = RESULTS
    """folder for the JSON file"""


def window(envs: Any, actions: Any) -> tuple[float, float | None]:
    """Steps per second over one window, and when in it a loss was told, if one was."""
    began, steps, told = time.monotonic(), 0, None
    while time.monotonic() < began + WINDOW_S:
        infos = envs.step(actions)[4]
        steps += 1
        if told is None and "worker_lost" in infos:
            told = time.monotonic()
    return steps / (time.monotonic() - began), told


def one_kill(envs: Any, actions: Any, before_s: float) -> dict[str, float | None]:
    """Seconds until the loss was told, and until the speed was back; None for what did not happen in a minute."""
    usual = statistics.median(window(envs, actions)[0] for _ in range(max(1, round(before_s / WINDOW_S))))
    killed = time.monotonic()
    processes.kill(workers_of()[0])
    told: float | None = None
    while time.monotonic() < killed + LIMIT_S:
        speed, seen = window(envs, actions)
        told = told or seen
        if told is not None and speed >= 0.95 * usual:
            return {"told_s": told - killed, "back_s": time.monotonic() - killed}
    return {"told_s": None if told is None else told - killed, "back_s": None}


def one_silence(envs: Any, actions: Any, before_s: float) -> float:
    """Seconds from the moment in which a node stands still until its slots come back truncated."""
    for _ in range(max(1, round(before_s / WINDOW_S))):
        window(envs, actions)
    node, began = nodes_of()[0], time.monotonic()
    with processes.stopped(node):  # when it goes on, it finds that it was given up, and ends
        while "worker_lost" not in envs.step(actions)[4]:
            if time.monotonic() > began + LIMIT_S:
                raise TimeoutError(f"nobody has missed the node {node} for {LIMIT_S} s")
        return time.monotonic() - began


def silences(args: Args) -> list[float]:
    """Stop nodes one after the other, on two hosts that are this one."""
    cluster = clusterenv.Tcp(nodes=2, workers=1, silence_s=args.silence_s)
    with clusterenv.make_vec(args.env_id, args.num_envs, cluster=cluster) as envs:
        envs.reset(seed=1)
        actions = np.zeros(args.num_envs, np.int64)
        return [one_silence(envs, actions, args.before_s) for _ in range(args.silences)]


def main(args: Args) -> None:
    """Kill, measure, show and save."""
    with clusterenv.make_vec(args.env_id, args.num_envs, cluster=args.cluster) as envs:
        envs.reset(seed=1)
        actions = np.zeros(args.num_envs, np.int64)
        found = [one_kill(envs, actions, args.before_s) for _ in range(args.kills)]
    silent = silences(args) if args.silences else []
    table = Table("seconds after the kill of a worker", "median", "worst", "never")
    for name, title in (("told_s", "its slots come back truncated"), ("back_s", "95 % of the speed before")):
        values = [value for each in found if (value := each[name]) is not None]
        seen = spread(values)
        cells = ["", ""] if seen is None else [f"{seen.median:.2f}", f"{seen.high:.2f}"]
        table.add_row(title, *cells, str(len(found) - len(values)))
    if (seen := spread(silent)) is not None:
        table.add_row(
            f"a silent node is given up (after {args.silence_s:g} s)", f"{seen.median:.2f}", f"{seen.high:.2f}", "0"
        )
    Console(width=120).print(table)
    about = {"machine": platform.processor() or platform.machine(), "python": platform.python_version()}
    settings = {name: value for name, value in asdict(args).items() if name != "out"}
    args.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"about": about, "settings": settings, "found": found, "silent_s": silent}, indent=1)
    (args.out / "recovery.json").write_text(text + "\n")


if __name__ == "__main__":
    main(tyro.cli(Args))
