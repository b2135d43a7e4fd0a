"""One slice: a fresh process that builds a contender, warms it up, and counts steps for a second or so.

A process per slice, because some contenders spin while they are idle: what is not being measured must not
exist, or it takes its share of the cores from what is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import neighbours
from benchmarks.peers import ROOT, interpreter, read_outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.contenders import Contender
    from benchmarks.runners.common import Spec

# The same for everyone: a library that starts a thread per core in each of its processes, or OpenCV within
# the Atari wrappers, would otherwise measure the scheduler.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENCV_FOR_THREADS_NUM": "1"}


class Unavailable(Exception):
    """A contender cannot be measured; the text is the reason, as the table will show it."""


@dataclass(frozen=True, slots=True)
class SliceResult:
    """What one slice found."""

    steps_per_second: float
    env_id: str
    versions: dict[str, str]
    others: float
    """Share of the machine's cores, 0 to 1, that other programs used meanwhile."""


def find_python(contender: Contender, venvs: Path, chosen: Mapping[str, Path]) -> Path:
    """Return the interpreter that can run a contender.

    Args:
        contender: who is to run.
        venvs: the folder that `benchmarks.setup_peers` filled.
        chosen: interpreters that the user named, by venv or contender name; they win.

    Raises:
        Unavailable: no interpreter has the library.
    """
    for name in filter(None, (contender.name, contender.venv)):
        if name in chosen:
            return chosen[name]
    outcome = read_outcome(venvs, contender.venv) if contender.venv else None
    if contender.venv and outcome and outcome.ok:
        return interpreter(venvs, contender.venv)
    if not contender.own_venv_only and importlib.util.find_spec(contender.module):
        return Path(sys.executable)
    if outcome:
        raise Unavailable(outcome.reason)
    if contender.venv:
        raise Unavailable(f"not installed: run python -m benchmarks.setup_peers --only {contender.venv}")
    raise Unavailable(f"this interpreter cannot import {contender.module}")


def run_slice(contender: Contender, python: Path, spec: Spec, start_limit_s: float) -> SliceResult:
    """Measure one slice in a fresh process and leave nothing of it behind.

    Args:
        contender: who is to run.
        python: the interpreter that has the library.
        spec: what to step and for how long.
        start_limit_s: how long building and closing may take on top of the measurement.

    Raises:
        Unavailable: the runner failed, or took longer than it may.
    """
    limit_s = start_limit_s + spec.warmup_s + spec.seconds
    # A folder of its own as the current one: importing pufferlib leaves a link where it stands.
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch, "result.json")
        log = Path(scratch, "log.txt")
        text = json.dumps(dataclasses.asdict(spec))
        call = [str(python), "-m", f"benchmarks.runners.{contender.runner}", text, str(result)]
        before = neighbours.read()
        code = run_group(call, scratch, log, environ(python), limit_s)
        others = neighbours.others_share(before, neighbours.read())
        if code is None:
            raise Unavailable(f"gave no result within {limit_s:.0f} s")
        if not result.exists():
            raise Unavailable(f"exit status {code}: {last_line(log)}")
        found = json.loads(result.read_text())
    return SliceResult(found["steps"] / found["seconds"], found["env_id"], found["versions"], others)


def environ(python: Path) -> dict[str, str]:
    """Return the environment variables of a runner: our files on its path, one thread per library."""
    paths = [str(ROOT)]
    # What this interpreter was told to find belongs to its Python version; a peer's may be another.
    if python == Path(sys.executable):
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        paths += [str(Path(path).absolute()) for path in given if path]
    return {**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(paths)}


def run_group(call: list[str], folder: str, log: Path, environ: dict[str, str], limit_s: float) -> int | None:
    """Run `call` in a process group of its own; return its exit status, or None when it took too long."""
    with log.open("wb") as sink:
        process = subprocess.Popen(call, cwd=folder, env=environ, stdout=sink, stderr=sink, start_new_session=True)
        try:
            return process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            # Also after a good end: a peer that failed to stop its workers would slow down whoever is next.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def last_line(log: Path) -> str:
    """Return the last line that a runner wrote, which is where Python names an error."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].replace(str(ROOT), ".") if lines else "no output"
