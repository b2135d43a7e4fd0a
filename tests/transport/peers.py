"""What the other process of a transport test runs. Light imports only: every test starts one of these."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def other_process(program: str, *arguments: int, fds: tuple[int, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    """Run a program in another interpreter with these descriptors; it must end by itself, without an error."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        pass_fds=fds,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise
        if process.stdin is not None:
            process.stdin.close()
        assert process.wait(60) == 0
