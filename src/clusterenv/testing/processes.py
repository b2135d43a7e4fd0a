"""Processes of a cluster on this host: found, killed, stopped, let go on; by hand, or by a nemesis on a timetable."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from clusterenv.errors import ConfigError, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

_FORK_SERVER, _NODE = "clusterenv.node.forkserver", ("-m\0clusterenv\0node\0", "clusterenv\0node\0")
DEEDS = ("kill", "stop")
_END_S = 30.0
_LOOK_S = 0.05
_PR_SET_CHILD_SUBREAPER = 36


def workers_of(root: int | None = None) -> list[int]:
    """The worker processes that a process has started, also through nodes on this host. None means this process.

    Example:
        >>> workers_of()
        []
    """
    return _find(root, lambda line, parent, grandparent: _FORK_SERVER in parent and _FORK_SERVER not in grandparent)


def nodes_of(root: int | None = None) -> list[int]:
    """The node processes on this host that a process has started. None means this process."""
    return _find(root, lambda line, parent, grandparent: any(words in line for words in _NODE))


def adopt_orphans() -> None:
    """Become the parent of every process below this one whose own parent ends, for good.

    Without it the workers of a node that is killed belong to init from then on, and `workers_of` would not see that
    they are left. They stay in the list of processes until this one ends, since nobody asks how they ended.
    """
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError("this system has no PR_SET_CHILD_SUBREAPER")


def left_behind(limit_s: float) -> list[int]:
    """The workers and nodes of this process that have not ended within the limit.

    Example:
        >>> left_behind(1.0)
        []
    """
    end = time.monotonic() + limit_s
    while (left := [*workers_of(), *nodes_of()]) and time.monotonic() < end:
        time.sleep(_LOOK_S)
    return left


def kill(pid: int) -> bool:
    """SIGKILL; False if there is no such process any more."""
    return _send(pid, signal.SIGKILL)


def stop(pid: int) -> bool:
    """SIGSTOP: the process stands still, as under a debugger; False if there is no such process any more."""
    return _send(pid, signal.SIGSTOP)


def cont(pid: int) -> bool:
    """SIGCONT: a stopped process goes on; False if there is no such process any more."""
    return _send(pid, signal.SIGCONT)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process stands still within this block, and goes on afterwards whatever happens."""
    stop(pid)
    try:
        yield
    finally:
        cont(pid)


class Deed(NamedTuple):
    """What a nemesis has done.

    Attributes:
        at_s: seconds after it began.
        deed: "kill" or "stop".
        pid: to which process.
        seconds: how long it was stopped.
    """

    at_s: float
    deed: str
    pid: int
    seconds: float


class Nemesis:
    """Kills and stops processes on a seeded timetable, in a thread of its own, until it is closed.

    Args:
        targets: the processes that it may choose from, asked each time; a function that another thread may call, such
            as `workers_of`.
        seed: of the timetable.
        every_s: the shortest and the longest pause between two deeds.
        stop_s: the shortest and the longest time that a process is stopped.
        deeds: what it does, "kill" and "stop"; one that is named twice is done twice as often.

    Attributes:
        done: what it has done so far.

    Example:
        >>> with Nemesis(list, seed=1, every_s=(0.01, 0.02)) as nemesis:  # nobody to hurt
        ...     nemesis.done
        []
    """

    def __init__(
        self,
        targets: Callable[[], Sequence[int]],
        seed: int,
        *,
        every_s: tuple[float, float] = (0.5, 2.0),
        stop_s: tuple[float, float] = (0.05, 3.0),
        deeds: Sequence[str] = DEEDS,
    ) -> None:
        for name, (least, most) in (("every_s", every_s), ("stop_s", stop_s)):
            if not 0 < least <= most < threading.TIMEOUT_MAX:
                raise ConfigError(f"{name}={(least, most)} must be two numbers of seconds, the smaller one first.")
        for deed in deeds:
            if deed not in DEEDS:
                raise ConfigError(unknown("deed", deed, DEEDS))
        if not deeds:
            raise ConfigError("deeds=() leaves nothing to do.")
        self._targets, self._every_s, self._stop_s, self._deeds = targets, every_s, stop_s, list(deeds)
        self._dice = random.Random(seed)  # noqa: S311 (a timetable, no secret)
        self.done: list[Deed] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nemesis", daemon=True)

    def __enter__(self) -> Nemesis:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        began = time.monotonic()
        while not self._over.wait(self._dice.uniform(*self._every_s)):
            deed, seconds = self._dice.choice(self._deeds), self._dice.uniform(*self._stop_s)
            chosen = self._dice.random()
            pids = sorted(self._targets())
            if not pids:
                continue
            pid = pids[int(chosen * len(pids))]
            if deed == "kill":
                done = kill(pid)
            else:
                with stopped(pid):
                    done = not self._over.wait(seconds)
            if done:
                self.done.append(Deed(time.monotonic() - began, deed, pid, seconds if deed == "stop" else 0.0))


def _find(root: int | None, wanted: Callable[[str, str, str], bool]) -> list[int]:
    """The processes under `root` whose command line, with those of its parent and grandparent, is wanted."""
    parents: dict[int, int] = {}
    lines: dict[int, str] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError, IndexError, ValueError):  # it has ended meanwhile
                state, parent = _stat(int(name))
                if state != "Z":
                    parents[int(name)], lines[int(name)] = parent, _command_line(int(name))
    root = os.getpid() if root is None else root
    return [pid for pid in sorted(parents) if _below(pid, root, parents) and wanted(*_ancestry(pid, parents, lines))]


def _ancestry(pid: int, parents: dict[int, int], lines: dict[int, str]) -> tuple[str, str, str]:
    parent = parents.get(pid, 0)
    return lines.get(pid, ""), lines.get(parent, ""), lines.get(parents.get(parent, 0), "")


def _below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == root:
            return True
    return False


def _stat(pid: int) -> tuple[str, int]:
    """The state of a process, and its parent."""
    with open(f"/proc/{pid}/stat") as file:
        words = file.read().rpartition(")")[2].split()  # a name may have blanks and brackets
    return words[0], int(words[1])


def _command_line(pid: int) -> str:
    with open(f"/proc/{pid}/cmdline", errors="replace") as file:
        return file.read()


def _send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
