"""A node that builds environments is all ears: it beats, hears that it is to go, and sees that its head is gone."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from clusterenv import make_vec
from clusterenv.errors import EnvError
from clusterenv.node.records import CODEC
from clusterenv.node.service import Service
from clusterenv.wire import messages as m
from tests.node.kit import LIMIT_S, gone
from tests.node.worlds import COUNTING, SLOW
from tests.zoo import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]

# A head whose environments take much longer to build than the test.
HEAD = """
import sys
from clusterenv import make_vec
from clusterenv.errors import LaunchError
from tests.node.by_hand import start_nodes_by_hand
from tests.node.worlds import SLOW

start_nodes_by_hand(sys.argv[1])
try:
    make_vec(SLOW, 1, cluster="join:nodes=1,workers=1,bind=127.0.0.1,silence_s=3", build_s=600.0)
except LaunchError as error:
    print(error, flush=True)
"""


@contextlib.contextmanager
def building(folder: pathlib.Path) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A head, and the processes of its node, whose worker is at work."""
    number = folder / "node.pid"
    head = subprocess.Popen([sys.executable, "-c", HEAD, str(folder)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert head.stdout
    wait_until(lambda: number.exists() and number.read_text().endswith("\n"), LIMIT_S, lambda: "no node was started")
    node = psutil.Process(int(number.read_text()))
    try:
        wait_until(lambda: len(node.children(recursive=True)) >= 2, LIMIT_S, lambda: "no worker was started")
        yield head, [node, *node.children(recursive=True)]
    finally:
        head.kill()
        head.wait()
        head.stdout.close()
        for each in [*node.children(recursive=True), node] if node.is_running() else []:
            each.kill()


def all_gone(processes: list[psutil.Process]) -> bool:
    return all(gone(each.pid) for each in processes)


@pytest.mark.fault("F16")
def test_it_ends_when_its_head_is_killed(tmp_path: pathlib.Path) -> None:
    with building(tmp_path) as (head, node):
        head.kill()
        wait_until(lambda: all_gone(node), LIMIT_S, lambda: f"still there: {node}")
    assert "the head fell silent" in (tmp_path / "node.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_it_leaves_at_once_when_it_is_told_to(tmp_path: pathlib.Path, number: signal.Signals) -> None:
    """Nothing is under way that anybody has asked for: there is nothing to finish."""
    with building(tmp_path) as (head, node):
        os.kill(node[0].pid, number)
        said, _ = head.communicate(timeout=LIMIT_S)
        wait_until(lambda: all_gone(node), LIMIT_S, lambda: f"still there: {node}")
    assert f"left: signal {number.name}" in said


def test_the_head_sees_that_it_is_silent(tmp_path: pathlib.Path) -> None:
    with building(tmp_path) as (head, node):
        os.kill(node[0].pid, signal.SIGSTOP)
        said, _ = head.communicate(timeout=LIMIT_S)
    assert "has been silent for" in said


def test_one_that_takes_longer_than_a_node_may_be_silent() -> None:
    with contextlib.closing(make_vec(SLOW, 1, cluster="tcp:nodes=1,workers=1,silence_s=2", build_s=5.0)) as envs:
        envs.reset(seed=0)
        assert envs.step([1])[0].tolist() == [[0, 1]]


def test_an_environment_that_cannot_be_built_is_told_with_its_reason() -> None:
    """Its worker ends with the answer: what it said counts, not that it ended."""
    with pytest.raises(EnvError, match="nonsense"):
        make_vec(COUNTING, 2, cluster="tcp:nodes=1,workers=2", slot_kwargs=[{}, {"nonsense": 1}])


# Requests that come too early.


class Building:
    """A node of one worker that is never done."""

    blocks = (range(1),)

    def started(self) -> None:
        """Not yet."""

    def close(self, limit_s: float) -> None:
        """There is nothing."""


EARLY: dict[str, m.FromHead] = {
    "bind": m.Bind(number=1, settled=0, spaces=b""),
    "post": m.Post(number=1, settled=0, worker=0, message=CODEC.pack(("reset", ([0], [None], None)))),
    "lend": m.Lend(number=1, settled=0, workers=[0], name="share", message=CODEC.pack(None), memory=1),
    "tell": m.Tell(number=1, settled=0, worker=0, order=(0, True, False)),
}


@pytest.mark.parametrize("request_", EARLY.values(), ids=EARLY)
def test_what_comes_before_all_is_built_is_refused(request_: m.FromHead) -> None:
    sent: list[list[Any]] = []
    service = Service(sent.append, ())
    service._node, service._lives, service._building = Building(), [0], 7  # type: ignore[assignment]
    service.handle(request_, [])
    (answer,) = (m.decode_from_node(frames) for frames in sent)
    assert isinstance(answer, m.Answer)
    assert "yet" in answer.error
    service.progress()
    assert len(sent) == 1
    assert service.idle  # told to go, it goes
