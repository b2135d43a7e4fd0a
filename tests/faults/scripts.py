"""A head in another process: a script in a session of its own, watched from here."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import psutil

from tests.faults.kit import LIMIT_S, ended
from tests.zoo import wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

# What a script may use without a word: counting environments, `say` to speak to the test, `meet` to speak and wait for
# its answer, and `folder` to leave notes in.
_PROLOGUE = """
import os, sys, time, pathlib, clusterenv
from clusterenv import ClusterEnv, Timeouts
from tests.zoo import counting, CountingEnv, misbehave
from tests.faults.kit import GatedEnv, OnceEnv
folder = pathlib.Path(sys.argv[1])
def say(*words):
    print(*words, flush=True)
def meet(word):
    say(word)
    sys.stdin.readline()
"""


class Head:
    """A running script."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.family: list[psutil.Process] = []

    def hear(self, word: str) -> None:
        """Wait for the script to say a word; take note of the processes that it has then."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(LIMIT_S)
        assert line.strip() == word, f"the script said {line!r}, and on stderr: {self.complaints()}"
        self.note_family()

    def answer(self) -> None:
        """Let a script go on that waits in `meet`."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def note_family(self) -> None:
        """Remember its present children and theirs."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        self.family += [child for child in found if child not in self.family]

    def has_family(self, count: int) -> None:
        """Wait until it has so many children and theirs, and remember them."""
        script = psutil.Process(self.process.pid)
        wait_until(lambda: len(script.children(recursive=True)) == count, LIMIT_S)
        self.note_family()

    def interrupt(self) -> None:
        """Ctrl-C at its terminal: SIGINT to its process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def interrupt_to_the_end(self) -> int:
        """Ctrl-C until it has ended; how often that took.

        Python drops an interrupt that falls into a destructor, and says so ("Exception ignored in"): once more is fine.
        """
        for presses in (1, 2):
            self.interrupt()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(LIMIT_S)
                return presses
        raise AssertionError("two interrupts did not end it")

    def everybody_is_gone(self) -> None:
        """Wait until neither the script nor any child that was seen lives."""
        self.process.wait(LIMIT_S)
        wait_until(
            lambda: all(ended(child) for child in self.family),
            LIMIT_S,
            lambda: f"still there: {[child for child in self.family if not ended(child)]}",
        )

    def complaints(self) -> str:
        """What it wrote to stderr, once it has ended."""
        if self.process.poll() is None:
            return "(it still runs)"
        assert self.process.stderr is not None
        return self.process.stderr.read()


@contextlib.contextmanager
def head(script: str, tmp_path: pathlib.Path, *arguments: str) -> Iterator[Head]:
    """Run a script as a file of its own, in a session of its own."""
    path = tmp_path / "script.py"
    path.write_text(_PROLOGUE + textwrap.dedent(script))
    with running([os.fspath(path), os.fspath(tmp_path), *arguments], tmp_path) as started:
        yield started


@contextlib.contextmanager
def running(command: list[str], cwd: pathlib.Path, stdin: str | None = None) -> Iterator[Head]:
    """Run Python with these arguments; end it and what it started if the test does not."""
    process = subprocess.Popen(
        [sys.executable, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    with process:
        started = Head(process)
        try:
            if stdin is not None and process.stdin is not None:
                process.stdin.write(stdin)
                process.stdin.close()
            yield started
        finally:
            for child in [*started.family, psutil.Process(process.pid)] if process.poll() is None else started.family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
