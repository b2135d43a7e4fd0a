"""Slurm's words: the script that we hand in, and what its programs answer. No program is run here."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterenv.errors import GivenUp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterenv.clusters import Slurm

# States in which a job never gets another node.
_ENDED_BADLY = {
    "BOOT_FAIL": "Submit again; if it stays, tell the administrators.",
    "CANCELLED": "Somebody ended it with scancel.",
    "DEADLINE": "Ask for less time with time=, or leave the deadline out of extra=.",
    "FAILED": "",
    "NODE_FAIL": "A host failed. Submit again.",
    "OUT_OF_MEMORY": "Ask for more, as in extra=('--mem=16G',), or run fewer workers.",
    "PREEMPTED": "Submit again, or use a partition or qos that is not preempted.",
    "REQUEUE_HOLD": "Release it with scontrol release, or submit again.",
    "REVOKED": "",
    "SPECIAL_EXIT": "",
    "TIMEOUT": "Ask for more time with time=.",
}

# Of these, the states that Slurm shows for a moment also if it puts the job back into the queue.
_MAY_RETURN = ("BOOT_FAIL", "NODE_FAIL", "PREEMPTED")

# Reasons for which a job stays pending until somebody changes it. Limits on what all jobs of an account or a qos use at
# one time are not among them: they end with those jobs.
_NEVER_STARTS = (
    (r"PartitionTimeLimit", "Ask for less time with time=, or choose another partition=."),
    (r"PartitionNodeLimit", "Ask for fewer nodes with nodes=, or choose another partition=."),
    (r"PartitionDown|PartitionInactive", "Choose another partition=."),
    (r"PartitionConfig|BadConstraints|MaxMemPerLimit", "Ask for less with nodes=, cpus=, time= and extra=."),
    (
        r"JobHeld(User|Admin)|.*requeued held|JobLaunchFailure|MaxRequeue",
        "Release it with scontrol release, if you may.",
    ),
    (r"InvalidAccount|AccountNotAllowed", "Choose another account=."),
    (r"InvalidQOS|QOSNotAllowed", "Choose another qos=."),
    (
        r"(Assoc|QOS)Max\w*Per(Job|Node)\w*|QOSMin\w*|(Association|QOS)TimeLimit",
        "Ask for less, or choose another qos=.",
    ),
    (r"(Assoc|QOS)Grp(?!\w*Run)\w*Minutes\w*", "What was granted is used up. Choose another account= or qos=."),
    (r"DependencyNeverSatisfied", "Leave the dependency out of extra=."),
    (r"ReservationDeleted", "Leave the reservation out of extra=."),
)

# How many seconds before the end of its time a job is told. Slurm is exact to a minute.
NOTICE_S = 60
# A node that the head has given up, as when the job was suspended for a while, is started again. A task whose node has
# left because Slurm asked it to ends with the same code, which only the script of the job sees.
_LEFT = GivenUp.exit_code
_RESTARTS = 20
# Runs the node; again if it was killed, or given up by the head. The shell hears the signals that Slurm sends to all
# processes of a task, and waits with them for the node, which finishes what it is at.
_TASK = f"""told=
trap "told=1" TERM USR2
for try in $(seq {_RESTARTS}); do
  "$@"
  code=$?
  [ -z "$told" ] || exit {_LEFT}
  [ $code -gt 128 ] || [ $code = {GivenUp.exit_code} ] || exit $code
  sleep 1
