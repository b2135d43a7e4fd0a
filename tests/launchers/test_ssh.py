"""Nodes on hosts reached by SSH, with a real sshd (see tests/services.py)."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import shlex
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.clusters import Ssh
from clusterenv.errors import ConfigError, LaunchError
from clusterenv.launchers import ssh
from clusterenv.launchers.base import NodeJob
from clusterenv.launchers.ssh import SshLauncher
from clusterenv.testing.contracts import KEYS, StandIn
from tests.launchers.kit import LIMIT_S, gone, wait_gone
from tests.zoo import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.services import SshServer


def cluster(sshd: SshServer, **changes: Any) -> Ssh:
    """Both addresses of the server, unless told otherwise."""
    usual = {"hosts": sshd.hosts, "known_hosts": sshd.file("known_hosts"), "identity": sshd.file("id")}
    return Ssh(**{**usual, **changes})


@contextlib.contextmanager
def launched(where: Ssh, job: NodeJob, close_s: float = LIMIT_S) -> Iterator[SshLauncher]:
    launcher = SshLauncher(where)
    launcher.start(job)
    try:
        yield launcher
    finally:
        launcher.close(close_s)


def failure_of(where: Ssh, job: NodeJob) -> str:
    """What the launcher says once it has given up."""
    with launched(where, job) as launcher:
        wait_until(lambda: launcher.failure() is not None, LIMIT_S, launcher.status)
        failure = launcher.failure()
        assert failure is not None
        assert "canary" not in failure
        return failure


@pytest.mark.threat("T13")
def test_every_host_gets_the_keys_on_standard_input_and_nowhere_else(sshd: SshServer, node: StandIn) -> None:
    with launched(cluster(sshd), node.job()) as launcher:
        records = node.wait_for(2)
        assert [record["keys"] for record in records] == [KEYS + "\n"] * 2
        assert {record["index"] for record in records} == {0, 1}
        assert all(record["argv"] == node.job().command("-", record["index"])[1:] for record in records)
        wait_until(lambda: launcher.status() == "2 of 2 hosts run the node", LIMIT_S, launcher.status)
        assert launcher.failure() is None
        for process in psutil.process_iter(["cmdline"]):
            assert "canary" not in " ".join(process.info["cmdline"] or ())


def test_close_ends_the_nodes_by_closing_their_standard_input(sshd: SshServer, node: StandIn) -> None:
    launcher = SshLauncher(cluster(sshd))
    launcher.start(node.job())
    records = node.wait_for(2)
    launcher.close(LIMIT_S)
    assert all(gone(record["pid"]) for record in records)
    launcher.close(LIMIT_S)
    assert not launcher.restart(0)
    assert launcher.failure() is None
    assert "ready" in launcher.logs()[sshd.hosts[0]]


def test_a_node_that_does_not_end_is_given_up_with_a_word(
    sshd: SshServer, node: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    launcher = SshLauncher(cluster(sshd, hosts=sshd.hosts[:1]))
    launcher.start(node.job("stubborn"))
    (record,) = node.wait_for(1)
    with caplog.at_level(logging.WARNING):
        launcher.close(0.2)
    assert f"the node on {sshd.hosts[0]} did not end" in caplog.text
    with contextlib.suppress(ProcessLookupError):
        os.kill(record["pid"], signal.SIGKILL)
    wait_gone(record["pid"])


def test_a_lost_node_is_told_and_started_again(sshd: SshServer, node: StandIn) -> None:
    with launched(cluster(sshd), node.job()) as launcher:
        first = node.wait_for(2)
        wait_until(lambda: all("ready" in log for log in launcher.logs().values()), LIMIT_S)
        lost = int(launcher.logs()[sshd.hosts[1]].split("stand-in ")[1].split()[0])
        os.kill(lost, signal.SIGKILL)
        wait_until(lambda: launcher.failure() is not None, LIMIT_S)
        assert f"{sshd.hosts[1]}: the node was ended by signal KILL" in str(launcher.failure())
        assert launcher.restart(1)
        assert len(node.wait_for(3)) == 3
        wait_until(lambda: launcher.status() == "2 of 2 hosts run the node", LIMIT_S, launcher.status)
        assert launcher.failure() is None
        assert not launcher.restart(2)
    wait_gone(*(record["pid"] for record in first + node.records()))


@pytest.mark.fault("F52")
def test_a_connection_that_drops_is_told_and_ends_the_node(sshd: SshServer, node: StandIn) -> None:
    with launched(cluster(sshd, hosts=sshd.hosts[:1]), node.job()) as launcher:
        (record,) = node.wait_for(1)
        wait_until(lambda: launcher.status().startswith("1 of 1"), LIMIT_S)
        session = next(process for process in psutil.Process(record["pid"]).parents() if process.name() == "sshd")
        session.kill()
        wait_until(lambda: launcher.failure() is not None, LIMIT_S, launcher.status)
        assert f"{sshd.hosts[0]}: the connection was lost" in str(launcher.failure())
        wait_gone(record["pid"])


def test_a_running_node_that_is_started_again_ends_first(sshd: SshServer, node: StandIn) -> None:
    with launched(cluster(sshd, hosts=sshd.hosts[:1]), node.job()) as launcher:
        (first,) = node.wait_for(1)
        assert launcher.restart(0)
        node.wait_for(2)
        wait_gone(first["pid"])


def test_a_banner_and_a_talking_shell_do_no_harm(sshd: SshServer, node: StandIn) -> None:
    with launched(cluster(sshd), node.job()) as launcher:
        assert [record["keys"] for record in node.wait_for(2)] == [KEYS + "\n"] * 2
        wait_until(lambda: "ready" in launcher.logs()[sshd.hosts[0]], LIMIT_S)
        assert "welcome from a start file of the shell" in launcher.logs()[sshd.hosts[0]]


# What can be wrong with a host.


@pytest.mark.fault("F52")
def test_an_unknown_host_key_is_refused(sshd: SshServer, node: StandIn, tmp_path: pathlib.Path) -> None:
    (tmp_path / "empty").write_text("")
    failure = failure_of(cluster(sshd, known_hosts=str(tmp_path / "empty")), node.job())
    lines = failure.splitlines()
    assert len(lines) == 2, "one line per host"
    assert all("its host key is unknown or has changed" in line and "known_hosts=" in line for line in lines)
    assert node.records() == []


def test_a_changed_host_key_is_refused(sshd: SshServer, node: StandIn, tmp_path: pathlib.Path) -> None:
    other = " ".join(pathlib.Path(sshd.file("stranger.pub")).read_text().split()[:2])
    (tmp_path / "other").write_text(f"[127.0.0.1]:{sshd.port} {other}\n")
    where = cluster(sshd, hosts=sshd.hosts[:1], known_hosts=str(tmp_path / "other"))
    assert "its host key is unknown or has changed" in failure_of(where, node.job())


def test_a_configuration_that_turns_the_check_of_host_keys_off_is_refused(
    sshd: SshServer, node: StandIn, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "config").write_text("Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile none\n")
    where = cluster(sshd, hosts=sshd.hosts[:1], known_hosts="", config=str(tmp_path / "config"))
    assert "turns the check of host keys off" in failure_of(where, node.job())
    (tmp_path / "config").write_text("Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n")
    assert "its host key is unknown" in failure_of(where, node.job())
    assert node.records() == []


def test_names_of_the_configuration_are_understood(sshd: SshServer, node: StandIn, tmp_path: pathlib.Path) -> None:
    (tmp_path / "config").write_text(
        f"Host gpu-box\n  RequestTTY force\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User root\n"
        f"  IdentityFile {sshd.file('id')}\n  UserKnownHostsFile {sshd.file('known_hosts')}\n"
    )
    with launched(Ssh(hosts=("gpu-box",), config=str(tmp_path / "config")), node.job()) as launcher:
        assert [record["keys"] for record in node.wait_for(1)] == [KEYS + "\n"]
        wait_until(lambda: "ready" in launcher.logs()["gpu-box"], LIMIT_S)
        assert "canary" not in launcher.logs()["gpu-box"], (
            "no terminal echoes the keys, though the configuration wants one"
        )


@pytest.mark.fault("F52")
def test_a_refused_key_is_told_without_asking_for_a_password(sshd: SshServer, node: StandIn) -> None:
    failure = failure_of(cluster(sshd, hosts=sshd.hosts[:1], identity=sshd.file("stranger")), node.job())
    assert failure.startswith(f"{sshd.hosts[0]}: the key was refused (")
    assert "Make this work without a password: ssh -o BatchMode=yes" in failure


def test_a_private_key_that_cannot_be_read_is_told(sshd: SshServer, node: StandIn, tmp_path: pathlib.Path) -> None:
    (tmp_path / "key").write_text("no key at all\n")
    failure = failure_of(cluster(sshd, hosts=sshd.hosts[:1], identity=str(tmp_path / "key")), node.job())
    assert "the private key cannot be read" in failure
    failure = failure_of(cluster(sshd, hosts=sshd.hosts[:1], identity=str(tmp_path / "missing")), node.job())
    assert "No such file" in failure


@pytest.mark.fault("F52")
def test_a_python_that_is_not_there_is_told_with_the_words_of_the_host(sshd: SshServer) -> None:
    failure = failure_of(cluster(sshd, hosts=sshd.hosts[:1]), NodeJob((), KEYS, "/opt/no python"))
    assert "'/opt/no python' cannot be run there (exit code 127)" in failure
    assert "No such file or directory" in failure
    assert "Set python=" in failure


def test_a_node_that_fails_is_told_with_its_last_words(sshd: SshServer, node: StandIn) -> None:
    failure = failure_of(cluster(sshd, hosts=sshd.hosts[:1]), node.job("fail"))
    assert "the node ended with exit code 1" in failure
    assert failure.endswith("no module named clusterenv")


def test_a_node_that_leaves_with_code_zero_is_no_failure(sshd: SshServer, node: StandIn) -> None:
    with launched(cluster(sshd, hosts=sshd.hosts[:1]), node.job("leave")) as launcher:
        wait_until(lambda: "ended" in launcher.status(), LIMIT_S)
        assert launcher.failure() is None


def test_one_bad_host_does_not_hide_the_others(sshd: SshServer, node: StandIn) -> None:
    where = cluster(sshd, hosts=(sshd.hosts[0], "127.0.0.3:1"))
    with launched(where, node.job()) as launcher:
        node.wait_for(1)
        wait_until(lambda: launcher.failure() is not None, LIMIT_S)
        assert str(launcher.failure()).startswith("127.0.0.3:1: the connection was refused")
        assert launcher.status().startswith("1 of 2 hosts run the node (127.0.0.3:1: failed)")


# Without a server.


def test_a_name_that_nobody_knows_is_told(node: StandIn, tmp_path: pathlib.Path) -> None:
    (tmp_path / "known").write_text("")
    failure = failure_of(Ssh(hosts=("no-such-host.invalid",), known_hosts=str(tmp_path / "known")), node.job())
    assert "no-such-host.invalid: the name is unknown" in failure


def test_a_server_that_is_no_sshd_is_told(node: StandIn, tmp_path: pathlib.Path) -> None:
    (tmp_path / "known").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_answer_like_a_web_server, args=[server])
        thread.start()
        where = Ssh(hosts=(f"127.0.0.1:{server.getsockname()[1]}",), known_hosts=str(tmp_path / "known"))
        assert "no connection (" in failure_of(where, node.job())
        thread.join(LIMIT_S)


def _answer_like_a_web_server(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.fault("F52")
def test_a_server_that_says_nothing_is_given_up(
    node: StandIn, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "_CONNECT_S", 0.3)
    (tmp_path / "known").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = Ssh(hosts=(f"127.0.0.1:{server.getsockname()[1]}",), known_hosts=str(tmp_path / "known"))
        assert "no answer within" in failure_of(where, node.job())


def test_closing_while_connecting_does_not_wait(node: StandIn, tmp_path: pathlib.Path) -> None:
    (tmp_path / "known").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = Ssh(hosts=(f"127.0.0.1:{server.getsockname()[1]}",), known_hosts=str(tmp_path / "known"))
        with launched(where, node.job(), close_s=1.0) as launcher:
            assert launcher.failure() is None
            with pytest.raises(LaunchError, match="started before"):
                launcher.start(node.job())


def test_a_missing_library_is_answered_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    with pytest.raises(ConfigError, match=r'pip install "clusterenv\[ssh\]"'):
        SshLauncher(Ssh(hosts=("a",)))


def test_closing_what_was_never_started() -> None:
    SshLauncher(Ssh(hosts=("a",))).close(1.0)


def test_the_script_holds_no_keys() -> None:
    where = Ssh(hosts=("a", "me@[::1]:2222"), identity="/k y", config="/c", known_hosts="/h")
    job = NodeJob(("--head", "tcp+curve://10.0.0.1:5555"), KEYS, "python3")
    usual = "ssh -o BatchMode=yes -F /c -o UserKnownHostsFile=/h -o IdentitiesOnly=yes -i '/k y'"
    command = "exec python3 -m clusterenv node --head tcp+curve://10.0.0.1:5555"
    first, second = f"'{command} --index 0 --key-file -'", f"'{command} --index 1 --key-file -'"
    assert SshLauncher(where).script(job) == f"{usual} a {first}\n{usual} -p 2222 me@::1 {second}\n"


@pytest.mark.threat("T16")
@given(st.lists(st.text(min_size=1), max_size=4), st.text(min_size=1))
def test_whatever_the_arguments_the_shell_there_reads_the_same_words(arguments: list[str], python: str) -> None:
    job = NodeJob(tuple(arguments), KEYS, python)
    (_, _, _, host, command) = shlex.split(SshLauncher(Ssh(hosts=("a",))).script(job))
    assert host == "a"
    assert shlex.split(command) == ["exec", *job.command("-", 0)]
