"""Exit codes, and the two ways to say something."""

from __future__ import annotations

import signal
import sys
import textwrap

from clusterenv.clusters import INSECURE
from clusterenv.errors import ClusterEnvError, ConfigError, GivenUp, LaunchError, WeightsError, WorkerLost

OK, FAILED, USAGE, NOT_STARTED, LOST, INTERRUPTED = 0, 1, 2, 3, 4, 130


class Terminated(KeyboardInterrupt):
    """SIGTERM, SIGHUP or SIGUSR2: handled as Ctrl-C is, with another exit code."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__()
        self.code = 128 + number  # as shells count


def code_of(error: ClusterEnvError) -> int:
    """What the shell is told about an error."""
    codes: list[tuple[type[ClusterEnvError], int]] = [
        (WeightsError, FAILED),  # what was typed was right, but the run has diverged
        (ConfigError, USAGE),
        (GivenUp, GivenUp.exit_code),
        (LaunchError, NOT_STARTED),
        (WorkerLost, LOST),
    ]
    return next((code for kind, code in codes if isinstance(error, kind)), FAILED)


def say(text: str) -> None:
    """Write a line to stdout."""
    print(text, flush=True)  # noqa: T201 (this is the command line)


def banner() -> str:
    """What nobody who typed --insecure shall overlook."""
    lines = textwrap.wrap(INSECURE, 76)
    edge = "!" * 80
    return "\n".join([edge, *(f"! {line:<76} !" for line in lines), edge])


def complain(text: str) -> None:
    """Write a line to stderr."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 (this is the command line)


def add_note(error: Exception, text: str) -> None:
    """Add what to do to an error, as `BaseException.add_note` does since Python 3.11."""
    error.__notes__ = [*notes_of(error), text]


def notes_of(error: Exception) -> list[str]:
    """What was added."""
    return list(getattr(error, "__notes__", ()))
