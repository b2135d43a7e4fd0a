"""Files that only their owner can read."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pathlib


def write_private(path: pathlib.Path, text: str) -> None:
    """Write a new file of mode 0600, to the disk. Never into one that is there, nor through a link.

    Raises:
        OSError: it cannot be made.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        os.fchmod(fd, 0o600)  # whatever the umask took away
        file.write(text.rstrip("\n") + "\n")
        file.flush()
        os.fsync(fd)  # hosts may read it over the network as soon as they are started


def holds(path: pathlib.Path, text: str) -> bool:
    """Whether there is a file of our own, which nobody else can read, with this text in it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        status = os.fstat(fd)
        private = stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
        wanted = (text.rstrip("\n") + "\n").encode()
        return private and os.read(fd, len(wanted) + 1) == wanted
    finally:
        os.close(fd)
