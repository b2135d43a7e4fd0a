"""Fuzz one target, or all of them one after the other.

python -m fuzz.run plain --seconds 600 [--out DIR]
python -m fuzz.run all --seconds 60

With atheris (pip install "clusterenv[fuzz]") inputs are led by what they reach; without it the seeds are changed at
random. Each target runs in a process of its own, with a limit on memory, and an input that takes ten seconds is a hang.
What was found lies in DIR as NAME-*, one file per input; the exit code is 1.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import pathlib
import platform
import re
import resource
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from typing import Any

import tyro

RESULTS = pathlib.Path(__file__).resolve().parent / "findings"
HANG_S = 10
# Beyond what is mapped once everything is loaded. No input is larger than 4 KiB.
ROOM_BYTES = 2**30
MAX_INPUT_BYTES = 4096
# For loading, and for what libFuzzer does after the time is up.
_SLACK_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Args:
    """Fuzz a decoder."""

    target: tyro.conf.Positional[str]
    """the name of a target in fuzz/targets.py, or "all" """
    seconds: int = 60
    """how long, for each target"""
    seed: int = 1
    """of the random numbers"""
    atheris: bool = importlib.util.find_spec("atheris") is not None
    """whether atheris leads the search"""
    out: pathlib.Path = RESULTS
    """folder for inputs that are findings, and for fuzz.json"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of fuzzing a target."""

    target: str
    engine: str
    seconds: int
    executions: int
    findings: list[str]


def fuzz(name: str, args: Args) -> Outcome:
    """Fuzz one target in a process of its own."""
    engine = "atheris" if args.atheris else "mutations"
    args.out.mkdir(parents=True, exist_ok=True)
    before = set(args.out.glob(f"{name}-*"))
    words = [name, str(args.seconds), str(args.seed), engine, os.fspath(args.out.resolve())]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([sys.executable, "-m", "fuzz.child", *words], stdout=log, stderr=log)
        try:
            code: int | str = process.wait(args.seconds + _SLACK_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = "it never ended"
        log.seek(0)
        said = log.read().decode(errors="replace")
    found = sorted(path.name for path in set(args.out.glob(f"{name}-*")) - before)
    if code != 0 and not found:
        found = [f"exit code {code}, without an input"]
    if found:
        print(said[-6000:])
    counts = re.findall(r"number_of_executed_units: *([0-9]+)", said)
    return Outcome(name, engine, args.seconds, int(counts[-1]) if counts else 0, found)


def main(args: Args) -> int:
    """Fuzz, show and save."""
    from fuzz.targets import TARGETS

    names = list(TARGETS) if args.target == "all" else [args.target]
    if args.target != "all" and args.target not in TARGETS:
        print(f"{args.target!r} is no target; there are: {', '.join(TARGETS)}, and all.")
        return 2
    outcomes = []
    for name in names:
        outcomes.append(fuzz(name, args))
        last = outcomes[-1]
        found = ", ".join(last.findings) or "nothing"
        print(f"{name:12} {last.engine:9} {last.seconds:5} s {last.executions:10,} inputs: {found}", flush=True)
    about: dict[str, Any] = {
        "day": datetime.date.today().isoformat(),
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "room_bytes": ROOM_BYTES,
    }
    content = {"about": about, "found": [asdict(outcome) for outcome in outcomes]}
    (args.out / "fuzz.json").write_text(json.dumps(content, indent=1) + "\n")
    return 1 if any(outcome.findings for outcome in outcomes) else 0


def limit_memory(room: int) -> None:
    """From now on this process may map so many bytes more than it has."""
    mapped = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + room, mapped + room))


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args)))
