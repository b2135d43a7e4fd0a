"""Text that goes straight to a descriptor."""

from __future__ import annotations

import io
import os
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
    """

    encoding = "utf-8"

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, text: str) -> int:
        """Write all of it, however often that takes."""
        left = memoryview(text.encode(self.encoding, "replace"))
        while left:
            left = left[os.write(self._descriptor, left) :]
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


def direct_stdout() -> TextIO:
    """Standard output for a thread of its own; what stands for it if it is no file."""
    stream: Any = sys.stdout
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):  # in a test or a notebook, or closed
        return cast("TextIO", stream)
    stream.flush()
    return cast("TextIO", DirectText(descriptor))
