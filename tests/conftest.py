"""Shared fixtures. Every test is checked for leaks: processes, descriptors, threads, shared memory."""

from __future__ import annotations

import gc
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import hypothesis
import psutil
import pytest

from tests.zoo import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

# The same examples in every run: a failure here is a failure everywhere.
hypothesis.settings.register_profile(
    "ci", derandomize=True, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)
hypothesis.settings.load_profile("ci")


# A suite that is started in the background of a script, or by nohup, finds some signals ignored, and so would every
# process that it starts.
_USUAL: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGQUIT: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}
for _signal, _usual in _USUAL.items():
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _usual)


def pytest_addoption(parser: pytest.Parser) -> None:
    """What can be asked for on the command line."""
    parser.addoption(
        "--engines",
        default="",
        metavar="KIND,...",
        help="run tests/conformance over these clusters: inproc, local, tcp, ssh, slurm, ray",
    )


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """A test that leaves a process, a descriptor, a thread or a shared-memory file behind fails."""
    gc.collect()
    before = _belongings()
    yield
    gc.collect()
    wait_until(lambda: not _left(before), limit_s=5.0, otherwise=lambda: f"left behind: {_left(before)}")


def _belongings() -> dict[str, set[str]]:
    me = psutil.Process()
    return {
        "children": {f"{child.pid}" for child in me.children(recursive=True) if child.status() != "zombie"},
        "descriptors": {f"{fd}: {_target(fd)}" for fd in os.listdir("/proc/self/fd") if _target(fd)},
        "threads": {thread.name for thread in threading.enumerate()},
        # Without the semaphores of other programs on this machine: ours has no names at all.
        "shared memory": {name for name in os.listdir("/dev/shm") if not name.startswith("sem.mp-")},
    }


def _left(before: dict[str, set[str]]) -> dict[str, set[str]]:
    now = _belongings()
    return {kind: now[kind] - before[kind] for kind in now if now[kind] - before[kind]}


def _target(fd: str) -> str:
    try:
        target = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""
    # Only what our code opens: sockets, memory files and pidfds. Libraries open files of their own at will.
    return target if target.startswith(("socket:", "/memfd:clusterenv", "anon_inode:[pidfd")) else ""
