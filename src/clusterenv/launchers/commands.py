"""Programs of an engine, such as sbatch: run from a list of words, never by a shell, and never longer than a limit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterenv.launchers.tail import file_tail, last_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Answer:
    """How a program ended and what it wrote.

    Attributes:
        code: its exit code; None if it could not be started, or was ended at the limit.
        out: the end of its standard output.
        err: the end of its standard error, or our own words if there is no exit code.
        started: whether it ran at all.
    """

    code: int | None
    out: str
    err: str
    started: bool = True

    @property
    def words(self) -> str:
        """What it said, for a message."""
        said = " ".join(last_lines(f"{self.err}\n{self.out}").splitlines()) or "it said nothing"
        return said if not self.code else f"exit code {self.code}: {said}"


class Command:
    """A program that runs beside us. It writes into files, so that it never waits for us, nor we for its children."""

    def __init__(self, words: Sequence[str], limit_s: float, env: Mapping[str, str] | None = None) -> None:
        self._name, self._limit_s, self._end = words[0], limit_s, time.monotonic() + limit_s
        self._answer: Answer | None = None
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 (closed in `_finish`)
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._err,
                env=env,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self._finish(Answer(None, "", f"{self._name} cannot be run: {error}", started=False))

    def poll(self) -> Answer | None:
        """The answer; None while the program runs and has time left."""
        if self._answer is None and self._process.poll() is not None:
            out, err = file_tail(self._out.fileno()), file_tail(self._err.fileno())
            self._finish(Answer(self._process.returncode, out, err))
        elif self._answer is None and time.monotonic() > self._end:
            self.kill(f"{self._name} did not answer within {self._limit_s:.0f} s")
        return self._answer

    def wait(self) -> Answer:
        """The answer, within the limit."""
        try:
            while (answer := self.poll()) is None:
                time.sleep(_LOOK_S)
        except BaseException:  # Ctrl-C: nothing runs on
            self.kill("interrupted")
            raise
        return answer

    def kill(self, why: str = "it was ended") -> None:
        """End the program and its children, if it still runs."""
        if self._answer is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._finish(Answer(None, "", why))

    def _finish(self, answer: Answer) -> None:
        self._answer = answer
        self._out.close()
        self._err.close()


def answer_of(words: Sequence[str], limit_s: float, env: Mapping[str, str] | None = None) -> Answer:
    """Run a program to its end."""
    return Command(words, limit_s, env).wait()
