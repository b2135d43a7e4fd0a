"""Nodes as processes on this host, with real processes."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from clusterenv.clusters import Join, Kubernetes, Ray, Remote, Slurm, Ssh, Tcp
from clusterenv.errors import ConfigTypeError, LaunchError
from clusterenv.launchers.base import NodeJob
from clusterenv.launchers.choose import launcher_for
from clusterenv.launchers.processes import ProcessLauncher
from clusterenv.testing.contracts import KEYS, StandIn
from tests.launchers.kit import LIMIT_S, gone, wait_gone
from tests.zoo import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def launched(job: NodeJob, nodes: int = 2) -> Iterator[ProcessLauncher]:
    launcher = ProcessLauncher(Tcp(nodes=nodes))
    launcher.start(job)
    try:
        yield launcher
    finally:
        launcher.close(LIMIT_S)


def test_every_node_gets_the_keys_on_standard_input_and_nowhere_else(node: StandIn) -> None:
    with launched(node.job()) as launcher:
        records = node.wait_for(2)
        assert [record["keys"] for record in records] == [KEYS + "\n"] * 2
        assert {record["index"] for record in records} == {0, 1}
        assert all(record["argv"] == node.job().command("-", record["index"])[1:] for record in records)
        assert launcher.status() == "2 of 2 node processes running"
        assert launcher.failure() is None
        for record in records:
            seen = pathlib.Path(f"/proc/{record['pid']}/environ").read_bytes()
            assert b"canary" not in seen + pathlib.Path(f"/proc/{record['pid']}/cmdline").read_bytes()


def test_close_ends_the_nodes_by_closing_their_standard_input(node: StandIn) -> None:
    launcher = ProcessLauncher(Tcp(nodes=2))
    launcher.start(node.job())
    records = node.wait_for(2)
    launcher.close(LIMIT_S)
    assert all(gone(record["pid"]) for record in records)
    launcher.close(LIMIT_S)
    assert launcher.status() == "0 of 2 node processes running"
    assert launcher.logs() == {}
    assert launcher.failure() is None
    assert not launcher.restart(0)


@pytest.mark.parametrize("limit_s", [3e6, 9.9e8])
def test_close_takes_limits_of_months(node: StandIn, limit_s: float) -> None:
    launcher = ProcessLauncher(Tcp(nodes=1))
    launcher.start(node.job())
    (record,) = node.wait_for(1)
    launcher.close(limit_s)
    assert gone(record["pid"])


@pytest.mark.parametrize("do", ["stubborn", "child"])
def test_what_does_not_end_by_itself_is_killed_with_its_group(node: StandIn, do: str) -> None:
    with launched(node.job(do)) as launcher:
        records = node.wait_for(2)
        start = time.monotonic()
        launcher.close(0.2)
        assert time.monotonic() - start < LIMIT_S / 2
    wait_gone(*(record["pid"] for record in records), *(record["child"] for record in records if record["child"]))


def test_a_node_ends_when_the_head_is_killed(node: StandIn, tmp_path: pathlib.Path) -> None:
    code = f"""
