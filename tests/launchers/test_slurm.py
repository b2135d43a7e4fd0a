"""Slurm through programs that stand in for its own: odd answers, injections, and the scripts that we hand in."""

from __future__ import annotations

import json
import logging
import os
import shlex
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.clusters import Slurm
from clusterenv.errors import LaunchError
from clusterenv.launchers import slurm as slurm_module
from clusterenv.launchers.base import NodeJob
from clusterenv.launchers.commands import Answer, answer_of
from clusterenv.launchers.slurm import SlurmLauncher
from clusterenv.launchers.slurm_words import (
    JobId,
    batch_script,
    parse_job_id,
    parse_sacct,
    parse_scontrol,
    parse_squeue,
    query_environment,
    submit_environment,
)
from clusterenv.testing.contracts import KEYS
from tests.launchers.kit import LIMIT_S
from tests.zoo import wait_until

if TYPE_CHECKING:
    import pathlib

JOB = NodeJob(("--head", "tcp+curve://10.0.0.1:5555", "--import", "my_envs"), KEYS, "/opt/venv/bin/python")


@dataclass
class Fakes:
    """Programs that record their words and answer as they are told."""

    folder: pathlib.Path

    def answers(self, name: str, out: str = "", err: str = "", code: int = 0, first: str = "") -> None:
        """Have a program answer so. `first` is a line of shell that it runs before."""
        # Replaced as a whole: an answer that is being given is never half of one and half of another.
        program = self.folder / f"{name}.new"
        program.write_text(
            f'#!/bin/sh\nfor word in "$0" "$@"; do printf "%s\\0" "$word"; done >> {self.folder}/{name}.words\n'
            f"echo >> {self.folder}/{name}.words\n{first}\n"
            f"printf %s {shlex.quote(out)}\nprintf %s {shlex.quote(err)} >&2\nexit {code}\n"
        )
        program.chmod(0o755)
        program.rename(self.folder / name)

    def calls(self, name: str) -> list[list[str]]:
        """The words of each call so far."""
        path = self.folder / f"{name}.words"
        lines = path.read_text().split("\0\n") if path.exists() else []
        return [line.split("\0")[1:] for line in lines if line]


@pytest.fixture(name="fakes")
def _fakes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    """A Slurm that accepts everything, runs a job, and forgets it when it is cancelled."""
    folder = tmp_path / "bin"
    folder.mkdir()
    fakes = Fakes(folder)
    fakes.answers("sbatch", "12\n")
    fakes.answers("squeue", "RUNNING|None\n")
    fakes.answers("scontrol", err="slurm_load_jobs error: Invalid job id specified\n", code=1)
    fakes.answers("sacct", err="Slurm accounting storage is disabled\n", code=1)
    fakes.answers("gone")
    fakes.answers("scancel", first=f"mv {folder}/gone {folder}/squeue")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(slurm_module, "LOOK_S", 0.01)
    return fakes


