"""Command line: what a step costs the thread that infers on the head, beside the network itself.

python -m benchmarks.head_inference [--device cuda] [--slots 32 240] [--workers 1] [--out DIR]

Environments that show four frames of 84 x 84 and take no time, and a network that looks at nothing: what is left are
the messages, and the copies of what was seen. The learner takes the batches and throws them away.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - tyro reads the annotations
from typing import TYPE_CHECKING, Any

import psutil
import torch
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.paths import RESULTS
from benchmarks.report import command_line, machine
from benchmarks.stats import spread
from clusterenv.learners.common.environments import environments
from clusterenv.learners.common.source import source_for
from clusterenv.learners.impala import IMPALAConfig
from clusterenv.policy.distributions import distribution_for

if TYPE_CHECKING:
    from clusterenv.learners.common.source import Source

WARM_UP = 6  # batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Args:
    """Time the head's inference thread."""

    device: str = "cpu"
    """where it infers"""
    workers: int = 1
    """worker processes"""
    slots: tuple[int, ...] = (32, 240)
    """environments of all workers together, one after the other; half of them are a batch"""
    repeats: int = 5
    """how often each is measured"""
    seconds: float = 4.0
    """how long"""
    out: Path = RESULTS
    """folder for the JSON file"""


@dataclass(frozen=True, slots=True)
class Line:
    """So many environments; one number for each repetition."""

    slots: int
    steps_per_s: list[float]
    thread_us: list[float]
    """processor time of the thread for a step"""
    p50_ms: list[float]
    """from the environments' results to the next actions"""
    p99_ms: list[float]


class Nothing(torch.nn.Module):
    """A policy that looks at nothing: all actions are equally likely."""

    state = ()

    def __init__(self, action_space: Any) -> None:
        super().__init__()
        self.distribution = distribution_for(action_space)
        self.zero = torch.nn.Parameter(torch.zeros(1))

    def forward(self, seen: torch.Tensor, state: tuple[Any, ...]) -> Any:
        """No preference and no value, for each row."""
        rows = self.zero.expand(len(seen), self.distribution.size)
        return rows, rows[:, 0], state


def main(args: Args) -> None:
    """Measure, show and save."""
    console = Console()
    lines = [measure(args, slots) for slots in args.slots]
    console.print(_table(lines))
    path = args.out / "head-inference.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"command_line": command_line(), "machine": machine(), "load": os.getloadavg()[0]}
    path.write_text(json.dumps({**head, "numbers": [dataclasses.asdict(line) for line in lines]}, indent=1) + "\n")
    console.print(f"written: {path}")


def measure(args: Args, slots: int) -> Line:
    """The numbers for so many environments."""
    config = IMPALAConfig(
        env_id="benchmarks.envs:Pixels-v0",
        cluster=f"local:{args.workers}",
        num_envs=slots,
        stream_slots=slots // 2,
        total_steps=10**9,
        inference="head",
        device=args.device,
    )
    line = Line(slots, [], [], [], [])
    with environments(config, config.cluster) as envs:
        policy = Nothing(envs.single_action_space).to(args.device)
        with source_for(envs, policy, config) as source:
            thread = next(each.native_id for each in threading.enumerate() if each.name == "inference")
            for _ in range(WARM_UP):
                source.next()
            for _ in range(args.repeats):
                _turn(source, args.seconds, thread, line)
    return line


def _turn(source: Source, seconds: float, thread: int | None, line: Line) -> None:
    source.stats()
    steps, spent_s, began = 0, -_processor_s(thread), time.perf_counter()
    while time.perf_counter() - began < seconds:
        steps += source.next().steps
    taken_s, spent_s = time.perf_counter() - began, spent_s + _processor_s(thread)
    told = source.stats()["inference"]
    line.steps_per_s.append(round(steps / taken_s))
    line.thread_us.append(round(1e6 * spent_s / steps, 2))
    line.p50_ms.append(round(1e3 * told["p50_s"], 3))
    line.p99_ms.append(round(1e3 * told["p99_s"], 3))


def _processor_s(thread: int | None) -> float:
    times = next(each for each in psutil.Process().threads() if each.id == thread)
    return float(times.user_time + times.system_time)


def _table(lines: list[Line]) -> Table:
    table = Table(title="Inference on the head without a network")
    for name in ("environments", "steps/s", "us of the thread per step", "p50 ms", "p99 ms"):
        table.add_column(name, justify="right")
    for line in lines:
        told = [spread(values) for values in (line.steps_per_s, line.thread_us, line.p50_ms, line.p99_ms)]
        shown = [f"{each.median:,.1f} ({each.low:,.1f}..{each.high:,.1f})" if each else "-" for each in told]
        table.add_row(str(line.slots), *shown)
    return table


if __name__ == "__main__":
    main(tyro.cli(Args))