import sys, time
from clusterenv.clusters import Tcp
from clusterenv.launchers.base import NodeJob
from clusterenv.launchers.processes import ProcessLauncher
launcher = ProcessLauncher(Tcp(nodes=2))
launcher.start(NodeJob({node.job().arguments!r}, "keys", {node.program!r}))
time.sleep(1000)
"""
    head = subprocess.Popen([sys.executable, "-c", code])
    try:
        records = node.wait_for(2)
    finally:
        head.kill()
        head.wait()
    wait_gone(*(record["pid"] for record in records))


def test_a_node_that_ends_badly_is_told_with_its_code_and_last_words(node: StandIn) -> None:
    with launched(node.job("fail"), nodes=1) as launcher:
        wait_until(lambda: launcher.failure() is not None, LIMIT_S)
        failure = launcher.failure()
        assert failure is not None
        assert failure.startswith("node 0 ended with exit code 1: ")
        assert failure.endswith("no module named clusterenv")
        assert launcher.status() == "0 of 1 node processes running"
        assert "no module named" in launcher.logs()["node 0"]


def test_a_node_that_was_killed_is_told_with_its_signal(node: StandIn) -> None:
    with launched(node.job("die"), nodes=1) as launcher:
        wait_until(lambda: launcher.failure() is not None, LIMIT_S)
        assert "node 0 ended with signal SIGKILL" in str(launcher.failure())


def test_a_node_that_leaves_with_code_zero_is_no_failure(node: StandIn) -> None:
    with launched(node.job("leave"), nodes=1) as launcher:
        wait_until(lambda: launcher.status().startswith("0 of 1"), LIMIT_S)
        assert launcher.failure() is None


@pytest.mark.parametrize("how", ["lost", "still running"])
def test_a_node_is_started_again_and_its_earlier_words_are_kept(node: StandIn, how: str) -> None:
    with launched(node.job(), nodes=2) as launcher:
        wait_until(lambda: all("ready" in log for log in launcher.logs().values()), LIMIT_S)
        first = {record["pid"] for record in node.wait_for(2)}
        lost = int(launcher.logs()["node 1"].split()[1])
        if how == "lost":
            os.kill(lost, signal.SIGKILL)
            wait_until(lambda: launcher.failure() is not None, LIMIT_S)
        assert launcher.restart(1)
        (again,) = {record["pid"] for record in node.wait_for(3)} - first
        wait_until(lambda: f"stand-in {again} is ready" in launcher.logs()["node 1"], LIMIT_S)
        assert f"stand-in {lost} is ready" in launcher.logs()["node 1"]
        assert launcher.failure() is None
        assert gone(lost)
        assert not launcher.restart(2)
        assert not launcher.restart(-1)


def test_reading_the_logs_does_not_disturb_the_writer(node: StandIn) -> None:
    with launched(node.job("say"), nodes=1) as launcher:
        wait_until(lambda: bool(launcher.logs()["node 0"]) and "ready" in launcher.logs()["node 0"], LIMIT_S)
        assert launcher.logs()["node 0"].splitlines()[0] == "before the keys"


def test_a_python_that_is_not_there_is_a_launch_error(tmp_path: pathlib.Path) -> None:
    launcher = ProcessLauncher(Tcp(nodes=2))
    with pytest.raises(LaunchError, match=r"no-python.*Set python="):
        launcher.start(NodeJob((), KEYS, str(tmp_path / "no-python")))
    launcher.close(LIMIT_S)


def test_starting_twice_is_refused(node: StandIn) -> None:
    with launched(node.job(), nodes=1) as launcher:
        with pytest.raises(LaunchError, match="started before"):
            launcher.start(node.job())
        node.wait_for(1)


def test_the_script_holds_no_keys(node: StandIn) -> None:
    script = ProcessLauncher(Tcp(nodes=2)).script(node.job())
    assert script == "".join(node.job().line("-", index) + "\n" for index in range(2))
    assert "canary" not in script


@pytest.mark.parametrize(
    ("cluster", "name"),
    [
        (Tcp(), "ProcessLauncher"),
        (Join(), "JoinLauncher"),
        (Ray(), "RayLauncher"),
        (Kubernetes(), "KubernetesLauncher"),
        (Slurm(), "SlurmLauncher"),
        (Ssh(hosts=("a",)), "SshLauncher"),
    ],
)
def test_every_kind_has_its_launcher(cluster: Remote, name: str) -> None:
    launcher = launcher_for(cluster)
    assert type(launcher).__name__ == name
    assert launcher.nodes == cluster.nodes


def test_another_kind_has_no_launcher() -> None:
    with pytest.raises(ConfigTypeError, match="has no launcher"):
        launcher_for(Remote())
