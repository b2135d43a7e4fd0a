"""Head and node on two hosts, with a link between them that is slow, or is cut for a while."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from clusterenv.testing import Network
from tests.services import needs_network
from tests.zoo import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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

    def __init__(self, head: subprocess.Popen[str], words: pathlib.Path, join: Callable[[], Any]) -> None:
        self.head, self.join = head, join
        self._words = words
        self.node: subprocess.Popen[str] = join()

    def batch(self) -> tuple[int, int, int]:
        """The next batch that the head tells of."""
        assert self.head.stdout is not None
        line = self.head.stdout.readline()
        assert line, "the head has ended"
        steps, version, restarts = (int(word) for word in line.split())
        return steps, version, restarts

    def batches(self, count: int) -> list[tuple[int, int, int]]:
        """So many."""
        return [self.batch() for _ in range(count)]

    def words(self) -> str:
        """What the head has complained about."""
        return self._words.read_text()


@contextlib.contextmanager
def playing(head: NetHost, node: NetHost, folder: pathlib.Path, width: int, *more: str) -> Iterator[Pair]:
    """A head and a node that play, on two hosts; further nodes can be started on the second one."""
    token = folder / "token"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    here = [sys.executable, "-m", "tests.faults.link_head", f"{head.address}:{PORT}", str(token), str(width), *more]
    there = [sys.executable, "-m", "clusterenv", "join", f"cluster://{head.address}:{PORT}", "--token-file", str(token)]
    with contextlib.ExitStack() as running:
        words = running.enter_context(open(folder / "words", "w"))
        one = running.enter_context(
            head.popen(here, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=words, text=True)
        )
        running.callback(one.kill)
        wait_until(lambda: token.exists() and token.stat().st_size > 0, LIMIT_S)

        def join() -> subprocess.Popen[str]:
            other: subprocess.Popen[str] = node.popen([*there, "--workers", "1"], env=env, cwd=ROOT, text=True)
            running.enter_context(other)
            running.callback(other.terminate)
            return other

        yield Pair(one, folder / "words", join)


def pause(host: NetHost, seconds: float) -> None:
    """Let time pass."""
    host.popen([sys.executable, "-c", f"import time; time.sleep({seconds})"]).wait(LIMIT_S)


@pytest.mark.fault("F25")
def test_weights_that_take_longer_than_a_heartbeat(net: Network, tmp_path: pathlib.Path) -> None:
    """One megabyte at one megabit per second. In one piece it would break the connection, each time anew."""
    head, node = net.hosts
    with playing(head, node, tmp_path, 512) as pair:
        pair.batch()
        node.rate(1)
        seen = [pair.batch()]
        while len({version for _, version, _ in seen}) < 3:  # one that was under way, and one from its beginning
            seen.append(pair.batch())
    assert {restarts for _, _, restarts in seen} == {0}


def test_a_link_that_is_cut_for_a_moment_costs_nothing(net: Network, tmp_path: pathlib.Path) -> None:
    """Longer than a heartbeat, so the connection is renewed; shorter than the silence after which a node is lost."""
    head, node = net.hosts
    with playing(head, node, tmp_path, 8) as pair:
        before = pair.batches(10)
        node.link(up=False)
        pause(head, 4)
        node.link(up=True)
        after = pair.batches(50)
    assert {restarts for _, _, restarts in before + after} == {0}
    assert after[-1][1] > before[-1][1], "new weights arrive, too"


@pytest.mark.fault("F22")
def test_a_link_that_flaps_costs_nothing(net: Network, tmp_path: pathlib.Path) -> None:
    """Two seconds down, two seconds up: never as long as the silence after which a node is lost."""
    head, node = net.hosts
    with playing(head, node, tmp_path, 8) as pair:
        before = pair.batches(5)
        for _ in range(3):
            node.link(up=False)
            pause(head, 2)
            node.link(up=True)
            pause(head, 2)
        after = pair.batches(50)
    assert {restarts for _, _, restarts in before + after} == {0}
    assert after[-1][1] > before[-1][1], "new weights arrive, too"


@pytest.mark.fault("F23")
def test_packets_that_get_lost_make_it_slower_and_nothing_else(net: Network, tmp_path: pathlib.Path) -> None:
    needs_network("iptables")
    head, node = net.hosts
    with playing(head, node, tmp_path, 8) as pair:
        seen = pair.batches(5)
        for share in (0.01, 0.05, 0.2):
            with net.loss(node, share), net.loss(head, share):
                seen += pair.batches(10)
    assert {restarts for _, _, restarts in seen} == {0}
    assert [version for _, version, _ in seen] == sorted(version for _, version, _ in seen)
    assert seen[-1][1] > seen[0][1]


@pytest.mark.fault("F20", "F21")
@pytest.mark.parametrize("way", ["both ways", "the node is not heard", "the head is not heard"])
def test_a_partition_ends_the_node_and_another_takes_its_place(net: Network, tmp_path: pathlib.Path, way: str) -> None:
    """Neither side is left in a half-alive state: the head gives the node up, and the node ends itself."""
    needs_network("iptables")
    head, node = net.hosts
    sender, receiver = (head, node) if way == "the head is not heard" else (node, head)
    with playing(head, node, tmp_path, 8, "shrink", "5") as pair:
        assert {restarts for _, _, restarts in pair.batches(5)} == {0}
        with net.partition(sender, receiver, one_way=way != "both ways"):
            wait_until(lambda: "is lost" in pair.words(), LIMIT_S, pair.words)
            pair.node.wait(LIMIT_S)
        pair.join()
        seen = [pair.batch()]
        while seen[-1][2] == 0:
            seen.append(pair.batch())
        seen += pair.batches(10)
    assert seen[-1][2] == 1
    assert seen[-1][1] > seen[0][1], "the newcomer gets weights, too"
