"""Command line: how many environment steps per second, beside Gymnasium and the peers, as ratios.

python -m benchmarks.step [--quick] [--suite default] [--venvs DIR] [--out DIR]
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 - tyro reads the annotations
from typing import TYPE_CHECKING, Any, Literal

import tyro
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.contenders import CONTENDERS, Contender, Settings, contenders_of
from benchmarks.neighbours import Patience
from benchmarks.paths import RESULTS
from benchmarks.peers import DEFAULT_VENVS
from benchmarks.report import document, head, rows, usable_cpus
from benchmarks.rounds import Entry, Plan, count_slices, measure_workload
from benchmarks.slices import SliceResult, Unavailable, find_python, run_slice
from benchmarks.stats import spread
from benchmarks.workloads import SUITES, Workload

if TYPE_CHECKING:
    from benchmarks.report import Row
    from benchmarks.rounds import RunSlice
    from benchmarks.runners.common import Spec
    from benchmarks.stats import Spread

REPEATS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Args:
    """Measure environment steps per second, interleaved, and report ratios."""

    quick: bool = False
    """A short look: CartPole with 64 environments, 2 rounds, settings untried."""
    suite: Literal["default", "quick", "cores16", "policy", "policy16"] = "default"
    """Which workloads; those with a 16 are for a machine with 16 cores, policy is about a policy on the workers."""
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
    disturbed_above: float = 0.1
    """Repeat a slice, at most twice, during which other programs used more than this share of the cores."""
    patience_s: float = 900.0
    """Time in the whole run for such repetitions and for waiting until the machine is quiet; 0 for none."""
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
    names = [name for name in args.contenders or contenders_of(suite) if name not in args.without]
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
    pythons, absent = _interpreters(args, [CONTENDERS[name] for name in names])
    patience = Patience(args.disturbed_above, 0.0 if args.quick else args.patience_s)

    def run(contender: Contender, spec: Spec) -> SliceResult:
        python = pythons[contender.name]
        return patience.repeat(lambda: run_slice(contender, python, spec, args.start_limit_s), REPEATS)

    about = head(plan, suite)
    results: list[tuple[Workload, list[Entry]]] = []
    for workload in workloads:
        measured = _measure(workload, [CONTENDERS[name] for name in pythons], plan, run, console)
        results.append((workload, measured + absent))
        console.print(_table(*results[-1]))
        # After each workload, so that a run that is cut short still leaves what it has.
        _save(args.out / f"step-{suite}.json", document(about, results), console)
    return 0


def _save(path: Path, found: dict[str, Any], console: Console) -> None:
    """Write the JSON file, and the picture beside it where matplotlib is installed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    console.print(f"written: {path}")
    try:
        from benchmarks.plot import draw
    except ImportError:
        console.print(f"no picture, as matplotlib is not installed; later: python -m benchmarks.plot {path}")
        return
    draw(path.with_suffix(".png"), found)


def _console() -> Console:
    """Return a console that is wide enough for the table where nobody can widen it: in a log file."""
    console = Console()
    return console if console.is_terminal else Console(width=170)


def _interpreters(args: Args, contenders: list[Contender]) -> tuple[dict[str, Path], list[Entry]]:
    """Return the interpreter of each contender, and an entry with the reason for each that has none."""
    pythons: dict[str, Path] = {}
    absent: list[Entry] = []
    for contender in contenders:
        try:
            pythons[contender.name] = find_python(contender, args.venvs.absolute(), args.python)
        except Unavailable as failure:
            absent.append(Entry(contender, failures=[str(failure)]))
    return pythons, absent


def _measure(
    workload: Workload, contenders: list[Contender], plan: Plan, run: RunSlice, console: Console
) -> list[Entry]:
    """Measure one workload under a progress bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        # The first notice says that the first slice begins, not that it is done.
        task = progress.add_task(workload.name, total=count_slices(workload, contenders, plan), completed=-1)

        def notify(text: str) -> None:
            progress.update(task, description=escape(text), advance=1)

        return measure_workload(workload, contenders, plan, run, notify)


def _table(workload: Workload, entries: list[Entry]) -> Table:
    """Return the table of one workload, the fastest first, those without a number last."""
    table = Table(title=f"{workload.name} ({workload.env_id}, {workload.num_envs} environments)")
    table.add_column("contender", no_wrap=True)
    for title in ("steps/s", "lowest..highest", "x Sync", "of the limit", "ClusterEnv / it"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("settings, remarks")
    for row in sorted(rows(entries), key=lambda row: -(row.rate.median if row.rate else 0.0)):
        _add(table, row, workload)
    others = spread([found.others for entry in entries for found in entry.slices.values()])
    if others:
        table.caption = (
            f"Meanwhile other programs used {others.median:.0%} of the cores ({others.low:.0%}..{others.high:.0%})."
        )
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


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Args)))
