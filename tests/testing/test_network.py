"""Hosts in network namespaces: they see one another, nothing else sees them, and links do what they are told."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from clusterenv.errors import ConfigError
from clusterenv.testing import Network
from clusterenv.testing import network as subject
from tests.services import needs_network
from tests.zoo import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterenv.testing import NetHost

LIMIT_S = 60.0


@pytest.fixture
def net() -> Iterator[Network]:
    needs_network()
    with Network(2) as made:
        yield made


def reaches(sender: NetHost, receiver: NetHost) -> bool:
    """Whether a datagram arrives."""
    listen = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('', 9)); print('on'); "
    # It looks once the datagram is sent: to start the sender may take long.
    command = [sys.executable, "-uc", listen + "input(); s.settimeout(1.0); print(s.recv(9))"]
    streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with receiver.popen(command, **streams) as process:
        process.stdout.readline()  # type: ignore[union-attr]
        send = (
            f"import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('{receiver.address}', 9))"
        )
        sender.popen([sys.executable, "-c", send], stderr=subprocess.DEVNULL).wait(LIMIT_S)
        process.communicate(b"\n", timeout=LIMIT_S)
        return process.returncode == 0


def test_hosts_see_one_another_and_not_us(net: Network) -> None:
    one, other = net.hosts
    assert one.address != other.address
    assert reaches(one, other)
    assert reaches(other, one)
    assert "default" not in one.run("ip", "route")
    ours = [address.address for each in psutil.net_if_addrs().values() for address in each]
    assert one.address not in ours


def test_partitions(net: Network) -> None:
    needs_network("iptables")
    one, other = net.hosts
    with net.partition(one, other):
        assert not reaches(one, other)
        assert not reaches(other, one)
    with net.partition(one, other, one_way=True):
        assert not reaches(one, other)
        assert reaches(other, one)
    assert reaches(one, other)


def test_a_cable_that_is_pulled_out(net: Network) -> None:
    one, other = net.hosts
    other.link(up=False)
    assert not reaches(one, other)
    other.link(up=True)
    wait_until(lambda: reaches(one, other), LIMIT_S)


def test_loss(net: Network) -> None:
    needs_network("iptables")
    one, other = net.hosts
    with net.loss(other, 1.0):
        assert not reaches(one, other)
    assert reaches(one, other)
    with pytest.raises(ConfigError, match="share=0 must be above 0"), net.loss(other, 0):
        pass


def test_a_rate_holds_both_ways_and_is_lifted(net: Network) -> None:
    one, other = net.hosts
    other.rate(2.5)
    for where, device in ((other, "up0"), (net.switch, other.name)):
        assert "tbf" in where.run("tc", "qdisc", "show", "dev", device)
        assert "rate 2500Kbit" in where.run("tc", "qdisc", "show", "dev", device)
    assert "tbf" not in one.run("tc", "qdisc", "show", "dev", "up0")
    other.rate(None)
    assert "tbf" not in other.run("tc", "qdisc", "show", "dev", "up0")


def test_a_command_that_fails_says_why(net: Network) -> None:
    with pytest.raises(ConfigError, match="ip link set nothing up failed: Cannot find device"):
        net.hosts[0].run("ip", "link", "set", "nothing", "up")


def namespaces() -> set[int]:
    """The namespaces of all processes."""
    found = set()
    for pid in psutil.pids():
        try:
            found.add(os.stat(f"/proc/{pid}/ns/net").st_ino)
        except OSError:
            continue
    return found


def test_nothing_is_left_of_it() -> None:
    needs_network()
    with contextlib.ExitStack() as held:
        with Network(2) as net:
            pids = [host.pid for host in net.hosts] + [net.switch.pid]
            # Held open, so that no new namespace, of another test, gets their numbers.
            spaces = [os.open(f"/proc/{pid}/ns/net", os.O_RDONLY) for pid in pids]
            for space in spaces:
                held.callback(os.close, space)
            mine = {os.fstat(space).st_ino for space in spaces}
            assert len(mine) == 3
            assert mine <= namespaces()
        assert not mine & namespaces()


def test_nothing_is_left_of_it_when_its_maker_is_killed() -> None:
    needs_network()
    script = """
        import sys
        from clusterenv.testing import Network
        net = Network(1)
        print(net.hosts[0].pid, net.switch.pid, flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        holders = [int(pid) for pid in process.stdout.readline().split()]  # type: ignore[union-attr]
        assert all(psutil.pid_exists(pid) for pid in holders)
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in holders), LIMIT_S)


@pytest.mark.parametrize("hosts", [0, -1, 65, 2.0, "2", True, None])
def test_bad_numbers_of_hosts(hosts: object) -> None:
    with pytest.raises(ConfigError, match=r"hosts=.* must be a whole number from 1 to 64"):
        Network(hosts)  # type: ignore[arg-type]


def test_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert subject.why_not() == "network namespaces need root"
    with pytest.raises(ConfigError, match="network namespaces need root"):
        Network(1)


@pytest.mark.parametrize(("missing", "others"), [("tc", ()), ("iptables", ("iptables",))])
def test_without_a_program(monkeypatch: pytest.MonkeyPatch, missing: str, others: tuple[str, ...]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == missing else f"/bin/{name}")
    assert subject.why_not(*others) == f"network namespaces need the program {missing!r}, which is not installed"
