"""What a run leaves behind: every number and ratio, with the machine it was measured on, as plain data."""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import LIMIT, OURS, SYNC
from benchmarks.stats import Spread, ratio, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.rounds import Entry, Plan
    from benchmarks.workloads import Workload


@dataclass(frozen=True, slots=True)
class Row:
    """One contender on one workload, ready to be shown."""

    entry: Entry
    rate: Spread | None
    to_sync: Spread | None
    to_limit: Spread | None
    ours_to_it: Spread | None
    """How many times as fast ClusterEnv is in the same mode."""


def rows(entries: Sequence[Entry]) -> list[Row]:
    """Compute the ratios of all entries of one workload, within each round."""
    rates = {entry.contender.name: entry.rates for entry in entries}

    def to(name: str, entry: Entry) -> Spread | None:
        return ratio(entry.rates, rates.get(name, {}))

    return [
        Row(
            entry,
            spread(list(entry.rates.values())),
            to(SYNC, entry),
            to(LIMIT, entry),
            ratio(rates.get(OURS.get(entry.contender.mode, ""), {}), entry.rates),
        )
        for entry in entries
    ]


def usable_cpus() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> dict[str, Any]:
    """Describe the machine, without its name or address."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2] for line in info.read_text().splitlines() if "model name" in line]
        model = names[0].strip() if names else model
    return {
        "cpu": model,
        "usable_cpus": usable_cpus(),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "python": platform.python_version(),
    }


def command_line() -> list[str]:
    """Return the arguments of this run; a folder is named without where it lies on this machine."""
    return [f".../{Path(each).name}" if os.path.isabs(each) else each for each in sys.argv[1:]]


def document(about: dict[str, Any], results: Sequence[tuple[Workload, list[Entry]]]) -> dict[str, Any]:
    """Return everything that was measured, raw numbers included, as plain data."""
    return {
        **about,
        "workloads": [
            {**dataclasses.asdict(workload), "contenders": [_record(row) for row in rows(entries)]}
            for workload, entries in results
        ],
    }


def head(plan: Plan, suite: str) -> dict[str, Any]:
    """Return what the JSON file says before the numbers."""
    return {
        "what": "environment steps per second; ratios are medians of the ratios within each round",
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "suite": suite,
        "command_line": command_line(),
        "machine": machine(),
        "plan": dataclasses.asdict(plan),
    }


def _record(row: Row) -> dict[str, Any]:
    entry = row.entry
    some = next(iter(entry.slices.values()), None)
    return {
        "name": entry.contender.name,
        "title": entry.contender.title,
        "mode": entry.contender.mode,
        "available": not entry.reason,
        "reason": entry.reason,
        "settings": entry.settings,
        "env_id": some.env_id if some else None,
        "versions": some.versions if some else {},
        "steps_per_second": _plain(row.rate),
        "ratio_to_sync": _plain(row.to_sync),
        "share_of_limit": _plain(row.to_limit),
        "clusterenv_to_this": _plain(row.ours_to_it),
        "rounds": [
            {"round": i, "steps_per_second": found.steps_per_second, "others": found.others}
            for i, found in sorted(entry.slices.items())
        ],
        "failed_rounds": entry.failures,
        "trials": [dataclasses.asdict(trial) for trial in entry.trials],
    }


def _plain(value: Spread | None) -> dict[str, float] | None:
    return dataclasses.asdict(value) if value else None
