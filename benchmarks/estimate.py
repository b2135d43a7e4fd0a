"""Command line: what it costs the head to know how far its workers' policy has drifted.

python -m benchmarks.estimate [--repeats 50] [--out DIR]
"""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - tyro reads the annotations
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import tyro
from gymnasium.spaces import Box, Discrete
from rich.console import Console
from rich.table import Table

from benchmarks.paths import RESULTS
from benchmarks.report import command_line, machine
from benchmarks.runners.cluster_policy import Agent
from benchmarks.stats import Spread, spread
from clusterenv.env.drift import Drift
from clusterenv.policy.adapters import as_policy
from clusterenv.sync.codec import Decoded, rounded
from clusterenv.sync.versions import Version
from clusterenv.sync.weights import WeightSpec
from clusterenv.transport.fragments import Columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterenv.policy.protocol import Policy

INPUTS, ACTIONS = 8, 4  # of LunarLander-v3
STEPS, SLOTS = 64, 16  # of the fragment that each worker sends
TARGET_MS, TARGET_WORKERS = 5.0, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Args:
    """Time the estimator with made-up fragments; no processes are started."""

    repeats: int = 50
    """Times that each number is measured."""
    workers: tuple[int, ...] = (1, 2, 16, 64)
    """Numbers of workers whose samples are compared."""
    out: Path = RESULTS
    """Folder for the JSON file."""


@dataclass(frozen=True, slots=True)
class Line:
    """One number of the report."""

    workers: int
    what: str
    values: list[float]

    @property
    def value(self) -> Spread | None:
        """Median and range, in milliseconds."""
        return spread(self.values)


def main(args: Args) -> int:
    """Measure, show and save; return 1 when the target is missed."""
    console = Console()
    torch.set_num_threads(1)
    lines = [line for workers in args.workers for line in measure(workers, args.repeats)]
    console.print(_table(lines))
    path = args.out / "estimate.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"command_line": command_line(), "machine": machine(), "unit": "ms", "fragment": [STEPS, SLOTS]}
    body = [{**dataclasses.asdict(line), **dataclasses.asdict(line.value)} for line in lines if line.value]
    path.write_text(json.dumps({**head, "numbers": body}, indent=1) + "\n")
    console.print(f"written: {path}")
    slow = [line for line in lines if line.workers <= TARGET_WORKERS and _missed(line)]
    for line in slow:
        console.print(f"[red]{line.workers} workers: {line.what} takes more than {TARGET_MS} ms")
    return 1 if slow else 0


def measure(workers: int, repeats: int) -> list[Line]:
    """Return the numbers for so many workers."""
    policy = as_policy(Agent(INPUTS, ACTIONS), Box(-1.0, 1.0, (INPUTS,)), Discrete(ACTIONS), "onnx")
    spec = WeightSpec.of(policy.weights())
    drift = Drift(workers, policy.distribution, spec, policy.build().make)
    held, newest = _version(policy, spec, 0), _version(policy, spec, 1)
    fragments = [_fragment(policy, held, spec, seed) for seed in range(workers)]
    times: dict[str, list[float]] = {"publish": [], "move": [], "fragment": []}
    for _ in range(repeats + 3):
        times["fragment"].append(_ms(lambda: drift.observe(0, fragments[0], 0)))
        for worker, fragment in enumerate(fragments):
            drift.observe(worker, fragment, 0)
        times["publish"].append(_ms(lambda: drift.update(newest, held, threshold=0.05)))
        times["move"].append(_ms(lambda: drift.rebase(held)))
    names = {
        "publish": "a version is published and measured",
        "move": "weights have moved: start from them",
        "fragment": "a fragment arrives",
    }
    # The first few make the runtime and its buffers.
    return [Line(workers, names[name], values[3:]) for name, values in times.items()]


def _version(policy: Policy, spec: WeightSpec, number: int) -> Decoded:
    rng = np.random.default_rng(number)
    weights = {
        name: (w + rng.normal(0, 0.01 * number, w.shape)).astype(w.dtype) for name, w in policy.weights().items()
    }
    return rounded(spec.flatten(weights), Version(0, number), "bf16-delta")


def _fragment(policy: Policy, held: Decoded, spec: WeightSpec, seed: int) -> Columns:
    """What a worker would have sent, had it played."""
    rng = np.random.default_rng(seed)
    runtime = policy.build().make()
    runtime.load(spec.unflatten(held.flat))
    obs = rng.normal(0, 1, (STEPS + 1, SLOTS, INPUTS)).astype(np.float32)
    output = runtime([obs[:-1].reshape(-1, INPUTS)], ())
    distribution = policy.distribution
    noise = rng.random((STEPS * SLOTS, distribution.draws), dtype=np.float32)
    actions = distribution.sample(output.params, noise)
    logp = distribution.log_prob(output.params, actions)
    flags: Any = np.zeros((STEPS + 1, SLOTS), np.bool_)
    return Columns(
        obs=[obs],
        state=[],
        final=[obs[1:]],
        episode_return=np.zeros((STEPS, SLOTS)),
        episode_length=np.zeros((STEPS, SLOTS), np.int64),
        action=actions.reshape(STEPS, SLOTS),
        reward=np.zeros((STEPS, SLOTS)),
        terminated=flags[1:],
        truncated=flags[1:],
        first=flags,
        logp=logp.reshape(STEPS, SLOTS),
        params=output.params.reshape(STEPS, SLOTS, -1),
        version=np.zeros((STEPS, SLOTS), np.int64),
        value=None,
    )


def _ms(act: Callable[[], Any]) -> float:
    start = time.perf_counter()
    act()
    return 1e3 * (time.perf_counter() - start)


def _missed(line: Line) -> bool:
    return line.value is not None and line.value.median > TARGET_MS


def _table(lines: list[Line]) -> Table:
    table = Table(title=f"The head's estimate of drift, 64-64 actor-critic (target: {TARGET_MS:g} ms)")
    for name in ("workers", "median", "lowest..highest"):
        table.add_column(name, justify="right")
    table.add_column("ms, when")
    for line in lines:
        value = line.value
        if value:
            table.add_row(str(line.workers), f"{value.median:.3f}", f"{value.low:.3f}..{value.high:.3f}", line.what)
    return table


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Args)))
