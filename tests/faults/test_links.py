"""Head and node on two hosts, with a link between them that is slow, or is cut for a while."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from clusterenv.testing import Network
from tests.services import needs_network
from tests.zoo import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterenv.testing import NetHost

LIMIT_S = 60.0
PORT = 5555
ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def net() -> Iterator[Network]:
    needs_network()
    with Network(2) as made:
        yield made


class Pair:
    """A head on one host, a node on the other; the head tells (steps, newest version, restarts) of every batch."""

    def __init__(self, head: subprocess.Popen[str], node: subprocess.Popen[str]) -> None:
        self.head, self.node = head, node

    def batch(self) -> tuple[int, int, int]:
        """The next batch that the head tells of."""
        assert self.head.stdout is not None
        line = self.head.stdout.readline()
        assert line, "the head has ended"
        steps, version, restarts = (int(word) for word in line.split())
        return steps, version, restarts


@contextlib.contextmanager
def playing(head: NetHost, node: NetHost, folder: pathlib.Path, width: int) -> Iterator[Pair]:
    """A head and a node that play, on two hosts."""
    token = folder / "token"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    here = [sys.executable, "-m", "tests.faults.link_head", f"{head.address}:{PORT}", str(token), str(width)]
    there = [sys.executable, "-m", "clusterenv", "join", f"cluster://{head.address}:{PORT}", "--token-file", str(token)]
    with contextlib.ExitStack() as running:
        one = running.enter_context(head.popen(here, env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        running.callback(one.kill)
        wait_until(lambda: token.exists() and token.stat().st_size > 0, LIMIT_S)
        other = running.enter_context(node.popen([*there, "--workers", "1"], env=env, cwd=ROOT, text=True))
        running.callback(other.terminate)
        yield Pair(one, other)


def test_weights_that_take_longer_than_a_heartbeat(net: Network, tmp_path: pathlib.Path) -> None:
    """One megabyte at one megabit per second. In one piece it would break the connection, each time anew."""
    head, node = net.hosts
    with playing(head, node, tmp_path, width=512) as pair:
        pair.batch()
        node.rate(1)
        seen = [pair.batch()]
        while len({version for _, version, _ in seen}) < 3:  # one that was under way, and one from its beginning
            seen.append(pair.batch())
    assert {restarts for _, _, restarts in seen} == {0}


def test_a_link_that_is_cut_for_a_moment_costs_nothing(net: Network, tmp_path: pathlib.Path) -> None:
    """Longer than a heartbeat, so the connection is renewed; shorter than the silence after which a node is lost."""
    head, node = net.hosts
    with playing(head, node, tmp_path, width=8) as pair:
        before = [pair.batch() for _ in range(10)]
        node.link(up=False)
        down = head.popen([sys.executable, "-c", "import time; time.sleep(4)"])
        down.wait(LIMIT_S)
        node.link(up=True)
        after = [pair.batch() for _ in range(50)]
    assert {restarts for _, _, restarts in before + after} == {0}
    assert after[-1][1] > before[-1][1], "new weights arrive, too"
