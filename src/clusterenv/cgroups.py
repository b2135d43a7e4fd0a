"""How much of a machine's time a container may take, as its control groups say."""

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
    limits = [limit for folder in _folders(root, own) if (limit := _limit_of(folder)) is not None]
    return min(limits, default=None)


def _folders(root: pathlib.Path, own: pathlib.Path) -> Iterator[pathlib.Path]:
    """The groups of this process and all that they are in: each of them may have a limit."""
    for line in _read(own).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        folder = root / controllers  # the second version has one tree for all, without a name
        yield folder
        for part in pathlib.PurePosixPath(path).parts[1:]:
            folder /= part
            yield folder


def _limit_of(folder: pathlib.Path) -> float | None:
    words = _read(folder / "cpu.max").split()  # the second version: "200000 100000", or "max 100000"
    if not words:
        words = [_read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]  # the first: -1 for no limit
    try:
        quota, period = map(int, words)
    except ValueError:
        return None
    return quota / period if quota > 0 and period > 0 else None


def _read(file: pathlib.Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
