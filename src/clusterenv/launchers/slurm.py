"""Nodes as one job of a Slurm cluster.

The keys lie in a private file of a fresh private folder that all hosts see. Slurm's programs are asked from lists of
words, each with a limit, and never more often than every few seconds; a question that takes long is left to run while
we go on.
"""

from __future__ import annotations

import logging
import os
import pathlib
import re
import shlex
import shutil
import tempfile
import time
from typing import TYPE_CHECKING

from clusterenv.errors import LaunchError
from clusterenv.launchers.commands import Answer, Command, answer_of
from clusterenv.launchers.slurm_words import (
    JobId,
    JobState,
    batch_script,
    is_unknown_job,
    parse_job_id,
    parse_sacct,
    parse_scontrol,
    parse_squeue,
    query_environment,
    submit_environment,
)
from clusterenv.launchers.tail import file_tail, last_lines
from clusterenv.private import write_private

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterenv.clusters import Slurm
    from clusterenv.launchers.base import NodeJob

_log = logging.getLogger(__name__)

COMMAND_S = 30.0
# The controller serves everybody: once in this time is often enough.
LOOK_S = 2.0
_CLOSE_LOOK_S = 0.1
# Of a job that was preempted, or whose host failed: how long Slurm may need to say that it is in the queue again.
RETURN_S = 15.0
# A job that is not cancelled costs its user money: it is worth some time, however short the limit.
_CANCEL_S = 5.0
DEFAULT_FOLDER = "~/.clusterenv"


class SlurmLauncher:
    """Starts the nodes of a `Slurm` cluster."""

    def __init__(self, cluster: Slurm) -> None:
        self._cluster = cluster
        self._folder: pathlib.Path | None = None
        self._started = False
        self._maybe_there = False  # whether a job of ours may be with Slurm
        self._job: JobId | None = None
        self._watch: _Watch | None = None
        self._missed = False  # whether the head waits for a node to come back

    @property
    def nodes(self) -> int:
        """How many nodes it starts."""
        return self._cluster.nodes

    def script(self, job: NodeJob) -> str:
        """The script of the job. The folder in it is made anew for every run."""
        folder = pathlib.Path(self._cluster.folder or DEFAULT_FOLDER) / "slurm-NEW"
        return batch_script(self._cluster, job.line(str(folder / "keys")), str(folder / "keys"))

    def start(self, job: NodeJob) -> None:
        """Write the keys and the script, and hand the job in."""
        if self._started:
            raise LaunchError("this job was handed in before. Make a new launcher for a new one.")
        self._started = True
        try:
            folder = self._folder = _fresh_folder(self._cluster.folder)
            keys = folder / "keys"
            write_private(keys, job.keys)
            write_private(folder / "job.sh", batch_script(self._cluster, job.line(str(keys)), str(keys)))
            self._job = self._submit(folder)
            self._watch = _Watch(self._job)
        except BaseException:
            self.close(COMMAND_S)
            raise

    def restart(self, node: int) -> bool:
        """A node that was killed is started again by its shell, and all of them by Slurm if it requeues the job."""
        self._missed = True
        return self._watch is not None and not self._watch.look().ended

    def status(self) -> str:
        """The job and its state: "job 12: PENDING (Priority)"."""
        if self._watch is None:
            return "no job"
        return f"{self._job}: {self._watch.look()}"

    def failure(self) -> str | None:
        """Why the job will give no more nodes, in Slurm's words and with the last lines it wrote."""
        if self._watch is None:
            return None
        state = self._watch.look()
        hint = state.hopeless
        if hint is None and self._missed and state.ended:
            hint = "Its nodes have left for good."
        if hint is None:
            return None
        words = last_lines("\n".join(self.logs().values()))
        return " ".join(filter(None, (f"{self._job} is {state}.", hint, f"It wrote: {words}" if words else "")))

    def logs(self) -> dict[str, str]:
        """The last lines that each node wrote, by the number of its task, and those of the job itself."""
        if self._folder is None:
            return {}
        try:
            with (self._folder / "output").open("rb") as file:
                output = file_tail(file.fileno())
        except OSError:  # the job has not started, or its folder is slow to show
            return {}
        return _by_task(output)

    def close(self, limit_s: float) -> None:
        """Cancel the job, wait for its end within the limit, and remove the folder."""
        folder, self._folder = self._folder, None
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        if folder is not None and self._maybe_there:
            self._cancel(folder.name, limit_s)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
            if folder.exists():
                _log.warning("slurm: %s could not be removed. Remove it: it holds the keys of this run.", folder)

    def _submit(self, folder: pathlib.Path) -> JobId:
        # What differs from run to run is told here: in a line of the script a path with a blank would need quotes,
        # which sbatch reads by rules of its own. In a file name of Slurm, a percent sign is doubled.
        words = ["sbatch", "--parsable", f"--job-name=clusterenv-{folder.name}"]
        words += [f"--output={str(folder / 'output').replace('%', '%%')}", str(folder / "job.sh")]
        self._maybe_there = True
        answer = answer_of(words, COMMAND_S, submit_environment(os.environ, self._cluster))
        self._maybe_there = answer.started and not answer.code
        if not answer.started:
            raise LaunchError(f"{answer.words}. Run the head where Slurm's programs are, such as a login node.")
        if answer.code is None:
            raise LaunchError(f"the job could not be handed in: {answer.words}.")
        if answer.code:
            raise LaunchError(f"sbatch refused the job: {answer.words}")
        job = parse_job_id(answer.out)
        if job is None:
            raise LaunchError(f"sbatch told no job id: {answer.words}")
        return job

    def _cancel(self, name: str, limit_s: float) -> None:
        """Cancel the job, by its name if its id never came; and wait until it has left the queue."""
        job, end = self._job, time.monotonic() + limit_s
        mine = job.words if job else [f"--name=clusterenv-{name}", f"--user={os.getuid()}"]
        answer = _ask(["scancel", *mine], max(limit_s, _CANCEL_S))
        if answer.code != 0:
            if not is_unknown_job(answer.words):
                by_hand = shlex.join(["scancel", *mine])
                _log.warning("slurm: the job may still run (%s). End it: %s", answer.words, by_hand)
            return
        while job and parse_squeue(_ask(_squeue(job), _CANCEL_S).out):
            if time.monotonic() > end:
                _log.warning("slurm: %s is cancelled and still ending after %.0f s", job, limit_s)
                return
            time.sleep(_CLOSE_LOOK_S)


