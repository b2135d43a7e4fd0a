"""How much of a machine's time and memory a process may take, as the machine and its control groups say."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT, _OWN = pathlib.Path("/sys/fs/cgroup"), pathlib.Path("/proc/self/cgroup")


def cpu_limit(root: pathlib.Path = _ROOT, own: pathlib.Path = _OWN) -> float | None:
    """The time that this process may take, in cores; None if nothing limits it, or nobody says.

    `docker run --cpus 2` and Kubernetes' `limits.cpu` set it. Affinity does not show it: the process may run on every
    core of the machine, and is stopped on all of them once its share is used up.

    Args:
        root: where the control groups are mounted.
        own: which of them this process is in.
    """
    limits = [limit for folder in _folders("cpu", root, own) if (limit := _cores_of(folder)) is not None]
    return min(limits, default=None)


def memory_left(root: pathlib.Path = _ROOT, own: pathlib.Path = _OWN) -> int | None:
    """The bytes that this process, and all that share a limit with it, may still take; None if nothing limits it.

    `docker run --memory 4g`, Kubernetes' `limits.memory` and Slurm's `--mem` set it. The machine may have more: who
    takes it is killed. The first version of control groups tells of no limit as of more bytes than any machine has.

    Args:
        root: where the control groups are mounted.
        own: which of them this process is in.
    """
    found = [left for folder in _folders("memory", root, own) if (left := _bytes_left_of(folder)) is not None]
    return min(found, default=None)


def free_memory() -> int | None:
    """The bytes of memory that this machine, or container, can still give, or None if it does not tell."""
    told = [
        int(line.split()[1]) * 1024
        for line in _read(pathlib.Path("/proc/meminfo")).splitlines()
        if line.startswith("MemAvailable:")
    ]
    left = memory_left()
    return min(told if left is None else [*told, left], default=None)


def _folders(controller: str, root: pathlib.Path, own: pathlib.Path) -> Iterator[pathlib.Path]:
    """The groups of this process and all that they are in: each of them may have a limit."""
    for line in _read(own).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        folder = root / controllers  # the second version has one tree for all, without a name
        yield folder
        for part in pathlib.PurePosixPath(path).parts[1:]:
            folder /= part
            yield folder


def _cores_of(folder: pathlib.Path) -> float | None:
    words = _read(folder / "cpu.max").split()  # the second version: "200000 100000", or "max 100000"
    if not words:
        words = [_read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]  # the first: -1 for no limit
    try:
        quota, period = map(int, words)
    except ValueError:
        return None
    return quota / period if quota > 0 and period > 0 else None


def _bytes_left_of(folder: pathlib.Path) -> int | None:
    first = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    second = "memory.max", "memory.current", "inactive_file"
    for limit, usage, cache in (second, first):
        try:
            most, used = int(_read(folder / limit)), int(_read(folder / usage))
        except ValueError:  # not of this version, or "max"
            continue
        # What was read from files and not looked at for a while is given back when others need the room.
        told = dict(line.split() for line in _read(folder / "memory.stat").splitlines() if len(line.split()) == 2)
        return max(0, most - used + int(told.get(cache, 0)))
    return None


def _read(file: pathlib.Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
