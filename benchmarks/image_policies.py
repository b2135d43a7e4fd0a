"""Command line: how long a policy for images takes to act on a worker, with its weights as they come and prepared.

python -m benchmarks.image_policies [--repeats 15] [--out DIR]
"""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - tyro reads the annotations
from typing import TYPE_CHECKING, cast, get_args

import numpy as np
import tyro
from gymnasium.spaces import Box, Discrete
from rich.console import Console
from rich.table import Table

from benchmarks.paths import RESULTS
from benchmarks.report import command_line, machine
from benchmarks.stats import ratio, spread
from clusterenv.learners.common.networks.make import Body, make_network
from clusterenv.policy.adapters import as_policy
from clusterenv.policy.onnx_runtime import OnnxRuntime

if TYPE_CHECKING:
    from benchmarks.stats import Spread
    from clusterenv.policy.graph import GraphSpec
    from clusterenv.policy.protocol import Array

IMAGES = Box(0, 255, (4, 84, 84), np.uint8)
BODIES = tuple(body for body in get_args(Body) if body != "mlp")
CALLS = 5  # per measurement
NEVER = 2**62  # calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Args:
    """Time policies for four frames of 84 x 84, on one thread."""

    repeats: int = 15
    """Times that each number is measured, the two ways in turn."""
    bodies: tuple[str, ...] = BODIES
    """Networks."""
    rows: tuple[int, ...] = (2, 8, 16, 32)
    """Environments of one worker."""
    out: Path = RESULTS
    """Folder for the JSON file."""


@dataclass(frozen=True, slots=True)
class Line:
    """One network with so many rows; times in milliseconds, one for each repetition."""

    body: str
    rows: int
    open_ms: list[float]
    """a call, weights as inputs of the graph"""
    prepared_ms: list[float]
    """a call, weights laid out for the processor"""
    prepare_ms: list[float]
    """to lay them out, once per version"""

    @property
    def faster(self) -> Spread | None:
        """How many times as fast prepared weights are."""
        return ratio(dict(enumerate(self.open_ms)), dict(enumerate(self.prepared_ms)))


def main(args: Args) -> None:
    """Measure, show and save."""
    console = Console()
    lines = [line for body in args.bodies for line in measure(body, args.rows, args.repeats)]
    console.print(_table(lines))
    path = args.out / "image-policies.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"command_line": command_line(), "machine": machine(), "unit": "ms"}
    path.write_text(json.dumps({**head, "numbers": [dataclasses.asdict(line) for line in lines]}, indent=1) + "\n")
    console.print(f"written: {path}")


def measure(body: str, rows: tuple[int, ...], repeats: int) -> list[Line]:
    """The numbers of one network."""
    actions = Discrete(6)
    policy = as_policy(make_network(IMAGES, actions, body=cast("Body", body)), IMAGES, actions, "onnx")
    spec, weights = cast("GraphSpec", policy.build()), dict(policy.weights())
    plain, prepared = OnnxRuntime(spec, prepared_after=NEVER), OnnxRuntime(spec, prepared_after=0)
    plain.load(weights)
    lines = []
    for count in rows:
        images = np.random.default_rng(count).integers(0, 256, (count, *(IMAGES.shape or ())), np.uint8)
        line = Line(body, count, [], [], [])
        for _ in range(repeats):
            line.open_ms.append(_call_ms(plain, images, CALLS))
            prepared.load(weights)
            first = _call_ms(prepared, images, 1)
            line.prepared_ms.append(_call_ms(prepared, images, CALLS))
            line.prepare_ms.append(first - line.prepared_ms[-1])
        lines.append(line)
    return lines


def _call_ms(runtime: OnnxRuntime, images: Array, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        runtime([images], ())
    return 1e3 * (time.perf_counter() - start) / calls


def _table(lines: list[Line]) -> Table:
    table = Table(title="A policy for four frames of 84 x 84 acts, on one thread")
    for name in ("network", "rows", "ms", "ms, prepared", "times as fast", "ms to prepare"):
        table.add_column(name, justify="right")
    for line in lines:
        values = [spread(line.open_ms), spread(line.prepared_ms), line.faster, spread(line.prepare_ms)]
        told = [f"{value.median:.2f} ({value.low:.2f}..{value.high:.2f})" if value else "-" for value in values]
        table.add_row(line.body, str(line.rows), *told)
    return table


if __name__ == "__main__":
    main(tyro.cli(Args))
