"""Runs on terminals that show little: narrow, dumb, without colours, without UTF-8."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from typing import TYPE_CHECKING

import pytest

from tests.cli.kit import SMALL

if TYPE_CHECKING:
    import pathlib

_COLOUR = re.compile(rb"\x1b\[[0-9;]*[39][0-7][0-9;]*m")
_MAIN = "import sys; from clusterenv.cli.main import main; sys.exit(main())"


def shown(folder: pathlib.Path, columns: int, **environment: str) -> bytes:
    """What a small run writes to a terminal of this width."""
    head, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, "-c", _MAIN, "train", "ppo", *SMALL]
    usual = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "TERM")}
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**usual, "TERM": "xterm", **environment},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    ) as run:
        os.close(terminal)
        text = b""
        while chunk := _read(head):
            text += chunk
        os.close(head)
        assert run.wait(60) == 0, text.decode(errors="replace")
    return text


def _read(head: int) -> bytes:
    try:
        return os.read(head, 65536)
    except OSError:  # the other side was closed
        return b""


def test_in_colour_if_nothing_speaks_against_it(tmp_path: pathlib.Path) -> None:
    """Without this the tests below could not fail."""
    assert _COLOUR.search(shown(tmp_path, 100))


@pytest.mark.parametrize("columns", [20, 1])
def test_narrow(tmp_path: pathlib.Path, columns: int) -> None:
    assert b"Traceback" not in shown(tmp_path, columns)


def test_without_colours(tmp_path: pathlib.Path) -> None:
    text = shown(tmp_path, 100, NO_COLOR="1")
    assert b"return" in text
    assert not _COLOUR.search(text)


def test_dumb(tmp_path: pathlib.Path) -> None:
    text = shown(tmp_path, 100, TERM="dumb")
    assert b"return" in text
    assert b"\x1b" not in text


def test_without_utf_8(tmp_path: pathlib.Path) -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    text = shown(tmp_path, 100, **plain)
    assert b"return" in text
    assert text.isascii()
