"""Shared fixtures. Every test is checked for leaks: processes, descriptors, threads, shared memory."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pathlib
import re
import signal
import threading
from typing import TYPE_CHECKING, Any

import hypothesis
import psutil
import pytest

from tests.zoo import shared_files, wait_until

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


# Tests that share what is slow to start, by what their names have in common: each group goes to one process of the
# suite. Marks would say it more nicely, but the schedulers of pytest-xdist see names only; its own groups, which are a
# part of names too, get lost with pytest 9.2.
_GROUPS = (
    re.compile(r"(tests/launchers/test_(?:ray_real|slurm_returns)\.py)"),
    re.compile(r"(tests/conformance/).*[\[-](inproc|local|tcp|ssh|slurm|ray)[\]-]"),
)


def group_of(nodeid: str) -> str:
    """The group of a test; its own name if it stands for itself."""
    found = next(filter(None, (group.match(nodeid) for group in _GROUPS)), None)
    return nodeid if found is None else " ".join(found.groups())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several processes: groups together, the largest first."""
    scheduling: Any = importlib.import_module("xdist.scheduler").LoadScopeScheduling

    class Groups(scheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Groups(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.fixture(autouse=True, scope="module")
def garbage_of_a_module_goes() -> Iterator[None]:
    """What the fixtures of a module held may be garbage now, although it was not when it was frozen."""
    yield
    gc.unfreeze()


# What ends by itself may take its time on a busy machine.
_END_S = 30.0


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """A test that leaves a process, a descriptor, a thread or a shared-memory file behind fails."""
    gc.collect()
    gc.freeze()  # what is there already, torch for instance, need not be looked at after every test
    before = _belongings()
    yield
    gc.collect()
    wait_until(lambda: not _left(before), limit_s=_END_S, otherwise=lambda: f"left behind: {_left(before)}")


def _belongings() -> dict[str, set[str]]:
    return {
        "children": {f"{child.pid}" for child in psutil.Process().children(recursive=True) if _lives(child)},
        "descriptors": {f"{fd}: {_target(fd)}" for fd in os.listdir("/proc/self/fd") if _target(fd)},
        "threads": {thread.name for thread in threading.enumerate()} | _threads_of_sockets(),
        "shared memory": shared_files(),
    }


def _threads_of_sockets() -> set[str]:
    """The threads of libzmq's contexts, which Python does not know. Those of other libraries stay, and may."""
    found = set()
    for number in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended since it was found
            name = pathlib.Path(f"/proc/self/task/{number}/comm").read_text().strip()
            if name.startswith("ZMQbg"):
                found.add(f"{number}: {name}")
    return found


def _left(before: dict[str, set[str]]) -> dict[str, set[str]]:
    now = _belongings()
    return {kind: now[kind] - before[kind] for kind in now if now[kind] - before[kind]}


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # it has ended since it was found
        return False


def _target(fd: str) -> str:
    try:
        target = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""
    # Only what our code opens: sockets, memory files and pidfds. Libraries open files of their own at will.
    return target if target.startswith(("socket:", "/memfd:clusterenv", "anon_inode:[pidfd")) else ""
