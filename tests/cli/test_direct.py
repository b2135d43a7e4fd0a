"""Text straight to a descriptor: all of it, however little the descriptor takes at a time."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

from clusterenv.cli.direct import DirectText, direct_stdout

if TYPE_CHECKING:
    import pathlib

    import pytest


def test_all_of_it_is_written_although_little_is_taken_at_a_time(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    with (tmp_path / "file").open("wb") as file:
        stream = DirectText(file.fileno())
        assert stream.write("é and \udc80 go by\n") == 14
        assert (stream.fileno(), stream.isatty(), stream.writable()) == (file.fileno(), False, True)
    assert (tmp_path / "file").read_bytes() == "é and ? go by\n".encode()


def test_what_was_said_before_comes_first(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "file").open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        sys.stdout.write("first\n")
        direct_stdout().write("second\n")
    assert (tmp_path / "file").read_text() == "first\nsecond\n"


def test_an_output_that_is_no_file_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    assert direct_stdout() is stream
