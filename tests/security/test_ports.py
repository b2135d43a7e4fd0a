"""What listens: with other processes of this host, loopback and nothing else; with none, nothing at all."""

from __future__ import annotations

import contextlib
import ipaddress
import os

import psutil
import pytest

from clusterenv import make_vec
from tests.node.worlds import COUNTING


def family() -> list[int]:
    return [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]


def listening() -> list[tuple[str, int]]:
    """(address, port) of every socket of ours, or of a process of ours, on which others could reach us."""
    ours = set(family())
    found = []
    for each in psutil.net_connections("inet"):
        receives = each.status == psutil.CONN_LISTEN or (each.type.name == "SOCK_DGRAM" and not each.raddr)
        if each.pid in ours and receives:
            found.append((str(each.laddr.ip), int(each.laddr.port)))
    return found


def is_loopback(text: str) -> bool:
    address = ipaddress.ip_address(text)
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


@pytest.mark.threat("T09", "T22")
def test_nodes_on_this_host_are_reached_by_loopback_alone() -> None:
    before = listening()
    with contextlib.closing(make_vec(COUNTING, 2, cluster="tcp:nodes=2,workers=1")) as envs:
        envs.reset(seed=0)
        new = [each for each in listening() if each not in before]
        assert len(new) == 1, "the head listens, and nobody else"
        assert all(is_loopback(address) for address, _ in new), new
    assert [each for each in listening() if each not in before] == []


@pytest.mark.threat("T15")
@pytest.mark.parametrize("cluster", ["local:2", "inproc"])
def test_on_one_host_nothing_listens(cluster: str) -> None:
    before = listening()
    with contextlib.closing(make_vec(COUNTING, 2, cluster=cluster)) as envs:
        envs.reset(seed=0)
        envs.step([0, 1])
        assert [each for each in listening() if each not in before] == []
