"""Addresses: of the head as text, and those by which this host can be reached."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import socket
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.errors import ConfigError
from clusterenv.transport import addresses
from clusterenv.transport.addresses import interface_addresses, own_addresses
from clusterenv.transport.sockets import Address, parse_address, reachable

if TYPE_CHECKING:
    import pathlib


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp+curve://10.0.0.1:5555", Address("10.0.0.1", 5555)),
        ("tcp+curve://head.example.org:1", Address("head.example.org", 1)),
        ("cluster://head:65535", Address("head", 65535)),
        ("cluster://head:7/", Address("head", 7)),
        ("tcp+curve://[::1]:22", Address("::1", 22)),
    ],
)
def test_good_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(address.url) == address


def test_as_zeromq_writes_it() -> None:
    assert Address("::1", 22).endpoint == "tcp://[::1]:22"
    assert Address("a", 22).endpoint == "tcp://a:22"


BAD = {
    "empty": "",
    "a word": "head",
    "no scheme": "head:5555",
    "another scheme": "http://head:5555",
    "ipc": "ipc:///tmp/x",
    "inproc": "inproc://x:1",
    "a web page": "http://head:80",
    "no host": "tcp+curve://:5555",
    "no port": "tcp+curve://head",
    "an empty port": "tcp+curve://head:",
    "port 0": "tcp+curve://head:0",
    "port 65536": "tcp+curve://head:65536",
    "a negative port": "tcp+curve://head:-1",
    "a port in words": "tcp+curve://head:http",
    "any port": "tcp+curve://head:*",
    "a path": "tcp+curve://head:1/path",
    "a query": "tcp+curve://head:1?x=1",
    "a fragment": "tcp+curve://head:1#x",
    "a user": "tcp+curve://me@head:1",
    "a password": "tcp+curve://me:secret@head:1",
    "open brackets": "tcp+curve://[::1:5555",
    "closed brackets": "tcp+curve://::1]:5555",
    "brackets around nothing": "tcp+curve://[]:5555",
    "brackets around a name": "tcp+curve://[head]:5555",
    "IPv6 without brackets": "tcp+curve://fe80::1:5555",
    "a blank": "tcp+curve://a b:1",
    "a newline": "tcp+curve://a\nb:1",
    "a NUL": "tcp+curve://a\0b:1",
    "a semicolon": "tcp+curve://eth0;head:1",
    "two hosts": "tcp+curve://a,b:1",
    "an interface": "tcp+curve://*:5555",
    "a long host": "tcp+curve://" + "x" * 300 + ":1",
    "a megabyte": "tcp+curve://" + "x" * 1_000_000 + ":1",
    "a letter that looks like another": "tcp+curve://\u0430:1",
    "wide digits": "tcp+curve://a:\uff11",
    "half a character": "tcp+curve://\udc80:1",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is no address of a head: expected tcp\+curve://HOST:PORT") as caught:
        parse_address(text)
    assert len(str(caught.value)) < 600
    assert str(caught.value).isprintable()


@given(st.sampled_from(["", "tcp+curve://", "cluster://", "tcp+curve://["]), st.text(max_size=30))
def test_any_text_is_an_address_or_refused(scheme: str, text: str) -> None:
    with contextlib.suppress(ConfigError):
        address = parse_address(scheme + text)
        assert parse_address(address.url) == address


def test_own_addresses_are_addresses() -> None:
    found = own_addresses()
    assert found
    assert len(set(found)) == len(found)
    assert all(ipaddress.ip_address(each).version == 4 for each in found)
    loopback = [each for each in found if ipaddress.ip_address(each).is_loopback]
    assert not loopback or found == ["127.0.0.1"]


class NoWayOut(socket.socket):
    """A host without a network."""

    def connect(self, address: Any) -> None:
        raise OSError("Network is unreachable")


def test_a_host_without_a_network_has_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*args: Any) -> Any:
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr("clusterenv.transport.addresses.socket.socket", NoWayOut)
    monkeypatch.setattr("clusterenv.transport.addresses.socket.getaddrinfo", nothing)
    assert own_addresses() == ["127.0.0.1"]


def test_loopback_is_left_out_where_there_is_more(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [(2, 1, 6, "", (each, 0)) for each in ("127.0.1.1", "10.1.2.3", "10.1.2.3", "192.168.0.9")]
    monkeypatch.setattr("clusterenv.transport.addresses.socket.socket", NoWayOut)
    monkeypatch.setattr("clusterenv.transport.addresses.socket.getaddrinfo", lambda *args: entries)
    assert own_addresses() == ["10.1.2.3", "192.168.0.9"]


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_addresses_of_all_interfaces(family: socket.AddressFamily) -> None:
    others = [each for card in psutil.net_if_addrs().values() for each in card if each.family == family]
    assert sorted(interface_addresses(family)) == sorted(each.address.partition("%")[0] for each in others)


def test_more_addresses_than_there_was_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel leaves out what does not fit, without a word."""
    rooms = []
    honest = fcntl.ioctl

    def crowded(asking: Any, request: int, wanted: bytes) -> bytes:
        rooms.append(int.from_bytes(wanted[:4], "little"))
        full = honest(asking, request, wanted)
        return wanted if len(rooms) < 3 else full

    expected = interface_addresses(socket.AF_INET)
    monkeypatch.setattr(fcntl, "ioctl", crowded)
    assert interface_addresses(socket.AF_INET) == expected
    assert rooms == [rooms[0], rooms[0] * 2, rooms[0] * 4]


def test_ipv6_addresses_as_the_kernel_writes_them(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "if_inet6"
    file.write_text(
        "00000000000000000000000000000001 01 80 10 80       lo\n26000000000000000000000000000001 02 40 00 80     eth0\n"
    )
    monkeypatch.setattr(addresses, "_IPV6", file)
    assert interface_addresses(socket.AF_INET6) == ["::1", "2600::1"]


@pytest.mark.parametrize("known", [True, False])
def test_where_the_kernel_does_not_tell_there_is_no_ipv6_or_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, known: bool
) -> None:
    def made(*args: Any) -> Any:
        if known:
            return contextlib.ExitStack()  # has a close, and no more is needed
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")

    monkeypatch.setattr(addresses, "_IPV6", tmp_path / "nothing")
    monkeypatch.setattr("clusterenv.transport.addresses.socket.socket", made)
    if known:
        with pytest.raises(FileNotFoundError):
            interface_addresses(socket.AF_INET6)
    else:
        assert interface_addresses(socket.AF_INET6) == []


def test_somebody_who_listens_is_reachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address("127.0.0.1", listener.getsockname()[1], secure=False)
        assert reachable(address) == address


@pytest.mark.fault("F47")
def test_of_a_name_with_several_addresses_the_one_that_answers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As localhost is in a container: IPv6 first, and the head listens on IPv4."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        entries = [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)),
        ]
        monkeypatch.setattr("socket.getaddrinfo", lambda *args: entries)
        assert reachable(Address("some-name", port)) == Address("127.0.0.1", port)


def test_nobody_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(OSError, match="Connection refused"):
        reachable(Address("127.0.0.1", port))


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 70 + ".invalid", "a..b", "", "\udc80"])
def test_a_name_that_means_nothing_is_not(host: str) -> None:
    with pytest.raises(OSError, match=r"\w+"):
        reachable(Address(host, 1), 2.0)
