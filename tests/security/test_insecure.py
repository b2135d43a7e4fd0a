"""Without encryption: only who asks for it each time gets it, and cannot overlook it; the two kinds never mix."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import logging
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest

import clusterenv
from clusterenv import ConfigError, LaunchError, Slurm, Ssh, Tcp, make_vec
from clusterenv.cli.exits import NOT_STARTED, OK, USAGE, banner
from clusterenv.cli.main import main
from clusterenv.clusters import INSECURE, parse_remote
from clusterenv.config import parse_cluster
from clusterenv.learners.common.runfolder import RunFolder
from clusterenv.node import joining
from clusterenv.node.joining import Joining
from clusterenv.private import write_private
from clusterenv.testing import nodes_of
from clusterenv.transport.security import make_keys
from clusterenv.transport.sockets import Address, Hub, Link, parse_address
from tests.cli.kit import SMALL, changed
from tests.env.kit import assert_same, trajectory
from tests.node.worlds import COUNTING
from tests.security.test_ports import is_loopback, listening

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator, Sequence

HOST, LIMIT_S = "127.0.0.1", 20.0
LOOSE = Tcp(nodes=2, workers=1, insecure=True)


def node_processes(before: Sequence[int] = ()) -> list[str]:
    """The command lines of the nodes that we have started, beside those of batches that other tests share."""
    lines = [" ".join(psutil.Process(pid).cmdline()) for pid in nodes_of() if pid not in before]
    assert all(" -m clusterenv node " in line for line in lines)
    return lines


# Who asks for it gets it, and is told.


def test_the_same_answers_without_encryption(caplog: pytest.LogCaptureFixture) -> None:
    before, others = listening(), nodes_of()
    with contextlib.closing(make_vec("CartPole-v1", 3, cluster="inproc")) as envs:
        expected = trajectory(envs, 30, 7)
    with contextlib.closing(make_vec("CartPole-v1", 3, cluster=LOOSE)) as envs:
        new = [each for each in listening() if each not in before]
        assert len(new) == 1
        assert is_loopback(new[0][0]), "without keys above all"
        assert_same(trajectory(envs, 30, 7), expected)
        assert len(node_processes(others)) == 2
        assert all(" --insecure" in line and "tcp://127.0.0.1:" in line for line in node_processes(others))
    assert [(each.levelno, each.getMessage()) for each in caplog.records if each.getMessage() == INSECURE] == [
        (logging.WARNING, INSECURE)
    ]


@pytest.mark.threat("T04")
def test_the_usual_is_encrypted(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever variables say."""
    for name in ("CLUSTERENV_INSECURE", "INSECURE", "CLUSTERENV_TCP_INSECURE"):
        monkeypatch.setenv(name, "1")
    with contextlib.closing(make_vec(COUNTING, 2, cluster="tcp:nodes=2,workers=1")) as envs:
        envs.reset(seed=0)
        assert node_processes()
        assert all("--insecure" not in line and "tcp+curve://" in line for line in node_processes())
    assert INSECURE not in caplog.text


@pytest.mark.threat("T23")
@pytest.mark.parametrize("kind", [Tcp(), Ssh(hosts=("a",)), Slurm(), clusterenv.Ray(), clusterenv.Join()])
def test_no_text_can_ask_for_it(kind: Any) -> None:
    loose = dataclasses.replace(kind, insecure=True) if not isinstance(kind, Ssh) else Ssh(hosts=("a",), insecure=True)
    assert loose.text == kind.text
    assert parse_remote(loose.text).insecure is False
    mark = "?" if isinstance(kind, Ssh) else ":" if ":" not in kind.text else ","
    for value in ("true", "1", "True"):
        with pytest.raises(ConfigError, match=r"insecure= cannot be part of a text\. Type --insecure"):
            parse_cluster(f"{kind.text}{mark}insecure={value}")


@pytest.mark.parametrize("value", [1, "yes", None])
def test_yes_or_no(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"insecure=.* must be True or False"):
        Tcp(insecure=value)


@pytest.mark.threat("T23")
@pytest.mark.parametrize(
    ("bind", "addresses"),
    [
        ("", ["8.8.8.8"]),
        ("8.8.8.8:5555", []),
        ("[2001:4860:4860::8888]", []),
        ("0", ["8.8.8.8"]),  # the whole host, in other words
        ("[::ffff:8.8.8.8]", []),
        ("134744072", []),  # 8.8.8.8 as one number
    ],
)
def test_not_where_the_whole_internet_could_come(
    bind: str, addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "own_addresses", lambda: addresses)
    with pytest.raises(ConfigError, match=r"insecure=True with the public address .* is refused. Set bind="):
        Joining(clusterenv.Join(insecure=True, bind=bind)).gather(2)