@pytest.fixture(name="folder")
def _folder(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "shared"


def start(folder: pathlib.Path, **options: Any) -> SlurmLauncher:
    launcher = SlurmLauncher(Slurm(folder=str(folder), **options))
    launcher.start(JOB)
    return launcher


# Handing in.

IDS = {
    "plain": ("12\n", JobId("12")),
    "a cluster": ("12;alpha\n", JobId("12", "alpha")),
    "an array": ("12_3\n", JobId("12")),
    "warnings before": ("sbatch: warning: no memory was asked for\n\n12\n", JobId("12")),
    "a number in a warning": ("quota: 12345 of 99999 hours left\n12\n", JobId("12")),
    "a line after": ("12\nhave a nice day\n", JobId("12")),
    "without the option": ("Submitted batch job 12\n", JobId("12")),
    "without the option, a cluster": ("Submitted batch job 12 on cluster alpha\n", JobId("12", "alpha")),
    "no newline": ("12", JobId("12")),
    "carriage return": ("12\r\n", JobId("12")),
    "localized": ("Stapelauftrag 12 angenommen\n", None),
    "nothing": ("", None),
    "blank": ("\n\n", None),
    "negative": ("-12\n", None),
    "huge": ("9" * 40 + "\n", None),
    "other digits": ("\u0661\u0662\n", None),
    "an option as a cluster": ("12;-x y\n", None),
    "a path": ("12;../x/y\n", None),
}


@pytest.mark.fault("F50")
@pytest.mark.parametrize(("output", "job"), IDS.values(), ids=IDS.keys())
def test_the_id_is_found_among_other_lines(output: str, job: JobId | None) -> None:
    assert parse_job_id(output) == job


def test_a_job_is_handed_in_watched_and_cancelled(fakes: Fakes, folder: pathlib.Path) -> None:
    fakes.answers("sbatch", "sbatch: warning: be quick\n12;alpha\n", first=f"cp {folder}/*/keys {folder}/../seen")
    launcher = start(folder, nodes=2, partition="cpu")
    (private,) = folder.iterdir()
    assert (folder.parent / "seen").read_text() == KEYS + "\n"
    assert [private.stat().st_mode & 0o777, (private / "keys").stat().st_mode & 0o777] == [0o700, 0o600]
    assert fakes.calls("sbatch") == [
        ["--parsable", f"--job-name=clusterenv-{private.name}", f"--output={private}/output", f"{private}/job.sh"]
    ]
    assert "#SBATCH --partition=cpu\n" in (private / "job.sh").read_text()
    wait_until(lambda: launcher.status() == "job 12 on alpha: RUNNING", LIMIT_S, launcher.status)
    assert fakes.calls("squeue")[0] == ["-h", "-M", "alpha", "-j", "12", "-o", "%T|%r"]
    assert launcher.failure() is None
    launcher.close(LIMIT_S)
    assert fakes.calls("scancel") == [["-M", "alpha", "12"]]
    assert list(folder.iterdir()) == []
    launcher.close(LIMIT_S)
    assert len(fakes.calls("scancel")) == 1
    assert (launcher.status(), launcher.failure(), launcher.logs()) == ("no job", None, {})
    with pytest.raises(LaunchError, match="handed in before"):
        launcher.start(JOB)


REFUSALS = {
    "partition": "sbatch: error: Batch job submission failed: Invalid partition name specified",
    "quota": "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit)",
    "account": "sbatch: error: Batch job submission failed: Invalid account or account/partition combination",
    "controller": "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
}


@pytest.mark.fault("F50")
@pytest.mark.parametrize("words", REFUSALS.values(), ids=REFUSALS.keys())
def test_a_refusal_is_told_in_the_words_of_sbatch(fakes: Fakes, folder: pathlib.Path, words: str) -> None:
    fakes.answers("sbatch", err=words + "\n", code=1)
    with pytest.raises(LaunchError) as caught:
        start(folder)
    assert str(caught.value) == f"sbatch refused the job: exit code 1: {words}"
    assert list(folder.iterdir()) == []
    assert fakes.calls("scancel") == [], "there is no job to cancel"


@pytest.mark.fault("F50")
def test_an_answer_without_an_id_is_an_error_and_the_job_is_cancelled_by_name(
    fakes: Fakes, folder: pathlib.Path
) -> None:
    fakes.answers("sbatch", "\x1b[31mall is well\x1b[0m\n")
    with pytest.raises(LaunchError, match="sbatch told no job id: all is well"):
        start(folder)
    ((name, user),) = fakes.calls("scancel")
    assert name == fakes.calls("sbatch")[0][1].replace("--job-name", "--name")
    assert user.startswith("--user=")
    assert list(folder.iterdir()) == []


@pytest.mark.fault("F50")
def test_an_sbatch_that_hangs_is_given_up(fakes: Fakes, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_module, "COMMAND_S", 3.0)  # also for scancel, which must get as far as to note its call
    fakes.answers("sbatch", "12\n", first="sleep 1000 & sleep 1000")
    start_s = time.monotonic()
    with pytest.raises(LaunchError, match="handed in: sbatch did not answer within"):
        start(folder)
    assert time.monotonic() - start_s < LIMIT_S
    assert len(fakes.calls("scancel")) == 1, "it may have come through after all"
    assert list(folder.iterdir()) == []


def test_an_sbatch_that_is_not_there_is_told(fakes: Fakes, folder: pathlib.Path) -> None:
    (fakes.folder / "sbatch").unlink()
    (fakes.folder / "env").symlink_to("/usr/bin/env")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(fakes.folder))
        with pytest.raises(LaunchError, match=r"sbatch cannot be run: .* such as a login node"):
            start(folder)
    assert list(folder.iterdir()) == []


