"""How much of the machine other programs took while a slice ran.

A benchmark on a shared machine cannot forbid neighbours, but it can see them, repeat what they disturbed,
and tell the reader how quiet it was.
"""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.slices import SliceResult

WAIT_S = 20.0
"""The longest wait for a quiet moment before a slice is repeated regardless."""
LOOK_S = 0.5

_STAT = Path("/proc/stat")
# Columns of the first line of /proc/stat: idle and waiting for disks are not work, the guests' time is
# already within the user's.
_IDLE, _IOWAIT, _STEAL = 3, 4, 7


@dataclass(frozen=True, slots=True)
class Reading:
    """Processor seconds used so far, by the whole machine and by our finished children."""

    at_s: float
    machine_s: float
    ours_s: float


def read() -> Reading:
    """Read the counters; where there is no /proc/stat, nobody else is ever seen."""
    children, own = (resource.getrusage(who) for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF))
    ours_s = children.ru_utime + children.ru_stime + own.ru_utime + own.ru_stime
    if not _STAT.exists():
        return Reading(time.perf_counter(), ours_s, ours_s)
    ticks = [int(value) for value in _STAT.read_text().split("\n", 1)[0].split()[1 : _STEAL + 2]]
    busy = sum(ticks) - ticks[_IDLE] - ticks[_IOWAIT]
    return Reading(time.perf_counter(), busy / os.sysconf("SC_CLK_TCK"), ours_s)


def others_share(before: Reading, after: Reading) -> float:
    """Return the share of all cores, 0 to 1, that others used between two readings.

    What the host of a virtual machine stole counts as used by others.
    """
    others_s = (after.machine_s - before.machine_s) - (after.ours_s - before.ours_s)
    capacity_s = (after.at_s - before.at_s) * (os.cpu_count() or 1)
    return min(1.0, max(0.0, others_s / capacity_s)) if capacity_s > 0 else 0.0


class Patience:
    """Waits for a quiet machine and repeats what was disturbed, within one budget for the whole run.

    Without the budget, a neighbour who never stops would make a run of half an hour take half a day.
    """

    def __init__(self, quiet_below: float, budget_s: float) -> None:
        self.quiet_below = quiet_below
        self._left_s = budget_s

    def repeat(self, measure: Callable[[], SliceResult], times: int) -> SliceResult:
        """Measure, and again up to `times` times while others disturb; return the least disturbed result.

        The choice looks at the others, never at the speed.
        """
        best = measure()
        for _ in range(times):
            if best.others <= self.quiet_below or self._left_s <= 0:
                break
            start = time.perf_counter()
            self._wait()
            best = min(best, measure(), key=lambda found: found.others)
            self._left_s -= time.perf_counter() - start
        return best

    def _wait(self) -> None:
        until = time.perf_counter() + WAIT_S
        while time.perf_counter() < until:
            before = read()
            time.sleep(LOOK_S)
            if others_share(before, read()) <= self.quiet_below:
                return
