"""Text straight to a descriptor: all of it, however little the descriptor takes at a time."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from clusterenv.cli.direct import DirectText, direct_stdout, tell

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

LIMIT_S = 30.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The ends of a pipe whose writer does not wait by itself."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    yield reads, writes
    os.close(writes)
    os.close(reads)


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
        direct = direct_stdout()
        assert direct is not None
        direct.write("second\n")
    assert (tmp_path / "file").read_text() == "first\nsecond\n"


def test_an_output_that_is_no_file_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    assert direct_stdout() is stream


def test_a_pipe_that_takes_nothing_for_now_is_waited_for(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, writes = pipe
    text, is_full, read, wait = "x" * 1_000_000, threading.Event(), bytearray(), select.select

    def full(*arguments: Any) -> Any:
        is_full.set()
        return wait(*arguments)

    def reader() -> None:
        assert is_full.wait(LIMIT_S)
        while len(read) < len(text):
            read.extend(os.read(reads, 65536))

    monkeypatch.setattr(select, "select", full)
    thread = threading.Thread(target=reader, daemon=True)
    thread.start()
    assert DirectText(writes).write(text) == len(text)
    thread.join(LIMIT_S)
    assert read.decode() == text


def test_no_output_is_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert direct_stdout() is None
    tell("nobody hears it")


def test_a_line_for_nobody_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        for limit_s in (None, 1.0):
            tell("nobody hears it", limit_s)


def test_a_last_line_does_not_wait_for_long(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe[1], b"x" * 4096)
    with open(pipe[1], "w", closefd=False) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        tell("too late", 0.0)