def interfaces(monkeypatch: pytest.MonkeyPatch, *own: str) -> None:
    """The interfaces have these; the way out and the name of the host know of 10.0.0.5 only."""
    monkeypatch.setattr(joining, "own_addresses", lambda: ["10.0.0.5"])
    versions = {socket.AF_INET: 4, socket.AF_INET6: 6}
    monkeypatch.setattr(
        joining,
        "interface_addresses",
        lambda family: [each for each in own if ipaddress.ip_address(each).version == versions[family]],
    )


@pytest.mark.threat("T23")
@pytest.mark.parametrize(
    ("bind", "public"),
    [("", "8.8.4.4"), ("0", "8.8.4.4"), ("[::ffff:0.0.0.0]", "8.8.4.4"), ("[::]", "8.8.4.4"), ("[::]", "2600::1")],
)
def test_every_address_of_the_host_counts(monkeypatch: pytest.MonkeyPatch, bind: str, public: str) -> None:
    """Not only the one by which it would reach others."""
    interfaces(monkeypatch, "127.0.0.1", "::1", "10.0.0.5", "fe80::1", public)
    with pytest.raises(ConfigError, match=rf"insecure=True with the public address {public} is refused\. Set bind="):
        Joining(clusterenv.Join(insecure=True, bind=bind)).gather(2)


def test_who_listens_over_ipv4_only_is_not_reached_by_a_public_ipv6_address(monkeypatch: pytest.MonkeyPatch) -> None:
    interfaces(monkeypatch, "10.0.0.5", "2600::1")
    assert joining._private("0.0.0.0") == "0.0.0.0"


@pytest.mark.parametrize("error", [OSError(13, "Permission denied"), ValueError("non-hexadecimal number")])
def test_not_where_the_addresses_cannot_be_found_out(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def unknown(family: int) -> list[str]:
        raise error

    monkeypatch.setattr(joining, "interface_addresses", unknown)
    monkeypatch.setattr(joining, "own_addresses", lambda: ["10.0.0.5"])
    with pytest.raises(ConfigError, match=r"bind='0\.0\.0\.0' is refused: the addresses of this host cannot be found"):
        Joining(clusterenv.Join(insecure=True)).gather(2)


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    entries = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: entries)


def test_not_under_a_name_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is behind it counts."""
    resolve_to(monkeypatch, "10.0.0.1", "8.8.4.4")
    with pytest.raises(ConfigError, match=r"insecure=True with the public address 8\.8\.4\.4 is refused\. Set bind="):
        Joining(clusterenv.Join(insecure=True, bind="some-name:5555")).gather(2)


def test_a_name_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address that was checked is the one that is listened on, and that the nodes are told."""
    resolve_to(monkeypatch, HOST)
    head = Joining(clusterenv.Tcp(nodes=1, insecure=True, bind="some-name", python="/nowhere/python"))
    try:
        with pytest.raises(LaunchError, match="/nowhere/python"):
            head.gather(1)
        assert head.heads.startswith(f"tcp://{HOST}:")
    finally:
        head.close(0.0)


def test_not_under_a_name_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """libzmq takes the name of a network card, and listens on whatever address it has."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    with pytest.raises(ConfigError, match=r"bind='eth0' is refused: its address is not known \(.*Name or service"):
        Joining(clusterenv.Join(insecure=True, bind="eth0")).gather(2)


def test_what_is_to_be_typed_by_hand_says_so(tmp_path: pathlib.Path) -> None:
    script = Joining(clusterenv.Join(insecure=True, bind="10.0.0.1:5555", token_file=str(tmp_path / "t"))).script()
    assert script.startswith("clusterenv join cluster://10.0.0.1:5555 ")
    assert " --insecure" in script


# The two never mix.


@pytest.fixture(name="hubs")
def _hubs() -> Iterator[dict[bool, Hub]]:
    keys = make_keys()
    hubs = {secure: Hub(keys, HOST, secure=secure) for secure in (True, False)}
    yield hubs
    for hub in hubs.values():
        hub.close()


@pytest.mark.threat("T24")
@pytest.mark.parametrize("secure", [True, False])
def test_mixed_pairs_exchange_nothing(hubs: dict[bool, Hub], secure: bool) -> None:
    link = Link(make_keys().node, Address(HOST, hubs[not secure].port, secure))
    try:
        assert link.wait(LIMIT_S)
        assert "up" not in link.events()
        assert not link.send([b"hello"])
        assert hubs[not secure].receive(0.2) is None
    finally:
        link.close()


@pytest.mark.parametrize(
    ("secure", "says"),
    [
        (True, "if the head was started with --insecure, start the node with it too"),
        (False, "wants encryption and keys, and this node was started with --insecure"),
    ],
)
def test_a_node_of_the_other_kind_says_what_to_do(
    hubs: dict[bool, Hub], secure: bool, says: str, tmp_path: pathlib.Path
) -> None:
    key_file = tmp_path / "keys"
    write_private(key_file, make_keys().node.text())
    address = Address(HOST, hubs[not secure].port, secure)
    words = ["--head", address.url, "--key-file", str(key_file), *([] if secure else ["--insecure"])]
    done = subprocess.run(
        [sys.executable, "-m", "clusterenv", "node", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == NOT_STARTED
    assert says in done.stderr
    assert (banner() in done.stderr) is not secure


def test_a_head_shows_why_its_nodes_cannot_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if somebody had started the nodes of an insecure head without the option."""
    honest = Joining._job

    def job(self: Joining, heads: str) -> Any:
        told = honest(self, heads)
        words = [word.replace("tcp://", "tcp+curve://") for word in told.arguments if word != "--insecure"]
        return dataclasses.replace(told, arguments=tuple(words))

    monkeypatch.setattr(Joining, "_job", job)
    with pytest.raises(LaunchError, match="if the head was started with --insecure, start the node with it too"):
        make_vec(COUNTING, 2, cluster=LOOSE)