done
exit $code"""

# As --parsable has it, also of an array; and as it is without, in case a wrapper of the site drops our option.
_ID_FORMS = (
    r"([0-9]{1,12})(?:_[0-9]+)?(?:;([A-Za-z0-9_.-]{1,80}))?",
    r"Submitted batch job ([0-9]{1,12})(?: on cluster ([A-Za-z0-9_.-]{1,80}))?",
)

# What a job of ours may inherit from the shell, or from the job in which the head itself runs.
_KEPT = ("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS", "SBATCH_CLUSTERS")
_DEFAULTS = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_TIMELIMIT": "time",
}
# Variables that change what the programs ask, show or do.
_TASTES = ("SQUEUE_", "SACCT_", "SCONTROL_", "SCANCEL_")


@dataclass(frozen=True, slots=True)
class JobId:
    """A job, and the cluster that has it where there are several."""

    number: str
    cluster: str = ""

    @property
    def words(self) -> list[str]:
        """How squeue, scontrol, sacct and scancel are told."""
        return [*(["-M", self.cluster] if self.cluster else []), self.number]

    def __str__(self) -> str:
        return f"job {self.number}" + (f" on {self.cluster}" if self.cluster else "")


@dataclass(frozen=True, slots=True)
class JobState:
    """What Slurm says about a job: its state, and the reason for it where there is one."""

    state: str
    reason: str = ""

    def __str__(self) -> str:
        return self.state + (f" ({self.reason})" if self.reason else "")

    @property
    def ended(self) -> bool:
        """Whether it will never run again."""
        return self.state in _ENDED_BADLY or self.state == "COMPLETED"

    @property
    def may_return(self) -> bool:
        """Whether it may be in the queue again in a moment, although this is the state of a job that has ended."""
        return self.state in _MAY_RETURN

    @property
    def hopeless(self) -> str | None:
        """What to do, if no node will come any more; None while there is hope. The end of a good job is no failure."""
        if self.state in _ENDED_BADLY:
            return _ENDED_BADLY[self.state]
        if self.state == "PENDING":
            return next((hint for pattern, hint in _NEVER_STARTS if re.fullmatch(pattern, self.reason)), None)
        return None


def batch_script(cluster: Slurm, command: str, key_file: str) -> str:
    """The script of a job that runs `command` once on each of its hosts.

    The values of `cluster` were checked when it was made: none has a blank, a quote or a newline.
    """
    cpus = cluster.cpus or cluster.workers
    asked = [(name, getattr(cluster, name)) for name in ("partition", "account", "qos", "time")]
    options = [
        f"--nodes={cluster.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={cpus}" if cpus else "--exclusive",
        *(f"--{name}={value}" for name, value in asked if value),
        "--no-kill",  # a lost host costs its own node, not the job
        "--requeue",  # also after we have left a host that Slurm wanted back
        *([f"--signal=USR2@{NOTICE_S}"] if _is_long(cluster.time) else []),  # to the nodes, before the time is over
        "--open-mode=append",  # a job that is requeued goes on writing
        *cluster.extra,
    ]
    steps = [
        "srun",
        f"--nodes={cluster.nodes}",
        f"--ntasks={cluster.nodes}",
        "--ntasks-per-node=1",
        # srun does not take this over from the job.
        *([f"--cpus-per-task={cpus}"] if cpus else []),
        "--cpu-bind=none",
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--label",
        "--input=none",
    ]
    lines = ["#!/bin/sh", *(f"#SBATCH {option}" for option in options), ""]
    lines += [f"{' '.join(steps)} sh -c {shlex.quote(_TASK)} node {command}", "code=$?"]
    lines += [f'[ $code != {_LEFT} ] || ! scontrol requeue "$SLURM_JOB_ID" || exit 0']
    # The keys are of no use after this run, also if the head is no longer there to remove them.
    lines += [f"rm -f -- {shlex.quote(key_file)}", "exit $code"]
    return "\n".join(lines) + "\n"


def _is_long(time: str) -> bool:
    """Whether a job has time for a notice: one that gets it at its start would requeue itself for ever."""
    if not time or not time[0].isdigit():
        return True
    days, _, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    # As Slurm reads it: days-hours:minutes:seconds, hours:minutes:seconds, minutes:seconds, minutes.
    units = (3600, 60, 1) if days or len(parts) == 3 else (60, 1)
    seconds = int(days or 0) * 86400 + sum(part * unit for part, unit in zip(parts, units, strict=False))
    return seconds >= 5 * NOTICE_S


def submit_environment(environ: Mapping[str, str], cluster: Slurm) -> dict[str, str]:
    """The environment for sbatch, which the job inherits.

    Variables of sbatch win over the lines of a script, so those that would change what was asked for are left out; the
    user's defaults stay where nothing was asked for. So are the traces of a job in which the head itself runs.
    """
    kept = set(_KEPT) | {name for name, field in _DEFAULTS.items() if not getattr(cluster, field)}
    ours = ("SLURM_", "SBATCH_")
    return {name: value for name, value in environ.items() if not name.startswith(ours) or name in kept}


def query_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for the programs that ask and cancel, without the user's own taste in what they show."""
    return {name: value for name, value in environ.items() if not name.startswith(_TASTES)} | {"LC_ALL": "C"}


def parse_job_id(output: str) -> JobId | None:
    r"""The id in the answer of `sbatch --parsable`, after whatever else it wrote.

    Example:
        >>> parse_job_id("warning: no memory was asked for\n12;alpha\n")
        JobId(number='12', cluster='alpha')
    """
    for line in reversed(output.splitlines()):
        found = next(filter(None, (re.fullmatch(form, line.strip()) for form in _ID_FORMS)), None)
        if found:
            return JobId(found[1], found[2] or "")
    return None


def parse_squeue(output: str) -> JobState | None:
    """The answer of `squeue -h -o '%T|%r'`; None if the job is no longer in the queue."""
    for line in output.splitlines():
        found = re.fullmatch(r"\s*([A-Z_]+)\|(.*)", line)
        if found:
            return _state(found[1], found[2])
    return None


def parse_scontrol(output: str) -> JobState | None:
    """The answer of `scontrol -o show job`; None if it has none."""
    state = re.search(r"\bJobState=([A-Z_]+)", output)
    if not state:
        return None
    reason = re.search(r"\bReason=(.*?)(?: Dependency=|\n|$)", output)
    code = re.search(r"\bExitCode=([0-9]+:[0-9]+)", output)
    return _state(state[1], reason[1] if reason else "", code[1] if code else "")


def parse_sacct(output: str) -> JobState | None:
    """The answer of `sacct -n -X -P -o State,ExitCode`; None if it has none."""
    for line in output.splitlines():
        found = re.match(r"\s*([A-Z_]+)(?: by [^|]*)?\+?(?:\|([0-9]+:[0-9]+))?", line)
        if found:
            return _state(found[1], "", found[2] or "")
    return None


def is_unknown_job(words: str) -> bool:
    """Whether an error means that the job has left the queue, rather than that Slurm does not answer."""
    return "Invalid job id" in words


def _state(state: str, reason: str, code: str = "") -> JobState:
    said = "" if reason.strip() in ("None", "(null)") else reason.strip()
    if code and code != "0:0":
        said = f"{said}, exit code {code}" if said else f"exit code {code}"
    return JobState(state, said)
