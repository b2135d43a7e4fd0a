"""What the tests of launchers share: ways to see that processes have ended."""

from __future__ import annotations

import psutil

from tests.zoo import wait_until

LIMIT_S = 60.0


def gone(pid: int) -> bool:
    """Whether a process has ended, buried or not."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def wait_gone(*pids: int, limit_s: float = LIMIT_S) -> None:
    """Wait until these processes have ended."""
    wait_until(lambda: all(map(gone, pids)), limit_s, lambda: f"still there: {[pid for pid in pids if not gone(pid)]}")