def test_strangers_of_another_run_are_refused_without_encryption_too(hubs: dict[bool, Hub]) -> None:
    """Their connection is let in, their hello is not: see `test_joining`. Limits are those of any socket."""
    options = [hub._socket for hub in hubs.values()]
    for name in ("maxmsgsize", "handshake_ivl", "heartbeat_ivl", "heartbeat_timeout", "sndhwm", "rcvhwm", "linger"):
        assert getattr(options[0], name) == getattr(options[1], name), name


# The command line.


def test_addresses_tell_what_they_are() -> None:
    assert parse_address("tcp://h:1") == Address("h", 1, False)
    assert parse_address("tcp+curve://h:1") == Address("h", 1, True)
    assert Address("h", 1, False).url == "tcp://h:1"
    assert Address("h", 1).endpoint == Address("h", 1, False).endpoint == "tcp://h:1"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--head", "tcp://h:1"], "tcp://h:1 has no encryption. Type --insecure if you trust everybody"),
        (["--head", "tcp+curve://h:1", "--insecure"], "this head wants encryption and keys. Leave --insecure out."),
    ],
)
def test_a_node_is_told_when_address_and_option_differ(
    words: list[str], says: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key_file = tmp_path / "keys"
    write_private(key_file, make_keys().node.text())
    assert main(["node", *words, "--key-file", str(key_file)]) == USAGE
    assert says in capsys.readouterr().err


@pytest.mark.threat("T23")
def test_a_run_has_to_be_told_each_time(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made: list[Any] = []
    real = clusterenv.env.make.make_vec

    def make(env_id: str, num_envs: int, *, cluster: Any, **kwargs: Any) -> Any:
        made.append(cluster)
        return real(env_id, num_envs, cluster="inproc", **kwargs)

    monkeypatch.setattr("clusterenv.learners.common.environments.make_vec", make)
    words = ["train", "ppo", *changed(SMALL, "--cluster", "tcp:nodes=1,workers=1")]
    assert main([*words, "--insecure"]) == OK
    assert banner() in capsys.readouterr().err
    assert "insecure" not in (RunFolder.open("runs/latest").path / "run.toml").read_text()
    again = ["train", "ppo", "--resume", "runs/latest", "--total-steps", str(10**4)]
    assert main(again) == OK
    assert "INSECURE" not in capsys.readouterr().err
    assert [each.insecure for each in made] == [True, False]


@pytest.mark.threat("T23")
def test_a_file_cannot_ask_for_it(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.toml"
    for line in ('cluster = "tcp:nodes=1,insecure=true"', "insecure = true"):
        file.write_text(f'format = 1\nalgorithm = "ppo"\n[config]\n{line}\n')
        assert main(["train", "ppo", "--config", str(file)]) == USAGE
        assert "insecure" in capsys.readouterr().err


def test_where_nothing_leaves_the_host_it_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", *changed(SMALL, "--cluster", "local:1"), "--insecure"]) == USAGE
    assert "--insecure with --cluster local:1: nothing goes over a network there." in capsys.readouterr().err


@pytest.mark.threat("T23")
def test_the_banner_is_hard_to_overlook() -> None:
    lines = banner().splitlines()
    assert len(lines) >= 4
    assert all(len(line) == 80 for line in lines)
    assert "INSECURE" in lines[1]
    np.testing.assert_equal(set(lines[0]), {"!"})
