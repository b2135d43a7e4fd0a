"""Workers started by a real fork server, with what they build chosen by the test."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import cloudpickle
import psutil

from clusterenv.node.supervisor import Supervisor
from clusterenv.transport.channel import Channel
from clusterenv.worker.loop import Setup

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator

LIMIT_S = 30.0


@contextlib.contextmanager
def supervisor(threads: int | None = 1) -> Iterator[Supervisor]:
    """A fork server that is gone afterwards."""
    made = Supervisor(threads)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def started(sup: Supervisor, core: int | None = None) -> Iterator[tuple[int, Channel]]:
    """A worker: its token and our end of its channel."""
    channel, theirs = Channel.pair()
    with contextlib.closing(channel):
        with theirs:
            token = sup.start(theirs, core)
        yield token, channel


def build_with(channel: Channel, build: Callable[[], Any]) -> None:
    """Tell a worker what to build."""
    channel.send(Setup(0, list(sys.path), False, cloudpickle.dumps(build)), LIMIT_S)


def pid_of(sup: Supervisor, token: int) -> int:
    """The process of a worker, once it runs."""
    end = time.monotonic() + LIMIT_S
    while (pid := sup.pid(token)) is None:
        assert time.monotonic() < end
        sup.exited(token, 0.05)
    return pid


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def with_grandchild(note: pathlib.Path, then: Callable[[], Any] | None = None) -> Callable[[], Any]:
    """A build that starts a process of its own, writes its number to `note` and then does something."""
    path = os.fspath(note)

    def build() -> Any:
        child = subprocess.Popen(["sleep", "1000"])
        with open(path + ".part", "w") as file:
            file.write(str(child.pid))
        os.rename(path + ".part", path)
        if then is not None:
            then()
        while True:
            time.sleep(1000)

    return build
