"""Nodes as a job of a real Slurm (see tests/services.py)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from clusterenv.clusters import Slurm
from clusterenv.errors import LaunchError
from clusterenv.launchers import slurm as slurm_module
from clusterenv.launchers.slurm import SlurmLauncher
from clusterenv.testing.contracts import KEYS, StandIn
from tests.launchers.kit import wait_gone
from tests.zoo import wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from clusterenv.launchers.base import NodeJob

pytestmark = pytest.mark.usefixtures("slurm")

# A start takes about a second, a node that is being cleaned up a few more.
LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_module, "LOOK_S", 0.1)


@contextlib.contextmanager
def launched(folder: pathlib.Path, job: NodeJob, **options: Any) -> Iterator[SlurmLauncher]:
    launcher = SlurmLauncher(Slurm(**{"nodes": 2, "cpus": 1, "folder": str(folder), **options}))
    launcher.start(job)
    try:
        yield launcher
    finally:
        launcher.close(LIMIT_S)
    assert list(folder.iterdir()) == [], "the folder with the keys is gone"


def number_of(launcher: SlurmLauncher) -> str:
    return launcher.status().split()[1].rstrip(":")


def test_two_hosts_get_the_keys_and_end_on_close(node: StandIn, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "100% of 'it'"
    with launched(folder, node.job()) as launcher:
        records = node.wait_for(2, LIMIT_S)
        assert {record["task"] for record in records} == {"0", "1"}
        assert [record["keys"] for record in records] == [KEYS + "\n"] * 2
        (private,) = folder.iterdir()
        assert private.stat().st_mode & 0o777 == 0o700
        assert (private / "keys").stat().st_mode & 0o777 == 0o600
        wait_until(lambda: "RUNNING" in launcher.status(), LIMIT_S, launcher.status)
        for name in ("node 0", "node 1"):
            wait_until(lambda name=name: "is ready" in launcher.logs().get(name, ""), LIMIT_S)  # type: ignore[misc]
        assert launcher.failure() is None
        assert launcher.restart(0), "its shell starts a node again that was killed"
        told = subprocess.run(["scontrol", "show", "job", number_of(launcher)], capture_output=True, check=True)
        assert b"canary" not in told.stdout
    wait_gone(*(record["pid"] for record in records))


def test_whole_hosts_are_asked_for_when_nothing_is_said(node: StandIn, tmp_path: pathlib.Path) -> None:
    with launched(tmp_path / "f", node.job(), nodes=1, cpus=0) as launcher:
        node.wait_for(1, LIMIT_S)
        words = ["squeue", "-h", "-j", number_of(launcher), "-o", "%C"]
        whole = subprocess.run(
            ["sinfo", "-h", "-n", "node0", "-p", "debug", "-o", "%c"], capture_output=True, check=True
        )
        assert subprocess.run(words, capture_output=True, check=True).stdout == whole.stdout


def test_a_killed_node_runs_again_and_leaves_the_others_alone(node: StandIn, tmp_path: pathlib.Path) -> None:
    with launched(tmp_path / "f", node.job()) as launcher:
        first, second = node.wait_for(2, LIMIT_S)
        os.kill(first["pid"], signal.SIGKILL)
        third = node.wait_for(3, LIMIT_S)[2]
        assert third["task"] == first["task"]
        wait_until(lambda: "RUNNING" in launcher.status(), LIMIT_S, launcher.status)
        assert launcher.failure() is None
        os.kill(second["pid"], 0)
    wait_gone(second["pid"], third["pid"])


def test_a_node_that_fails_is_told_with_its_last_words(node: StandIn, tmp_path: pathlib.Path) -> None:
    with launched(tmp_path / "f", node.job("fail")) as launcher:
        wait_until(lambda: launcher.failure() is not None, LIMIT_S, launcher.status)
        failure = str(launcher.failure())
        assert failure.startswith(f"job {number_of(launcher)} is FAILED (NonZeroExitCode, exit code 1:0).")
        assert "no module named clusterenv" in failure
        (private,) = (tmp_path / "f").iterdir()
        assert not (private / "keys").exists(), "the keys are gone with the job"


def test_nodes_that_leave_with_code_zero_are_no_failure(node: StandIn, tmp_path: pathlib.Path) -> None:
    with launched(tmp_path / "f", node.job("leave")) as launcher:
        wait_until(lambda: "COMPLETED" in launcher.status(), LIMIT_S, launcher.status)
        assert launcher.failure() is None


def test_a_job_that_somebody_cancels_is_told(node: StandIn, tmp_path: pathlib.Path) -> None:
    with launched(tmp_path / "f", node.job()) as launcher:
        records = node.wait_for(2, LIMIT_S)
        subprocess.run(["scancel", number_of(launcher)], check=True)
        wait_until(lambda: launcher.failure() is not None, LIMIT_S, launcher.status)
        assert "is CANCELLED" in str(launcher.failure())
    wait_gone(*(record["pid"] for record in records))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"partition": "short", "time": "1-00:00:00"}, "PartitionTimeLimit|PartitionConfig"),
        ({"partition": "closed"}, "PartitionDown"),
        ({"extra": ("--hold",)}, "JobHeldUser"),
        ({"nodes": 5}, "PartitionNodeLimit|PartitionConfig"),
    ],
)
def test_a_job_that_never_starts_is_told(
    node: StandIn, tmp_path: pathlib.Path, options: dict[str, Any], reason: str
) -> None:
    with launched(tmp_path / "f", node.job(), **options) as launcher:
        wait_until(lambda: launcher.failure() is not None, LIMIT_S, launcher.status)
        failure = str(launcher.failure())
        assert any(f"is PENDING ({each})." in failure for each in reason.split("|")), failure
    assert node.records() == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partition": "nope"}, "Invalid partition name specified"),
        ({"extra": ("--constraint=nope",)}, "Invalid feature specification"),
        ({"extra": ("--no-such-option",)}, "unrecognized option"),
    ],
)
def test_what_slurm_refuses_is_told_in_its_words(
    node: StandIn, tmp_path: pathlib.Path, options: dict[str, Any], words: str
) -> None:
    launcher = SlurmLauncher(Slurm(folder=str(tmp_path / "f"), **options))
    with pytest.raises(LaunchError, match=f"sbatch refused the job: .*{words}"):
        launcher.start(node.job())
    assert list((tmp_path / "f").iterdir()) == []


@pytest.mark.parametrize("time", ["61", "2:00:00", "1-00:00:00", "UNLIMITED"])
def test_slurm_understands_the_times_that_we_let_pass(node: StandIn, tmp_path: pathlib.Path, time: str) -> None:
    with launched(tmp_path / "f", node.job(), nodes=1, time=time, extra=("--hold",)) as launcher:
        words = ["squeue", "-h", "-j", number_of(launcher), "-o", "%l"]
        shown = subprocess.run(words, capture_output=True, check=True, text=True).stdout.strip()
        assert shown == {"61": "1:01:00"}.get(time, time)


def test_a_job_is_cancelled_by_name_when_its_id_never_came(
    node: StandIn, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site's sbatch answers in a language that we do not know."""
    real = subprocess.run(["which", "sbatch"], capture_output=True, check=True, text=True).stdout.strip()
    wrapper = tmp_path / "bin" / "sbatch"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\n{real} "$@" > {tmp_path}/id\necho "Stapelauftrag angenommen"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    launcher = SlurmLauncher(Slurm(folder=str(tmp_path / "f"), nodes=2, cpus=1))
    with pytest.raises(LaunchError, match="sbatch told no job id: Stapelauftrag angenommen"):
        launcher.start(node.job())
    words = ["scontrol", "-o", "show", "job", (tmp_path / "id").read_text().strip()]

    def told() -> str:
        return subprocess.run(words, capture_output=True, check=True, text=True).stdout

    # Slurm takes the order first, and then a moment to carry it out.
    wait_until(lambda: "JobState=CANCELLED" in told(), LIMIT_S, told)
