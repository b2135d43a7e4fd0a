"""Command line: what ClusterEnv costs before the first step and between steps.

python -m benchmarks.startup [--repeats 7] [--workers 2] [--out DIR]
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.paths import RESULTS
from benchmarks.report import command_line, machine
from benchmarks.slices import Unavailable, environ, last_line, run_group
from benchmarks.stats import Spread, spread

LIMIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Args:
    """Measure import time, the way to the first observation, closing, and the cost of doing nothing."""

    repeats: int = 7
    """Fresh interpreters per number."""
    workers: int = 2
    """Worker processes."""
    num_envs: int = 64
    """Environments (CartPole-v1)."""
    idle_s: float = 5.0
    """How long the workers are watched while there is nothing to do."""
    out: Path = RESULTS
    """Folder for the JSON file."""


@dataclass(frozen=True, slots=True)
class Line:
    """One number of the report."""

    what: str
    unit: str
    values: list[float]

    @property
    def value(self) -> Spread | None:
        """Median and range."""
        return spread(self.values)


def main(args: Args) -> int:
    """Measure, show and save; return 1 when ClusterEnv could not be started."""
    console = Console()
    try:
        with console.status("measuring"):
            lines = measure(args)
    except Unavailable as failure:
        console.print(f"[red]not available: {escape(str(failure))}")
        return 1
    console.print(_table(lines))
    path = args.out / "startup.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    body = [{**dataclasses.asdict(line), **dataclasses.asdict(line.value)} for line in lines if line.value]
    head = {"command_line": command_line(), "machine": machine(), "workers": args.workers, "num_envs": args.num_envs}
    path.write_text(json.dumps({**head, "numbers": body}, indent=1) + "\n")
    console.print(f"written: {path}")
    return 0


def measure(args: Args) -> list[Line]:
    """Return every number of the report.

    Raises:
        Unavailable: a fresh interpreter could not import or start ClusterEnv.
    """
    bare, package, used = [], [], []
    for _ in range(args.repeats):
        # In turn, so that a busy moment of the machine falls on all three alike.
        bare.append(_interpreter_s("pass"))
        package.append(_interpreter_s("import clusterenv") - bare[-1])
        used.append(_interpreter_s("import clusterenv; clusterenv.make_vec") - bare[-1])
    lives = [_life(args, args.idle_s if i == 0 else 0.0) for i in range(args.repeats)]
    return [
        Line("import clusterenv, over a bare interpreter", "ms", [1e3 * value for value in package]),
        Line("the same, and first use of make_vec", "ms", [1e3 * value for value in used]),
        Line(f"local:{args.workers} to the first observation", "ms", _ms(lives, "first_observation_s")),
        Line("close", "ms", _ms(lives, "close_s")),
        Line("idle workers together", "% of a core", [lives[0]["idle_percent"]]),
    ]


def _ms(lives: list[dict[str, float]], key: str) -> list[float]:
    return [1e3 * life[key] for life in lives]


def _interpreter_s(code: str) -> float:
    """Return how long a fresh interpreter takes to run `code` and end."""
    start = time.perf_counter()
    call = [sys.executable, "-c", code]
    done = subprocess.run(call, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    elapsed_s = time.perf_counter() - start
    if done.returncode != 0:
        raise Unavailable(done.stderr.strip().splitlines()[-1])
    return elapsed_s


def _life(args: Args, idle_s: float) -> dict[str, float]:
    """Return what one start and close took, in a fresh process."""
    python = Path(sys.executable)
    with tempfile.TemporaryDirectory() as scratch:
        result, log = Path(scratch, "result.json"), Path(scratch, "log.txt")
        numbers = [str(args.num_envs), str(args.workers), str(idle_s)]
        call = [str(python), "-m", "benchmarks.runners.cluster_startup", str(result), *numbers]
        code = run_group(call, scratch, log, environ(python), LIMIT_S + idle_s)
        if code is None:
            raise Unavailable(f"gave no result within {LIMIT_S + idle_s:.0f} s")
        if not result.exists():
            raise Unavailable(f"exit status {code}: {last_line(log)}")
        return dict(json.loads(result.read_text()))


def _table(lines: list[Line]) -> Table:
    table = Table(title="ClusterEnv before and between steps")
    table.add_column("what")
    table.add_column("median", justify="right")
    table.add_column("lowest..highest", justify="right")
    table.add_column("unit")
    for line in lines:
        value = line.value
        if value:
            table.add_row(line.what, f"{value.median:.1f}", f"{value.low:.1f}..{value.high:.1f}", line.unit)
    return table


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Args)))
