"""Processes of a cluster: the right ones are found, and the nemesis keeps to its timetable and cleans up."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest

import clusterenv
from clusterenv.errors import ConfigError
from clusterenv.testing import Nemesis, processes
from tests.zoo import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_S = 30.0


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def status(pid: int) -> str:
    return str(psutil.Process(pid).status())


class Newcomers:
    """What is found beside the workers and nodes of batches that other tests share, which are there already."""

    def __init__(self) -> None:
        self._workers, self._nodes = set(processes.workers_of()), set(processes.nodes_of())

    def workers(self) -> list[int]:
        return [pid for pid in processes.workers_of() if pid not in self._workers]

    def nodes(self) -> list[int]:
        return [pid for pid in processes.nodes_of() if pid not in self._nodes]


@pytest.mark.parametrize("cluster", ["local:2", "tcp:nodes=2,workers=1"])
def test_workers_and_nodes_are_found(cluster: str) -> None:
    found = Newcomers()
    with clusterenv.make_vec("CartPole-v1", 2, cluster=cluster) as envs:
        envs.reset(seed=1)
        assert found.workers() == sorted(pid for pid in envs.worker_pids() if pid is not None)
        nodes = found.nodes()
        assert len(nodes) == (0 if cluster.startswith("local") else 2)
        assert all(psutil.Process(node).ppid() == os.getpid() for node in nodes)
        # Our parent may have other children, with workers of their own.
        assert set(processes.workers_of()) <= set(processes.workers_of(os.getppid()))
        for node in nodes:
            assert len(processes.workers_of(node)) == 1
    assert found.workers() == found.nodes() == []


def test_a_killed_worker_is_not_found_any_more() -> None:
    found = Newcomers()
    with clusterenv.make_vec("CartPole-v1", 2, cluster="local:2") as envs:
        envs.reset(seed=1)
        victim, other = found.workers()
        assert processes.kill(victim)
        wait_until(lambda: found.workers() == [other], LIMIT_S)
        assert envs.step(np.zeros(2, int))[3].any()


# The fork server of a node stands still, so that it does not see its node killed.
ORPHANS = """
import sys
import psutil
import clusterenv
from clusterenv.testing import processes

if sys.argv[1] == "adopted":
    processes.adopt_orphans()
with clusterenv.make_vec("CartPole-v1", 1, cluster="tcp:nodes=1,workers=1") as envs:
    envs.reset(seed=1)
    (worker,) = processes.workers_of()
    server = psutil.Process(worker).ppid()
    processes.stop(server)
    processes.kill(processes.nodes_of()[0])
print(processes.left_behind(0.5) == [worker])
processes.cont(server)
print(processes.left_behind(30.0))
"""


@pytest.mark.parametrize(("how", "found"), [("adopted", "True"), ("", "False")])
def test_what_a_killed_node_leaves_behind(how: str, found: str) -> None:
    """In a process of its own, which keeps what it adopts."""
    words = [sys.executable, "-c", ORPHANS, how]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=4 * LIMIT_S, check=True)
    assert ended.stdout.split() == [found, "[]"]


def test_a_process_that_stands_still(sleeper: subprocess.Popen[bytes]) -> None:
    with processes.stopped(sleeper.pid):
        wait_until(lambda: status(sleeper.pid) == psutil.STATUS_STOPPED, LIMIT_S)
    wait_until(lambda: status(sleeper.pid) == psutil.STATUS_SLEEPING, LIMIT_S)
    assert processes.kill(sleeper.pid)
    assert sleeper.wait(LIMIT_S) == -signal.SIGKILL
    assert not processes.kill(sleeper.pid)
    assert not processes.stop(sleeper.pid)
    assert not processes.cont(sleeper.pid)


class Watched:
    """Stands in for the deeds: tells what was done, and lets the test wait for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wanted: int) -> None:
        self.deeds: list[tuple[str, int]] = []
        self.enough = threading.Event()
        for name in ("kill", "stop", "cont"):
            monkeypatch.setattr(processes, name, self._noting(name, wanted))

    def _noting(self, name: str, wanted: int) -> Any:
        def note(pid: int) -> bool:
            self.deeds.append((name, pid))
            if len(self.deeds) >= wanted:
                self.enough.set()
            return True

        return note


def timetable(monkeypatch: pytest.MonkeyPatch, seed: int, **kwargs: Any) -> list[tuple[str, int]]:
    watched = Watched(monkeypatch, wanted=30)
    with Nemesis(lambda: [11, 13, 12], seed, every_s=(0.001, 0.002), stop_s=(0.001, 0.002), **kwargs):
        assert watched.enough.wait(LIMIT_S)
    return watched.deeds[:30]


def test_the_same_seed_makes_the_same_timetable(monkeypatch: pytest.MonkeyPatch) -> None:
    deeds = timetable(monkeypatch, seed=1)
    assert timetable(monkeypatch, seed=1) == deeds
    assert timetable(monkeypatch, seed=2) != deeds
    assert {pid for _, pid in deeds} == {11, 12, 13}
    assert {name for name, _ in deeds} == {"kill", "stop", "cont"}
    for before, after in itertools.pairwise(deeds):
        assert before[0] != "stop" or after == ("cont", before[1])


def test_only_what_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {name for name, _ in timetable(monkeypatch, seed=1, deeds=["kill"])} == {"kill"}


def test_whoever_is_stopped_at_its_end_goes_on(sleeper: subprocess.Popen[bytes]) -> None:
    with Nemesis(lambda: [sleeper.pid], 1, every_s=(0.001, 0.002), stop_s=(500.0, 600.0), deeds=["stop"]):
        wait_until(lambda: status(sleeper.pid) == psutil.STATUS_STOPPED, LIMIT_S)
    wait_until(lambda: status(sleeper.pid) == psutil.STATUS_SLEEPING, LIMIT_S)


def test_it_tells_what_it_did(sleeper: subprocess.Popen[bytes]) -> None:
    with Nemesis(lambda: [sleeper.pid], 1, every_s=(0.001, 0.002), deeds=["kill"]) as nemesis:
        assert sleeper.wait(LIMIT_S) == -signal.SIGKILL
        wait_until(lambda: bool(nemesis.done), LIMIT_S)
    assert nemesis.done[0].deed == "kill"
    assert nemesis.done[0].pid == sleeper.pid


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"every_s": (2.0, 1.0)}, r"every_s=\(2.0, 1.0\) must be two numbers of seconds, the smaller one first"),
        ({"stop_s": (0.0, 1.0)}, r"stop_s=\(0.0, 1.0\) must be two numbers"),
        ({"deeds": ["hug"]}, "unknown deed 'hug'"),
        ({"deeds": []}, "leaves nothing to do"),
    ],
)
def test_timetables_that_are_none(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Nemesis(list, 1, **wrong)
