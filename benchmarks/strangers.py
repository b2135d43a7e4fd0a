"""What strangers at the door cost: a head and its node step CartPole, while others connect that have no keys.

python -m benchmarks.strangers [--per-minute 10000] [--rounds 10] [--out DIR]

In every round, in a new random order: nobody knocks; strangers knock at a socket that is not ours, which shows what
knocking itself takes from the machine; strangers knock at the head. Ratios are taken within a round. A sixth each say
nothing, garbage, a part of ZeroMQ's greeting, all of it, and a false hello behind it; the last sixth stay until the
head puts them out.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib  # noqa: TC003 - tyro reads the annotations
import platform
import random
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import tyro
from rich.console import Console
from rich.table import Table

import clusterenv
from benchmarks.knocking import STAY_S
from benchmarks.paths import RESULTS
from benchmarks.stats import ratio, spread
from clusterenv import Tcp

if TYPE_CHECKING:
    from collections.abc import Iterator

_RESAMPLES = 2_000
WAYS = ("quiet", "decoy", "strangers")


@dataclass(frozen=True, kw_only=True)
class Args:
    """Measure a head with strangers at its port."""

    per_minute: float = 10_000.0
    """how many connect"""
    rounds: int = 10
    """how often all three ways are measured"""
    seconds: float = 3.0
    """length of one measurement"""
    num_envs: int = 64
    """CartPoles"""
    nodes: int = 1
    """of the head, with one worker each"""
    settle_s: float = STAY_S + 1.0
    """how long the head goes on alone before memory and descriptors are looked at: strangers that stay are put out"""
    out: pathlib.Path = RESULTS
    """folder for the JSON file"""


class Strangers:
    """The process that knocks."""

    def __init__(self, per_minute: float, port: int) -> None:
        words = [sys.executable, "-m", "benchmarks.knocking", str(per_minute)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self._words = {"quiet": "quiet", "decoy": "decoy", "strangers": str(port)}

    def bother(self, way: str) -> dict[str, Any]:
        """From now on this; returns what was done before."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(self._words[way] + "\n")
        told: dict[str, Any] = json.loads(self._process.stdout.readline())
        return told

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def measure(args: Args) -> dict[str, Any]:
    """All rounds, with what the head holds before and after."""
    port = _free_port()
    cluster = Tcp(nodes=args.nodes, workers=1, bind=f"127.0.0.1:{port}")
    with (
        clusterenv.make_vec("CartPole-v1", num_envs=args.num_envs, cluster=cluster) as envs,
        contextlib.closing(Strangers(args.per_minute, port)) as strangers,
    ):
        envs.reset(seed=1)
        _window(envs, strangers, "strangers", args.seconds)  # what is taken once is taken now
        strangers.bother("quiet")
        _step(envs, args.settle_s)
        before, rounds, rng = _held(), [], random.Random(1)
        for _ in range(args.rounds):
            ways = list(WAYS)
            rng.shuffle(ways)
            rounds.append({way: _window(envs, strangers, way, args.seconds) for way in ways})
        strangers.bother("quiet")
        _step(envs, args.settle_s)
        return {"rounds": rounds, "before": before, "after": _held()}


def _window(envs: Any, strangers: Strangers, way: str, seconds: float) -> dict[str, Any]:
    strangers.bother(way)
    cpu = time.process_time()
    speed = _step(envs, seconds)
    used = time.process_time() - cpu
    held = _held()
    return {"steps_per_s": speed, "head_cpu_s": used, "held": held, "knocking": strangers.bother("quiet")}


def _step(envs: Any, seconds: float) -> float:
    actions = np.zeros(envs.num_envs, np.int64)
    count, began = 0, time.perf_counter()
    while (now := time.perf_counter()) < began + seconds:
        envs.step(actions)
        count += 1
    return count * int(envs.num_envs) / (now - began)


def _held() -> dict[str, float]:
    """What the head has: memory that is its own, and descriptors."""
    return {"memory_mb": psutil.Process().memory_info().rss / 1e6, "descriptors": len(os.listdir("/proc/self/fd"))}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _rows(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What the table says."""
    speeds = {way: {i: each[way]["steps_per_s"] for i, each in enumerate(found["rounds"])} for way in WAYS}
    for way in WAYS:
        yield f"steps/s, {way}", _shown(spread(list(speeds[way].values())), ",.0f")
    for above, below in (("strangers", "quiet"), ("decoy", "quiet"), ("strangers", "decoy")):
        yield f"{above} / {below}, within rounds", _shown(ratio(speeds[above], speeds[below]), ".3f")
        yield f"{above} / {below}, all rounds together", _together(speeds[above], speeds[below])
    for way in ("decoy", "strangers"):
        told = [each[way]["knocking"] for each in found["rounds"]]
        yield f"connects, {way}", f"{sum(t['connects'] for t in told):,}, {sum(t['failures'] for t in told)} failed"
        yield f"knocking, % of a core, {way}", f"{100 * _share([t['cpu_s'] for t in told], found):.1f}"
    for way in WAYS:
        used = [each[way]["head_cpu_s"] for each in found["rounds"]]
        yield f"head, % of a core, {way}", f"{100 * _share(used, found):.1f}"
    for above, below in (("strangers", "quiet"), ("decoy", "quiet")):
        more = [each[above]["head_cpu_s"] - each[below]["head_cpu_s"] for each in found["rounds"]]
        yield f"head, % of a core, {above} - {below}", f"{100 * _share(more, found):.2f}"
    most = max(each["strangers"]["held"]["descriptors"] for each in found["rounds"])
    for name in ("memory_mb", "descriptors"):
        yield f"head, {name}", f"{found['before'][name]:.1f} before, {found['after'][name]:.1f} after"
    yield "head, descriptors at most", f"{most}"


def _together(above: dict[int, float], below: dict[int, float]) -> str:
    """All steps of one way by all steps of the other, with a 95 % bootstrap interval over rounds."""
    pairs = np.array([[above[i], below[i]] for i in above])
    drawn = np.random.default_rng(1).integers(len(pairs), size=(_RESAMPLES, len(pairs)))
    sums = pairs[drawn].sum(1)
    low, high = np.percentile(sums[:, 0] / sums[:, 1], [2.5, 97.5])
    whole = pairs.sum(0)
    return f"{whole[0] / whole[1]:.3f} (95 %: {low:.3f}..{high:.3f})"


def _share(seconds: list[float], found: dict[str, Any]) -> float:
    return sum(seconds) / len(seconds) / float(found["seconds"])


def _shown(seen: Any, form: str) -> str:
    return f"{seen.median:{form}} ({seen.low:{form}}..{seen.high:{form}})"


def main(args: Args) -> None:
    """Measure, show and save."""
    found = {"per_minute": args.per_minute, "seconds": args.seconds, **measure(args)}
    table = Table("measured", "median (lowest..highest)")
    for row in _rows(found):
        table.add_row(*row)
    Console(width=120).print(table)
    args.out.mkdir(parents=True, exist_ok=True)
    about = {
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    content = {"about": about, **found, "summary": dict(_rows(found))}
    (args.out / "strangers.json").write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Args))
