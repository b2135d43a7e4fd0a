"""The last lines of what nodes wrote, made safe to show."""

from __future__ import annotations

import os
import re

# Enough for a traceback, and little enough for a screen and a message.
TAIL_BYTES = 16 * 1024
LAST_LINES = 8

# Escape sequences first, whole; then every other control character but tab and newline.
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)?|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def shown(output: bytes | str) -> str:
    """Foreign output as text without control characters, which could steer the terminal of the reader."""
    text = output.decode(errors="replace") if isinstance(output, bytes) else output
    return _CONTROLS.sub("", text.replace("\r\n", "\n"))


def file_tail(fd: int) -> str:
    """The end of an open file, from the start of a line. The position in the file, which writers share, stays."""
    size = os.fstat(fd).st_size
    start = max(size - TAIL_BYTES, 0)
    output = os.pread(fd, TAIL_BYTES, start)
    return shown(output if not start else output[output.find(b"\n") + 1 :])


def last_lines(text: str, count: int = LAST_LINES) -> str:
    """The last lines that are not blank."""
    return "\n".join([line for line in text.splitlines() if line.strip()][-count:])


class Tail:
    """The end of a stream, kept in memory. One thread adds, any may look."""

    def __init__(self) -> None:
        self._kept = b""

    def add(self, output: bytes) -> None:
        """Go on writing."""
        self._kept = (self._kept + output)[-TAIL_BYTES:]

    @property
    def text(self) -> str:
        """What is kept, safe to show."""
        return shown(self._kept)
