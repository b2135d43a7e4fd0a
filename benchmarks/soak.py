"""Soak: clusters that are hurt for an hour, and what their heads hold meanwhile.

python -m benchmarks.soak --minutes 60

A head for each cluster, in a process of its own, uses one batch in every way while workers and nodes are killed and
stopped and environments raise, end their process and crash it (as in `benchmarks.chaos`). It works in pieces: each
begins with a reset; after each the head looks at its own memory, descriptors, threads and shared memory, and hands its
history to this process, which checks it. So neither the history nor the checker are in what is measured. Nor is what
the C library keeps for later of memory that was freed, such as that of the longest history so far: it is told to give
that back first. Memory is looked at four times: as the system sees it, with pages of program files, which come and go
as the machine has room; of these the process's own pages; as the C library counts what is in use; and as Python counts
its objects. Slopes are those of straight lines through the samples after the warm-up. A violation, a hang, or something
left behind makes the program end with 1.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import faulthandler
import gc
import json
import math
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import tyro
from rich.console import Console
from rich.table import Table

import clusterenv
from benchmarks.chaos import LEFT_S, MODES, TIMEOUTS, Run
from benchmarks.paths import RESULTS
from clusterenv.testing import (
    EchoPolicy,
    History,
    Nemesis,
    check_history,
    echo_module,
    echo_slots,
    nodes_of,
    processes,
    workers_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CHANCES = {"raise": 0.0005, "sleep": 0.0005, "exit": 0.00005, "segfault": 0.00005}
# Seldom enough that the cluster is whole most of the time, as one is that lives for an hour.
WORKER_EVERY_S, WORKER_STOP_S = (3.0, 20.0), (0.05, 3.0)
NODE_EVERY_S, NODE_STOP_S = (30.0, 120.0), (0.1, 12.0)
END_S = 180.0
SHOWN = 20
HELD = ("memory_mb", "own_mb", "in_use_mb", "objects", "descriptors", "threads", "shared_memory")
# The head must not grow faster than this, in MB per hour.
TARGET_MB_PER_H = 1.0


@dataclass(frozen=True, kw_only=True)
class Args:
    """Hurt clusters for long, and see what grows."""

    minutes: float = 60.0
    """how long"""
    clusters: list[str] = field(default_factory=lambda: ["local:2", "tcp:nodes=2,workers=1"])
    """where the environments run, all at the same time"""
    num_envs: int = 8
    """number of environments of each"""
    piece_s: float = 20.0
    """length of a piece"""
    rest: float = 0.0
    """seconds of rest for each second of work, to leave the machine to others"""
    warm_up: float = 0.25
    """share of the time whose samples do not count"""
    seed: int = 1
    """of everything"""
    out: pathlib.Path = RESULTS
    """folder for the JSON file, and for histories with violations"""
    one: str | None = None
    """used by the program itself: the cluster of one head, and the folder for its histories"""


_libc = ctypes.CDLL(None)


class _Malloc(ctypes.Structure):
    """What the C library tells of its memory (mallinfo2), in bytes but for two counts."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keep",
        )
    )


