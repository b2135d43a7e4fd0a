"""Signals that end a command are handled as Ctrl-C is: it cancels its jobs, removes its keys, saves what it has."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

from clusterenv.cli.exits import Terminated

if TYPE_CHECKING:
    from collections.abc import Iterator

# A scheduler takes the machine back; the terminal is gone; Slurm warns that the time of a job ends soon.
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
# These may come more than once: the kernel and the shell both tell that the terminal is gone, and Slurm warns every
# process that it knows of. The second must not break into the cleaning up.
_REPEATED = (signal.SIGHUP, signal.SIGUSR2)


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Within this, such a signal raises Terminated. One that was ignored at the start stays so, as nohup wants it."""
    if threading.current_thread() is not threading.main_thread():  # tests; signals belong to the main thread
        yield
        return
    before = {number: signal.getsignal(number) for number in _ENDING}
    mine = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in mine:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, before[number])


def _stop(number: int, frame: object) -> None:
    for repeated in _REPEATED:
        signal.signal(repeated, signal.SIG_IGN)
    raise Terminated(number)
