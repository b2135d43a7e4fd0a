"""Command line: how many environment steps per second, beside Gymnasium and the peers, as ratios.

python -m benchmarks.step [--quick] [--suite default] [--venvs DIR] [--out DIR]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.contenders import CONTENDERS, Contender, Settings
from benchmarks.peers import DEFAULT_VENVS
from benchmarks.plot import draw
from benchmarks.report import head, machine, rows, usable_cpus, write_json
from benchmarks.rounds import Entry, Plan, count_slices, measure_workload
from benchmarks.slices import SliceResult, Unavailable, find_python, run_slice
from benchmarks.workloads import SUITES, Workload

if TYPE_CHECKING:
    from benchmarks.report import Row
    from benchmarks.runners.common import Spec
    from benchmarks.stats import Spread

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Args:
    """Measure environment steps per second, interleaved, and report ratios."""

    quick: bool = False
    """A short look: CartPole with 64 environments, 2 rounds, settings untried."""
    suite: Literal["default", "quick", "cores16"] = "default"
    """Which workloads; cores16 is for a machine with 16 cores."""
    workloads: list[str] = field(default_factory=list)
    """Only these workloads of the suite (default: all)."""
    contenders: list[str] = field(default_factory=list)
    """Only these contenders (default: all)."""
    without: list[str] = field(default_factory=list)
    """All contenders but these."""
    workers: int = field(default_factory=usable_cpus)
    """Worker processes of each contender (default: the usable cores)."""
    rounds: int = 5
    """How often everyone is measured."""
    slice_s: float = 1.0
    """Length of one measurement in seconds."""
    warmup_s: float = 0.5
    """Steps before each measurement that do not count, in seconds."""
    tune_s: float = 1.0
    """Length of the slice that tries one setting of a peer; 0 takes the first setting untried."""
    start_limit_s: float = 180.0
    """How long a contender may take to start and to close."""
    venvs: Path = DEFAULT_VENVS
    """Folder that `python -m benchmarks.setup_peers` filled."""
    python: dict[str, Path] = field(default_factory=dict)
    """Interpreters to use instead, as pairs of contender (or venv) and path."""
    seed: int = 1
    """Seed of environments, actions and the order within a round."""
    out: Path = RESULTS
    """Folder for the JSON file and the picture."""


def main(args: Args) -> int:
    """Measure, show and save; return 2 when a name in the arguments is unknown."""
    console = _console()
    suite = "quick" if args.quick else args.suite
    workloads = [w for w in SUITES[suite] if not args.workloads or w.name in args.workloads]
    names = [name for name in args.contenders or CONTENDERS if name not in args.without]
    unknown = {*args.contenders, *args.without} - CONTENDERS.keys()
    unknown |= set(args.workloads) - {w.name for w in SUITES[suite]}
    if unknown:
        known = [*CONTENDERS, *(w.name for w in SUITES[suite])]
        console.print(f"unknown: {', '.join(sorted(unknown))}. Known: {', '.join(known)}.", style="red")
        return 2
    plan = Plan(
        workers=args.workers,
        rounds=min(args.rounds, 2) if args.quick else args.rounds,
        slice_s=args.slice_s,
        warmup_s=args.warmup_s,
        tune_s=0.0 if args.quick else args.tune_s,
        seed=args.seed,
    )
    about = head(plan, suite)
    results: list[tuple[Workload, list[Entry]]] = []
    for workload in workloads:
        entries = _measure(args, plan, workload, [CONTENDERS[name] for name in names], console)
        results.append((workload, entries))
        console.print(_table(workload, entries))
        # After each workload, so that a run that is cut short still leaves what it has.
        write_json(args.out / f"step-{suite}.json", about, results)
        draw(args.out / f"step-{suite}.png", results, _caption(plan))
    console.print(f"written: {args.out / f'step-{suite}'}.json and .png")
    return 0


def _console() -> Console:
    """Return a console that is wide enough for the table where nobody can widen it: in a log file."""
    console = Console()
    return console if console.is_terminal else Console(width=170)


def _measure(args: Args, plan: Plan, workload: Workload, contenders: list[Contender], console: Console) -> list[Entry]:
    """Measure one workload under a progress bar."""

    def run(contender: Contender, spec: Spec) -> SliceResult:
        python = find_python(contender, args.venvs.absolute(), args.python)
        return run_slice(contender, python, spec, args.start_limit_s)

    absent = []
    for contender in contenders:
        try:
            find_python(contender, args.venvs.absolute(), args.python)
        except Unavailable as failure:
            absent.append(Entry(contender, failures=[str(failure)]))
    left_out = {entry.contender.name for entry in absent}
    present = [contender for contender in contenders if contender.name not in left_out]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(workload.name, total=count_slices(workload, present, plan), completed=-1)

        def notify(text: str) -> None:
            progress.update(task, description=escape(text), advance=1)

        return measure_workload(workload, present, plan, run, notify) + absent


def _table(workload: Workload, entries: list[Entry]) -> Table:
    """Return the table of one workload, the fastest first, those without a number last."""
    table = Table(title=f"{workload.name} ({workload.env_id}, {workload.num_envs} environments)")
    table.add_column("contender", no_wrap=True)
    for title in ("steps/s", "lowest..highest", "x Sync", "of the limit", "ClusterEnv / it"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("settings, remarks")
    for row in sorted(rows(entries), key=lambda row: -(row.rate.median if row.rate else 0.0)):
        _add(table, row, workload)
    return table


def _add(table: Table, row: Row, workload: Workload) -> None:
    entry = row.entry
    title = entry.contender.title
    if row.rate is None:
        reason = f"not available: {entry.reason}"
        table.add_row(title, *["-"] * 5, escape(reason), style="dim")
        return
    table.add_row(
        title,
        f"{row.rate.median:,.0f}",
        f"{row.rate.low:,.0f}..{row.rate.high:,.0f}",
        _ratio(row.to_sync),
        _ratio(row.to_limit),
        _ratio(row.ours_to_it),
        escape(_remarks(entry, workload)),
        style="bold" if entry.contender.module == "clusterenv" else None,
    )


def _ratio(value: Spread | None) -> str:
    return f"{value.median:.2f} ({value.low:.2f}..{value.high:.2f})" if value else "-"


def _remarks(entry: Entry, workload: Workload) -> str:
    parts = [_settings(entry.settings)]
    stepped = {found.env_id for found in entry.slices.values()} - {workload.env_id}
    if stepped:
        parts.append(f"steps {', '.join(sorted(stepped))} of its own Gymnasium")
    if entry.failures:
        parts.append(f"{len(entry.failures)} rounds failed: {entry.failures[0]}")
    return "; ".join(part for part in parts if part)


def _settings(settings: Settings) -> str:
    return " ".join(f"{key}={value}" for key, value in settings.items())


def _caption(plan: Plan) -> str:
    here = machine()
    return (
        f"{here['cpu']}, {here['usable_cpus']} cores, {plan.workers} workers; median and range of "
        f"{plan.rounds} rounds; red: ClusterEnv, light: send/recv, dashed: bare loop limit"
    )


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Args)))