def own_mb() -> float:
    """The pages of this process that come from no file."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 / 1e6 for line in file if line.startswith("RssAnon:"))


def in_use_mb() -> float:
    """How much of the memory that was asked of the C library is in use, in all threads; NaN if it does not tell."""
    if not hasattr(_libc, "mallinfo2"):
        return math.nan
    _libc.mallinfo2.restype = _Malloc
    told = _libc.mallinfo2()
    return float(told.uordblks + told.hblkhd) / 1e6


def held() -> dict[str, float]:
    """What this process has: its own memory, descriptors, threads, and pieces of shared memory."""
    gc.collect()
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)
    with open("/proc/self/maps") as file:
        shared = {line.split(maxsplit=5)[4] for line in file if "/memfd:clusterenv" in line}
    return {
        "memory_mb": psutil.Process().memory_info().rss / 1e6,
        "own_mb": own_mb(),
        "in_use_mb": in_use_mb(),
        "objects": sys.getallocatedblocks(),
        "descriptors": len(os.listdir("/proc/self/fd")) - 1,  # without the one that looks
        "threads": len(os.listdir("/proc/self/task")),  # also those that Python does not know: libzmq's
        "shared_memory": len(shared),
    }


@contextlib.contextmanager
def hurting(cluster: str, seed: int) -> Iterator[list[Nemesis]]:
    """Somebody kills and stops the workers, and the nodes, within this block."""
    found = [Nemesis(workers_of, seed, every_s=WORKER_EVERY_S, stop_s=WORKER_STOP_S)]
    if not cluster.startswith("local"):
        found.append(Nemesis(nodes_of, seed + 1, every_s=NODE_EVERY_S, stop_s=NODE_STOP_S))
    with contextlib.ExitStack() as stack:
        for nemesis in found:
            stack.enter_context(nemesis)
        yield found


def head(args: Args, cluster: str, folder: pathlib.Path) -> None:
    """One head: a line of JSON on standard output after every piece, and one at the end."""
    slots = [{"env_kwargs": each} for each in echo_slots(args.num_envs)]
    policy = EchoPolicy() if cluster.startswith("local") else echo_module()
    chaos: dict[str, Any] = {"env_id": "Echo-v0", "chances": CHANCES, "sleep_s": 0.005, "seed": args.seed}
    with clusterenv.make_vec(
        "clusterenv.testing:Chaos-v0",
        args.num_envs,
        cluster=cluster,
        timeouts=TIMEOUTS,
        slot_kwargs=slots,
        **chaos,
    ) as envs:
        used = Run(envs, policy, args.seed)
        envs.reset(seed=args.seed)
        envs.attach(policy, sync="on-change", seed=args.seed)
        began, piece = time.monotonic(), 0  # now, so that there is a piece however long the start took
        with hurting(cluster, args.seed) as nemeses:
            while time.monotonic() < began + args.minutes * 60:
                faulthandler.dump_traceback_later(args.piece_s + END_S, exit=True)
                used.history, used.given_up = History(args.num_envs), []
                used.use(list(MODES), args.piece_s, args.rest)
                path, given_up = folder / f"{piece}.npy", used.given_up
                used.history.save(path)
                used.history = History(args.num_envs)
                deeds = [each.deed for nemesis in nemeses for each in nemesis.done]
                at_s = time.monotonic() - began
                _tell({"at_s": at_s, **held(), "history": str(path), "deeds": len(deeds), "given_up": given_up})
                piece += 1
        done = [f"{each.deed} {who}" for who, n in zip(("worker", "node"), nemeses, strict=False) for each in n.done]
        stats = envs.stats()
    left = processes.left_behind(LEFT_S)
    cpu_s = sum(time_s for time_s in os.times()[:4])
    seconds = time.monotonic() - began
    _tell({"deeds": {deed: done.count(deed) for deed in sorted(set(done))}, "left": left, "stats": stats,
           "seconds": seconds, "cores": cpu_s / seconds, "versions": policy.number})  # fmt: skip


def _tell(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what, default=str) + "\n")
    sys.stdout.flush()


def watch(args: Args, cluster: str, found: dict[str, Any]) -> None:
    """Run a head to its end, and check what it hands over; `found` grows meanwhile."""
    words = [sys.executable, "-m", "benchmarks.soak", "--minutes", str(args.minutes), "--num-envs", str(args.num_envs)]
    words += ["--piece-s", str(args.piece_s), "--rest", str(args.rest), "--seed", str(args.seed)]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        words += ["--one", json.dumps([cluster, folder])]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:  # the child ends itself if a piece takes too long
                told = json.loads(line)
                if "history" in told:
                    _take(args, cluster, found, told)
                else:
                    found["end"] = told
        errors.seek(0)
        text = errors.read()
    if child.returncode or "end" not in found:
        found["violations"].append({"kind": "crash or hang", "text": f"exit code {child.returncode}: {text[-6000:]}"})
    elif found["end"]["left"]:
        found["violations"].append({"kind": "left behind", "text": str(found["end"]["left"])})


def _take(args: Args, cluster: str, found: dict[str, Any], told: dict[str, Any]) -> None:
    path = pathlib.Path(told.pop("history"))
    history = History.load(path)
    violations = [violation._asdict() for violation in check_history(history)]
    found["violations"] += violations[: SHOWN - len(found["violations"])]
    if violations:
        args.out.mkdir(parents=True, exist_ok=True)
        history.save(args.out / f"soak-{cluster.partition(':')[0]}-{path.name}")
    path.unlink()
    for kind, count in history.counts().items():
        found["rows"][kind] = found["rows"].get(kind, 0) + count
    found["given_up"] += told.pop("given_up")
    found["samples"].append(told)


def slope(hours: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """The slope per hour of a straight line through the values, and how far it may be off (95 %).

    Example:
        >>> slope([0.0, 0.5, 1.0], [5.0, 6.0, 7.0])
        (2.0, 0.0)
    """
    x, y = np.asarray(hours) - np.mean(hours), np.asarray(values) - np.mean(values)
    steepness = float(x @ y / (x @ x))
    rest = y - steepness * x
    off = 1.96 * float(np.sqrt(rest @ rest / max(1, len(x) - 2) / (x @ x)))
    return round(steepness, 6), round(off, 6)


def summary(args: Args, found: dict[str, Any]) -> dict[str, Any]:
    """What grew after the warm-up."""
    samples = [each for each in found["samples"] if each["at_s"] >= args.warm_up * args.minutes * 60]
    if len(samples) < 3:
        return {}
    hours = [each["at_s"] / 3600 for each in samples]
    told: dict[str, Any] = {"samples": len(samples), "hours": hours[-1] - hours[0]}
    for name in HELD:
        values = [each[name] for each in samples]
        steepness, off = slope(hours, values)
        told[name] = {"first": values[0], "last": values[-1], "lowest": min(values), "highest": max(values)}
        told[name] |= {"per_hour": steepness, "off": off}
    return told


def show(args: Args, heads: dict[str, dict[str, Any]]) -> Table:
    """One line per head."""
    titles = ("cluster", "transitions", "deeds", "marked losses", "given up", "violations")
    table = Table(
        *titles, "memory MB/h (95 %)", "own MB/h", "in use MB/h", "objects/h", "descriptors", "threads", "shared memory"
    )
    for cluster, found in heads.items():
        told, rows = summary(args, found), found["rows"]
        deeds = ", ".join(f"{count} x {deed}" for deed, count in found.get("end", {}).get("deeds", {}).items())
        cells = [f"{rows.get('step', 0):,}", deeds, str(rows.get("lost", 0) + rows.get("fresh", 0))]
        cells += [str(len(found["given_up"])), str(len(found["violations"]))]
        if told:
            memory = told["memory_mb"]
            cells.append(
                f"{memory['per_hour']:+.2f} ± {memory['off']:.2f}, {memory['first']:.1f} to {memory['last']:.1f} MB"
            )
            cells += [f"{told[name]['per_hour']:+.2f} ± {told[name]['off']:.2f}" for name in HELD[1:4]]
            cells += [f"{told[name]['lowest']:.0f} to {told[name]['highest']:.0f}" for name in HELD[4:]]
        table.add_row(cluster, *cells)
    return table


def save(args: Args, heads: dict[str, dict[str, Any]]) -> None:
    """Everything, with the machine."""
    about: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    about |= {"python": platform.python_version(), "target_mb_per_hour": TARGET_MB_PER_H}
    settings = {name: value for name, value in asdict(args).items() if name not in ("out", "one")}
    args.out.mkdir(parents=True, exist_ok=True)
    found = {cluster: {**each, "summary": summary(args, each)} for cluster, each in heads.items()}
    text = json.dumps({"about": about, "settings": settings, "heads": found}, indent=1)
    (args.out / "soak.json").write_text(text + "\n")


def main(args: Args) -> int:
    """Hurt, watch, show and save; 1 if anything was found."""
    if args.one is not None:
        cluster, folder = json.loads(args.one)
        processes.adopt_orphans()  # of this process, which does nothing else
        head(args, cluster, pathlib.Path(folder))
        return 0
    heads: dict[str, dict[str, Any]] = {
        cluster: {"rows": {}, "given_up": [], "violations": [], "samples": []} for cluster in args.clusters
    }
    with concurrent.futures.ThreadPoolExecutor(len(heads)) as pool:
        for each in [pool.submit(watch, args, cluster, found) for cluster, found in heads.items()]:
            each.result()
    Console(width=180).print(show(args, heads))
    save(args, heads)
    return 1 if any(found["violations"] for found in heads.values()) else 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args)))