class _Watch:
    """Asks Slurm how a job fares, without waiting for the answer: squeue, then scontrol, then sacct if there is one."""

    def __init__(self, job: JobId) -> None:
        self._job = job
        self._state = JobState("SUBMITTED")
        self._silent = ""
        self._steps: tuple[tuple[list[str], Callable[[str], JobState | None]], ...] = (
            (_squeue(job), parse_squeue),
            (["scontrol", "-o", *_first(job), "show", "job", job.number], parse_scontrol),
            (["sacct", "-n", "-X", "-P", "-o", "State,ExitCode", *_first(job), "-j", job.number], parse_sacct),
        )
        self._step = 0
        self._asked: Command | None = None
        self._next = 0.0
        self._ended_s: float | None = None  # since when it seems to have ended

    def look(self) -> JobState:
        """What is known by now."""
        if self._asked is not None and (answer := self._asked.poll()) is not None:
            self._asked = None
            self._heard(answer)
        if self._asked is None and not self._over() and time.monotonic() >= self._next:
            self._asked = Command(self._steps[self._step][0], COMMAND_S, query_environment(os.environ))
            self._next = time.monotonic() + LOOK_S
        if self._state.may_return and not self._over():
            return JobState("REQUEUED", f"it was {self._state}")
        return JobState(self._state.state, self._silent) if self._silent else self._state

    def _over(self) -> bool:
        """Whether it has ended for good. Slurm may need a moment to put a job back into the queue."""
        if not self._state.ended:
            self._ended_s = None
            return False
        if self._ended_s is None:
            self._ended_s = time.monotonic()
        return not self._state.may_return or time.monotonic() > self._ended_s + RETURN_S

    def close(self) -> None:
        """Ask no more."""
        if self._asked is not None:
            self._asked.kill()

    def _heard(self, answer: Answer) -> None:
        """Take an answer, or go on to the next program if the job has left the queue."""
        words, parse = self._steps[self._step]
        state, self._silent = parse(answer.out) if answer.code == 0 else None, ""
        last = self._step == len(self._steps) - 1
        gone = answer.code == 0 or is_unknown_job(answer.words)
        if state is not None:
            self._state, self._step = state, 0
        elif last:
            self._state = JobState("FAILED", "it has left the queue, and Slurm no longer tells how it ended")
        elif gone:
            self._step += 1
            self._next = 0.0
        else:  # Slurm does not answer, which says nothing about the job
            self._silent, self._step = f"{words[0]}: {answer.words}", 0


def _ask(words: list[str], limit_s: float) -> Answer:
    return answer_of(words, limit_s, query_environment(os.environ))


def _squeue(job: JobId) -> list[str]:
    return ["squeue", "-h", *_first(job), "-j", job.number, "-o", "%T|%r"]


def _first(job: JobId) -> list[str]:
    return job.words[:-1]


def _fresh_folder(base: str) -> pathlib.Path:
    """A new folder that only we can enter."""
    where = pathlib.Path(base or DEFAULT_FOLDER).expanduser().absolute()
    if not str(where).isprintable() or "\\" in str(where):
        raise LaunchError(f"folder={str(where)[:80]!r} has characters that Slurm takes for others. Choose another.")
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        return pathlib.Path(tempfile.mkdtemp(prefix="slurm-", dir=where))
    except OSError as error:
        raise LaunchError(f"folder={str(where)!r} cannot be used: {error}. Set folder= to another.") from error


def _by_task(output: str) -> dict[str, str]:
    """Lines by the label that srun puts before them."""
    found: dict[str, list[str]] = {}
    for line in output.splitlines():
        label = re.match(r" *([0-9]{1,6}): ", line)
        name, rest = (f"node {label[1]}", line[label.end() :]) if label else ("job", line)
        found.setdefault(name, []).append(rest)
    return {name: "\n".join(lines) + "\n" for name, lines in found.items()}
