"""A head is killed, and another takes over: nodes that were asked to wait are there for it, and for nobody else."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from clusterenv.cli.exits import NOT_STARTED, OK
from tests.faults.kit import LIMIT_S, ended
from tests.zoo import quiet_port, wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    Head = subprocess.Popen[str]


class Stage:
    """Heads and a node on one port and one folder; whatever is left is ended with the test."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.port = folder, quiet_port()
        self._all = contextlib.ExitStack()

    def head(self) -> Head:
        words = [sys.executable, "-m", "tests.faults.surviving_head", f"127.0.0.1:{self.port}", str(self.folder)]
        with (self.folder / "head.log").open("a") as log:
            head = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self._end_with_test(head)
        return head

    def node(self, *options: str) -> subprocess.Popen[bytes]:
        wait_until((self.folder / "token").exists, LIMIT_S)
        words = [sys.executable, "-m", "clusterenv", "join", f"cluster://127.0.0.1:{self.port}", "--workers", "1"]
        words += ["--token-file", str(self.folder / "token"), *options]
        with (self.folder / "node.log").open("ab") as log:
            node = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._end_with_test(node)
        return node

    def _end_with_test(self, process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
        self._all.callback(process.communicate, timeout=LIMIT_S)
        self._all.callback(process.kill)

    def log(self, who: str) -> str:
        return (self.folder / f"{who}.log").read_text()

    def close(self) -> None:
        self._all.close()


@pytest.fixture
def stage(tmp_path: pathlib.Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def heard(head: Head) -> tuple[int, int, int, int]:
    """Epoch, version, steps and losses of the next batch."""
    assert head.stdout is not None
    line = head.stdout.readline()
    assert line, "the head has ended"
    epoch, version, steps, losses = map(int, line.split())
    return epoch, version, steps, losses


def until_version(head: Head, version: int) -> list[tuple[int, int, int, int]]:
    """Batches until one has a version as high as this."""
    batches = [heard(head)]
    while batches[-1][1] < version:
        batches.append(heard(head))
    return batches


def kill(head: Head) -> None:
    head.send_signal(signal.SIGKILL)
    head.communicate(timeout=LIMIT_S)


@pytest.mark.fault("F17")
@pytest.mark.parametrize("when", ["before the node has noticed", "after its workers are gone"])
def test_another_head_takes_over(stage: Stage, when: str) -> None:
    first = stage.head()
    node = stage.node("--keep-trying", "120")
    assert {epoch for epoch, *_ in until_version(first, 5)} == {0}
    family = psutil.Process(node.pid).children(recursive=True)
    assert family
    if when == "before the node has noticed":
        node.send_signal(signal.SIGSTOP)
        kill(first)
        second = stage.head()
        wait_until(lambda: stage.log("head").count("waiting for 1 nodes") == 2, LIMIT_S)
        node.send_signal(signal.SIGCONT)
    else:
        kill(first)
        wait_until(lambda: all(ended(each) for each in family), LIMIT_S)
        assert node.poll() is None
        second = stage.head()

    batches = until_version(second, 3)
    assert {epoch for epoch, *_ in batches} == {1}
    assert batches[0][1] == 0, "its versions begin anew"
    assert batches[0][3] == 0, "nothing of the first head is known to the second"
    assert node.poll() is None
    assert all(ended(each) for each in family), "environments are built anew"
    second.communicate(timeout=LIMIT_S)
    assert second.returncode == 0
    assert node.wait(LIMIT_S) == OK, stage.log("node")
    why = "has to begin anew" if when == "before the node has noticed" else "the head fell silent"
    assert re.search(rf"{why}\.? Looking for a head of this run", stage.log("node"))


def test_without_being_asked_a_node_ends_with_its_head(stage: Stage) -> None:
    first = stage.head()
    node = stage.node()
    heard(first)
    family = psutil.Process(node.pid).children(recursive=True)
    kill(first)
    assert node.wait(LIMIT_S) == OK
    assert all(ended(each) for each in family)


def test_a_node_does_not_try_for_ever(stage: Stage) -> None:
    first = stage.head()
    node = stage.node("--keep-trying", "1")
    heard(first)
    kill(first)
    assert node.wait(LIMIT_S) == NOT_STARTED
    assert "not reachable" in stage.log("node")


def test_a_node_may_come_before_its_head(stage: Stage) -> None:
    first = stage.head()
    wait_until((stage.folder / "token").exists, LIMIT_S)
    kill(first)
    node = stage.node("--keep-trying", "120")
    wait_until(lambda: "Looking for a head" in stage.log("node"), LIMIT_S)
    second = stage.head()
    assert heard(second)[0] == 1
    assert node.poll() is None


def test_keys_are_seen_by_nobody(stage: Stage) -> None:
    head = stage.head()
    node = stage.node("--keep-trying", "120")
    heard(head)
    keys = stage.folder / "keys"
    assert keys.stat().st_mode & 0o777 == 0o600
    found = json.loads(keys.read_text())
    shown = [*psutil.Process(head.pid).cmdline(), *psutil.Process(node.pid).cmdline()]
    shown += [stage.log("head"), stage.log("node")]
    for secret in (found["secret"], found["head_secret"]):
        assert not any(secret in text for text in shown)
    assert found["head_secret"] not in (stage.folder / "token").read_text()
    assert sorted(os.listdir(stage.folder)) == ["head.log", "keys", "node.log", "token"]
