"""Text that goes straight to a descriptor."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from typing import TYPE_CHECKING, TextIO, cast

if TYPE_CHECKING:
    from typing import Any


class DirectText(io.TextIOBase):
    """A stream without a buffer, and so without a lock.

    A thread that is stuck in a write to `sys.stdout` holds the lock of its buffer. Whoever else wants to say something
    then waits for that lock where no signal reaches it, and the interpreter cannot even end.

    Args:
        descriptor: of an open file, which stays open.
        encoding: which characters whoever reads it can show.
    """

    encoding = "utf-8"

    def __init__(self, descriptor: int, encoding: str = "utf-8") -> None:
        self._descriptor = descriptor
        self.encoding = encoding  # rich looks at it, and draws with plain characters where there are no others

    def write(self, text: str) -> int:
        """Write all of it, however often that takes."""
        left = memoryview(text.encode(self.encoding, "replace"))
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:  # whoever gave us this pipe does not want to wait for it, but we do
                select.select([], [self._descriptor], [])
        return len(text)

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        """It is."""
        return True


def direct_stdout() -> TextIO | None:
    """Standard output for a thread of its own; what stands for it if it is no file; None if there is none (`>&-`)."""
    stream: Any = sys.stdout
    if stream is None:
        return None
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):  # in a test or a notebook, or closed
        return cast("TextIO", stream)
    stream.flush()
    return cast("TextIO", DirectText(descriptor, stream.encoding))


def tell(text: str, limit_s: float | None = None) -> None:
    """Write a line to stdout, unless nobody can read it there: how a run ends does not depend on that.

    Args:
        text: the line.
        limit_s: how long to wait for who does not read; None for as long as it takes.
    """
    # A stream of ours: what cannot be written would stay in the buffer of `sys.stdout`, and fail again at the end.
    with contextlib.suppress(OSError):
        stream = direct_stdout()
        if stream is not None and (limit_s is None or _takes(stream, limit_s)):
            stream.write(f"{text}\n")
            stream.flush()


def _takes(stream: TextIO, limit_s: float) -> bool:
    try:
        return bool(select.select([], [stream], [], limit_s)[1])
    except (OSError, ValueError):  # no file, as in a test: it takes everything
        return True