def test_a_child_of_sbatch_that_lives_on_does_not_hold_us(fakes: Fakes, folder: pathlib.Path) -> None:
    fakes.answers("sbatch", "12\n", first=f"sleep 1000 & echo $! > {folder}.pid")
    start_s = time.monotonic()
    try:
        start(folder).close(LIMIT_S)
        assert time.monotonic() - start_s < LIMIT_S
    finally:
        os.kill(int((folder.parent / f"{folder.name}.pid").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("odd", ["file", "/proc/nothing", "back\\slash"])
def test_a_folder_that_cannot_be_used_is_told(fakes: Fakes, tmp_path: pathlib.Path, odd: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LaunchError, match="folder="):
        start(tmp_path / odd)
    assert fakes.calls("sbatch") == []


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_the_folder_is_private_whatever_the_umask(tmp_path: pathlib.Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        folder = slurm_module._fresh_folder(str(tmp_path))
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 in (0o700, 0o700 & ~umask)


# How a job fares.

QUEUES = {
    "waiting": ("PENDING|Priority\n", "PENDING (Priority)", None),
    "waiting for hosts": ("PENDING|Resources\n", "PENDING (Resources)", None),
    "running": ("RUNNING|None\n", "RUNNING", None),
    "starting": ("CONFIGURING|None\n", "CONFIGURING", None),
    "ending": ("COMPLETING|NonZeroExitCode\n", "COMPLETING (NonZeroExitCode)", None),
    "suspended": ("SUSPENDED|None\n", "SUSPENDED", None),
    "requeued": ("PENDING|BeginTime\n", "PENDING (BeginTime)", None),
    "drained": (
        "PENDING|ReqNodeNotAvail, UnavailableNodes:node1\n",
        "PENDING (ReqNodeNotAvail, UnavailableNodes:node1)",
        None,
    ),
    "others run": ("PENDING|AssocGrpCpuLimit\n", "PENDING (AssocGrpCpuLimit)", None),
    "others run long": ("PENDING|AssocGrpCPURunMinutesLimit\n", "PENDING (AssocGrpCPURunMinutesLimit)", None),
    "my others run": ("PENDING|QOSMaxCpuPerUserLimit\n", "PENDING (QOSMaxCpuPerUserLimit)", None),
    "several clusters": ("CLUSTER: alpha\nRUNNING|None\n", "RUNNING", None),
    "a warning": ("squeue: warning: slow\nPENDING|Priority\n", "PENDING (Priority)", None),
    "time": ("PENDING|PartitionTimeLimit\n", "PENDING (PartitionTimeLimit)", "time="),
    "nodes": ("PENDING|PartitionNodeLimit\n", "PENDING (PartitionNodeLimit)", "nodes="),
    "held": ("PENDING|JobHeldUser\n", "PENDING (JobHeldUser)", "scontrol release"),
    "held by others": ("PENDING|JobHeldAdmin\n", "PENDING (JobHeldAdmin)", "scontrol release"),
    "held again": (
        "PENDING|launch failed requeued held\n",
        "PENDING (launch failed requeued held)",
        "scontrol release",
    ),
    "quota": ("PENDING|AssocGrpCPUMinutesLimit\n", "PENDING (AssocGrpCPUMinutesLimit)", "account="),
    "too much": ("PENDING|QOSMaxCpuPerJobLimit\n", "PENDING (QOSMaxCpuPerJobLimit)", "less"),
    "constraints": ("PENDING|BadConstraints\n", "PENDING (BadConstraints)", "extra="),
    "qos": ("PENDING|InvalidQOS\n", "PENDING (InvalidQOS)", "qos="),
    "account": ("PENDING|InvalidAccount\n", "PENDING (InvalidAccount)", "account="),
    "dependency": ("PENDING|DependencyNeverSatisfied\n", "PENDING (DependencyNeverSatisfied)", "extra="),
    "partition": ("PENDING|PartitionDown\n", "PENDING (PartitionDown)", "partition="),
    "failed": ("FAILED|NonZeroExitCode\n", "FAILED (NonZeroExitCode)", ""),
}


@pytest.mark.parametrize(("output", "shown", "hint"), QUEUES.values(), ids=QUEUES.keys())
def test_what_squeue_says(output: str, shown: str, hint: str | None) -> None:
    state = parse_squeue(output)
    assert str(state) == shown
    assert state is not None
    assert (state.hopeless is None) == (hint is None)
    assert (hint or "") in (state.hopeless or "")


@pytest.mark.fault("F49")
@pytest.mark.parametrize("output", ["", "\n", "STATE REASON\n", "slurm_load_jobs error: timeout\n", "CLUSTER: alpha\n"])
def test_what_squeue_says_about_a_job_that_is_gone(output: str) -> None:
    assert parse_squeue(output) is None


SHOWN = (
    "JobId=12 JobName=clusterenv UserId=root(0) GroupId=root(0) Priority=1 Account=(null) QOS=(null) "
    "JobState={} Reason={} Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 ExitCode={} RunTime=00:00:01\n"
)
ENDS = {
    "failed": (("FAILED", "NonZeroExitCode", "3:0"), "FAILED (NonZeroExitCode, exit code 3:0)", True),
    "cancelled": (("CANCELLED", "None", "0:15"), "CANCELLED (exit code 0:15)", True),
    "timeout": (("TIMEOUT", "TimeLimit", "0:1"), "TIMEOUT (TimeLimit, exit code 0:1)", True),
    "node": (("NODE_FAIL", "NodeDown", "1:0"), "NODE_FAIL (NodeDown, exit code 1:0)", True),
    "memory": (("OUT_OF_MEMORY", "OutOfMemory", "0:125"), "OUT_OF_MEMORY (OutOfMemory, exit code 0:125)", True),
    "boot": (("BOOT_FAIL", "None", "0:0"), "BOOT_FAIL", True),
    "preempted": (("PREEMPTED", "None", "0:0"), "PREEMPTED", True),
    "deadline": (("DEADLINE", "Dead Line", "0:0"), "DEADLINE (Dead Line)", True),
    "completed": (("COMPLETED", "None", "0:0"), "COMPLETED", False),
}


@pytest.mark.parametrize(("values", "shown", "bad"), ENDS.values(), ids=ENDS.keys())
def test_what_scontrol_says(values: tuple[str, str, str], shown: str, bad: bool) -> None:
    state = parse_scontrol(SHOWN.format(*values))
    assert state is not None
    assert (str(state), state.ended, state.hopeless is not None) == (shown, True, bad)


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("FAILED|3:0\n", "FAILED (exit code 3:0)"),
        ("CANCELLED by 1000|0:0\n", "CANCELLED"),
        ("CANCELLED+|0:0\n", "CANCELLED"),
        ("COMPLETED|0:0\n", "COMPLETED"),
        ("OUT_OF_MEMORY|0:125\n", "OUT_OF_MEMORY (exit code 0:125)"),
        ("\n", "None"),
        ("", "None"),
    ],
)
def test_what_sacct_says(output: str, shown: str) -> None:
    assert str(parse_sacct(output)) == shown


@given(st.text())
def test_no_answer_is_too_odd(output: str) -> None:
    for parse in (parse_squeue, parse_scontrol, parse_sacct, parse_job_id):
        parse(output)


def test_a_job_that_left_the_queue_is_asked_for_elsewhere(fakes: Fakes, folder: pathlib.Path) -> None:
    launcher = start(folder)
    fakes.answers("squeue")
    fakes.answers("scontrol", SHOWN.format("CANCELLED", "None", "0:15"))
    wait_until(lambda: launcher.failure() is not None, LIMIT_S, launcher.status)
    assert launcher.failure() == "job 12 is CANCELLED (exit code 0:15). Somebody ended it with scancel."
    asked = len(fakes.calls("squeue"))
    assert fakes.calls("sacct") == []
    assert [launcher.failure() for _ in range(20)]
    assert len(fakes.calls("squeue")) == asked, "an ended job is not asked for again"
    launcher.close(LIMIT_S)


def test_a_job_that_even_scontrol_forgot_is_asked_for_in_the_books(fakes: Fakes, folder: pathlib.Path) -> None:
    launcher = start(folder)
    fakes.answers("squeue", err="slurm_load_jobs error: Invalid job id specified\n", code=1)
    fakes.answers("sacct", "TIMEOUT|0:0\n")
    wait_until(lambda: launcher.failure() is not None, LIMIT_S, launcher.status)
    assert launcher.failure() == "job 12 is TIMEOUT. Ask for more time with time=."
    launcher.close(LIMIT_S)


def test_a_job_that_nobody_remembers_has_failed(fakes: Fakes, folder: pathlib.Path) -> None:
    launcher = start(folder)
    fakes.answers("squeue", err="slurm_load_jobs error: Invalid job id specified\n", code=1)
    wait_until(lambda: launcher.failure() is not None, LIMIT_S, launcher.status)
    assert "it has left the queue, and Slurm no longer tells how it ended" in str(launcher.failure())
    launcher.close(LIMIT_S)


def test_a_slurm_that_does_not_answer_says_nothing_about_the_job(fakes: Fakes, folder: pathlib.Path) -> None:
    fakes.answers("squeue", err="slurm_load_jobs error: Unable to contact slurm controller\n", code=1)
    launcher = start(folder)
    wait_until(lambda: "Unable to contact" in launcher.status(), LIMIT_S, launcher.status)
    assert launcher.failure() is None
    fakes.answers("squeue", "RUNNING|None\n")
    wait_until(lambda: launcher.status() == "job 12: RUNNING", LIMIT_S, launcher.status)
    launcher.close(LIMIT_S)


def test_a_squeue_that_hangs_holds_nobody_and_is_ended_on_close(fakes: Fakes, folder: pathlib.Path) -> None:
    fakes.answers("squeue", first="sleep 1000")
    launcher = start(folder)
    start_s = time.monotonic()
    assert launcher.status() == "job 12: SUBMITTED"
    assert launcher.failure() is None
    assert time.monotonic() - start_s < LIMIT_S
    fakes.answers("squeue")
    launcher.close(LIMIT_S)


@pytest.mark.fault("F48")
def test_a_preempted_job_that_slurm_requeues_is_waited_for(fakes: Fakes, folder: pathlib.Path) -> None:
    launcher = start(folder)
    for output, shown in (
        ("RUNNING|None", "RUNNING"),
        ("PENDING|BeginTime", "PENDING (BeginTime)"),
        ("RUNNING|None", "RUNNING"),
    ):
        fakes.answers("squeue", output + "\n")
        wait_until(lambda shown=shown: launcher.status() == f"job 12: {shown}", LIMIT_S, launcher.status)  # type: ignore[misc]
        assert launcher.failure() is None
    launcher.close(LIMIT_S)


@pytest.mark.parametrize("state", ["PREEMPTED", "NODE_FAIL", "BOOT_FAIL"])
def test_a_state_that_may_pass_is_no_end_at_once(
    fakes: Fakes, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    launcher = start(folder)
    for output, shown in (
        (f"{state}|None", f"REQUEUED (it was {state})"),
        ("REQUEUED|None", "REQUEUED"),
        ("PENDING|BeginTime", "PENDING (BeginTime)"),
        ("SUSPENDED|None", "SUSPENDED"),
        (f"{state}|None", f"REQUEUED (it was {state})"),
    ):
        fakes.answers("squeue", output + "\n")
        wait_until(lambda shown=shown: launcher.status() == f"job 12: {shown}", LIMIT_S, launcher.status)  # type: ignore[misc]
        assert launcher.failure() is None
        assert launcher.restart(0), "it may come back"
    monkeypatch.setattr(slurm_module, "RETURN_S", 0.0)
    wait_until(lambda: launcher.failure() is not None, LIMIT_S, launcher.status)
    assert f"job 12 is {state}." in str(launcher.failure())
    assert not launcher.restart(0)
    launcher.close(LIMIT_S)


def test_a_job_that_is_done_is_a_failure_to_who_waits_for_a_node(fakes: Fakes, folder: pathlib.Path) -> None:
    launcher = start(folder)
    wait_until(lambda: launcher.status() == "job 12: RUNNING", LIMIT_S, launcher.status)
    assert launcher.restart(1)
    fakes.answers("squeue", "COMPLETED|None\n")
    wait_until(lambda: launcher.failure() is not None, LIMIT_S, launcher.status)
    assert launcher.failure() == "job 12 is COMPLETED. Its nodes have left for good."
    assert not launcher.restart(1)
    launcher.close(LIMIT_S)


def test_a_failure_tells_the_last_lines_of_each_node(fakes: Fakes, folder: pathlib.Path) -> None:
    launcher = start(folder)
    assert launcher.logs() == {}
    (private,) = folder.iterdir()
    (private / "output").write_text("srun: go\n 0: one\n10: \x1b[31mtwo\x1b[0m\n 0: three\n")
    assert launcher.logs() == {"job": "srun: go\n", "node 0": "one\nthree\n", "node 10": "two\n"}
    fakes.answers("squeue", "FAILED|NonZeroExitCode\n")
    wait_until(lambda: launcher.failure() is not None, LIMIT_S, launcher.status)
    assert launcher.failure() == "job 12 is FAILED (NonZeroExitCode). It wrote: srun: go\none\nthree\ntwo"
    launcher.close(LIMIT_S)


def test_a_job_that_cannot_be_cancelled_is_told(
    fakes: Fakes, folder: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    launcher = start(folder)
    fakes.answers("scancel", err="scancel: error: Unable to contact slurm controller\n", code=1)
    with caplog.at_level(logging.WARNING):
        launcher.close(LIMIT_S)
    assert "Unable to contact slurm controller). End it: scancel 12" in caplog.text
    assert list(folder.iterdir()) == []


def test_a_job_that_is_slow_to_end_is_told(
    fakes: Fakes, folder: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    launcher = start(folder)
    fakes.answers("scancel")
    with caplog.at_level(logging.WARNING):
        launcher.close(0.2)
    assert "job 12 is cancelled and still ending" in caplog.text
    assert list(folder.iterdir()) == []


# What the programs inherit.


def test_a_job_does_not_inherit_what_would_change_it() -> None:
    environ = {
        "PATH": "/bin",
        "SLURM_CONF": "/c",
        "SLURM_JOB_ID": "7",
        "SLURM_CPUS_PER_TASK": "1",
        "SBATCH_WAIT": "1",
        "SBATCH_PARTITION": "other",
        "SBATCH_ACCOUNT": "mine",
    }
    assert submit_environment(environ, Slurm(partition="cpu")) == {
        "PATH": "/bin",
        "SLURM_CONF": "/c",
        "SBATCH_ACCOUNT": "mine",
    }
    assert query_environment({"SQUEUE_STATES": "all", "SCANCEL_INTERACTIVE": "1", "PATH": "/bin"}) == {
        "PATH": "/bin",
        "LC_ALL": "C",
    }


@pytest.mark.threat("T19")
def test_no_program_sees_the_keys(fakes: Fakes, folder: pathlib.Path) -> None:
    fakes.answers("sbatch", "12\n", first=f"env > {folder.parent}/seen; cat $4 >> {folder.parent}/seen")
    launcher = start(folder)
    wait_until(lambda: "RUNNING" in launcher.status(), LIMIT_S)
    launcher.close(LIMIT_S)
    assert "srun" in (folder.parent / "seen").read_text(), "the script was seen"
    seen = (folder.parent / "seen").read_text() + json.dumps([fakes.calls(name) for name in ("sbatch", "squeue")])
    assert "canary" not in seen
    assert "canary" not in repr(JOB)


# Scripts.

TASK = """sh -c 'told=
trap "told=1" TERM USR2
for try in $(seq 20); do
  "$@"
  code=$?
  [ -z "$told" ] || exit 75
  [ $code -gt 128 ] || [ $code = 75 ] || exit $code
  sleep 1
done
exit $code' node"""
SMALL = f"""\
#!/bin/sh
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --no-kill
#SBATCH --requeue
#SBATCH --signal=USR2@60
#SBATCH --open-mode=append

srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpu-bind=none --no-kill --kill-on-bad-exit=0 --wait=0 --label \
--input=none {TASK} /opt/venv/bin/python -m clusterenv node --head tcp+curve://10.0.0.1:5555 --import my_envs \
--key-file '~/.clusterenv/slurm-NEW/keys'
code=$?
[ $code != 75 ] || ! scontrol requeue "$SLURM_JOB_ID" || exit 0
rm -f -- '~/.clusterenv/slurm-NEW/keys'
exit $code
"""
LARGE = f"""\
#!/bin/sh
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --partition=cpu,long
#SBATCH --account=lab
#SBATCH --qos=high
#SBATCH --time=1-00:00:00
#SBATCH --no-kill
#SBATCH --requeue
#SBATCH --signal=USR2@60
#SBATCH --open-mode=append
#SBATCH --mem=8G
#SBATCH --signal=B:USR2@90

srun --nodes=4 --ntasks=4 --ntasks-per-node=1 --cpus-per-task=16 --cpu-bind=none --no-kill --kill-on-bad-exit=0 \
--wait=0 --label --input=none {TASK} /opt/venv/bin/python -m clusterenv node --head tcp+curve://10.0.0.1:5555 \
--import my_envs --key-file '/my scratch/slurm-NEW/keys'
code=$?
[ $code != 75 ] || ! scontrol requeue "$SLURM_JOB_ID" || exit 0
rm -f -- '/my scratch/slurm-NEW/keys'
exit $code
"""


def test_the_script_of_a_small_job() -> None:
    assert SlurmLauncher(Slurm()).script(JOB) == SMALL


def test_the_script_of_a_large_job() -> None:
    cluster = Slurm(
        nodes=4,
        workers=16,
        partition="cpu,long",
        account="lab",
        qos="high",
        time="1-00:00:00",
        extra=("--mem=8G", "--signal=B:USR2@90"),
        folder="/my scratch",
    )
    assert SlurmLauncher(cluster).script(JOB) == LARGE


@pytest.mark.parametrize(
    ("time", "told"),
    [
        *[("", True), ("UNLIMITED", True), ("5", True), ("90:00", True), ("0:05:00", True), ("1-0", True)],
        *[("0-0:05", True), ("4", False), ("4:59", False), ("0:04:59", False), ("0-0:04:59", False)],
    ],
)
def test_a_short_job_is_not_told_before_its_end(time: str, told: bool) -> None:
    """Slurm may be a minute early: such a job would be told at its start, and requeue itself for ever."""
    assert ("#SBATCH --signal=USR2@60\n" in SlurmLauncher(Slurm(time=time)).script(JOB)) is told


ODD_WORDS = [
    *("; rm -rf /", "$(id)", "`id`", "a\n#SBATCH --uid=0"),
    *("'", '"', "\\", "a b", "-x", "", "\u00e4", "*", "~", "&", "#"),
]


@pytest.mark.parametrize("word", ODD_WORDS)
def test_an_odd_word_stays_one_word(word: str) -> None:
    job = NodeJob(("--name", word), KEYS, f"/opt/{word}/python")
    assert _command(Slurm(), job, f"/f/{word}/keys") == job.command(f"/f/{word}/keys")


@pytest.mark.threat("T16")
@given(st.lists(st.text(), max_size=4), st.text(min_size=1), st.text(min_size=1))
def test_whatever_the_arguments_the_shell_reads_the_same_words(arguments: list[str], python: str, file: str) -> None:
    job = NodeJob(tuple(arguments), KEYS, python)
    assert _command(Slurm(nodes=3), job, file) == job.command(file)


@pytest.mark.threat("T16")
def test_a_line_of_sbatch_cannot_be_smuggled_in() -> None:
    """Slurm reads its lines up to the first command, which is where the words of others begin."""
    job = NodeJob(("--name", "x\n#SBATCH --uid=0\n"), KEYS, "python")
    script = batch_script(Slurm(), job.line("/k"), "/k")
    assert script.index("srun") < script.index("#SBATCH --uid=0")


def _command(cluster: Slurm, job: NodeJob, key_file: str) -> list[str]:
    """The words that srun runs, as a shell reads them."""
    script = batch_script(cluster, job.line(key_file), key_file)
    start_of = "--label --input=none "
    line = script[script.index(start_of) + len(start_of) : script.rindex("\ncode=$?\n[ $code")]
    words = shlex.split(line)
    assert words[:4] == shlex.split(TASK)
    return words[4:]


@pytest.mark.parametrize("word", [word for word in ODD_WORDS if word])
def test_a_shell_runs_the_script_with_the_very_words(word: str, tmp_path: pathlib.Path, fakes: Fakes) -> None:
    """By a real shell: the script runs `srun`, which here records its words."""
    fakes.answers("srun", code=3)
    keys = tmp_path / f"keys {word}".replace("/", "_")
    keys.write_text(KEYS)
    job = NodeJob(("--name", word), KEYS, "python3")
    script = tmp_path / "job.sh"
    script.write_text(batch_script(Slurm(), job.line(str(keys)), str(keys)))
    answer = answer_of(["/bin/sh", str(script)], LIMIT_S)
    assert answer.code == 3, "the job ends as srun does"
    (words,) = fakes.calls("srun")
    assert words[-len(job.command(str(keys))) :] == job.command(str(keys))
    assert not keys.exists()


ENDINGS = {
    # what the node does; the exit code of the job, how often the node ran, whether the job is requeued
    "well": ("exit 0", 0, 1, False),
    "badly": ("exit 3", 3, 1, False),
    "killed twice": ("[ $ran = 3 ] || kill -9 $$; exit 0", 0, 3, False),
    "given up once": ("[ $ran = 2 ] || exit 75; exit 0", 0, 2, False),
    "told to leave": ("kill -USR2 $PPID; exit 0", 0, 1, True),
    "told to leave by others": ("kill -TERM $PPID; kill -9 $$", 0, 1, True),
}


@pytest.mark.parametrize(("does", "code", "runs", "requeued"), ENDINGS.values(), ids=ENDINGS)
def test_how_a_job_ends(
    does: str,
    code: int,
    runs: int,
    requeued: bool,
    tmp_path: pathlib.Path,
    fakes: Fakes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a real shell: a node is started again if it was killed, and the job requeues itself if Slurm told it to go."""
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    answer, keys, ran = run_job(tmp_path, fakes, does)
    assert answer.code == code, answer.words
    assert len(ran) == runs
    assert fakes.calls("scontrol") == ([["requeue", "12"]] if requeued else [])
    assert keys.exists() == requeued, "who comes back needs the keys"


def test_a_job_that_may_not_be_requeued_ends(
    tmp_path: pathlib.Path, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    answer, keys, ran = run_job(tmp_path, fakes, "kill -USR2 $PPID; exit 0", refuse=1)
    assert answer.code == 75
    assert len(ran) == 1
    assert not keys.exists()


def run_job(tmp_path: pathlib.Path, fakes: Fakes, does: str, refuse: int = 0) -> tuple[Answer, pathlib.Path, str]:
    fakes.answers("srun", first='while [ "$1" != sh ]; do shift; done; exec "$@"')
    fakes.answers("scontrol", code=refuse)
    keys, program = tmp_path / "keys", tmp_path / "node"
    keys.write_text(KEYS)
    program.write_text(f"#!/bin/sh\nprintf x >> {tmp_path}/ran\nran=$(wc -c < {tmp_path}/ran)\n{does}\n")
    program.chmod(0o755)
    (tmp_path / "job.sh").write_text(batch_script(Slurm(), str(program), str(keys)))
    answer = answer_of(["/bin/sh", str(tmp_path / "job.sh")], LIMIT_S)
    return answer, keys, (tmp_path / "ran").read_text()
