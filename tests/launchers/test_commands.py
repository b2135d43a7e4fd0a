"""Programs with a limit, and what they wrote."""

from __future__ import annotations

import os
import tempfile
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from clusterenv.launchers.commands import Answer, Command, answer_of
from clusterenv.launchers.tail import TAIL_BYTES, Tail, file_tail, last_lines, shown
from tests.launchers.kit import LIMIT_S, wait_gone
from tests.zoo import wait_until

if TYPE_CHECKING:
    import pathlib


def test_a_program_answers() -> None:
    answer = answer_of(["sh", "-c", "echo out; echo err >&2; exit 3"], LIMIT_S)
    assert answer == Answer(3, "out\n", "err\n")
    assert answer.words == "exit code 3: err out"
    assert answer_of(["true"], LIMIT_S).words == "it said nothing"


@pytest.mark.threat("T16")
def test_words_are_never_read_by_a_shell(tmp_path: pathlib.Path) -> None:
    assert answer_of(["echo", f"$(touch {tmp_path}/x)", "; ls"], LIMIT_S).out == f"$(touch {tmp_path}/x) ; ls\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["/no/such/program"], ["/"], ["nul\0"]])
def test_a_program_that_cannot_be_run_is_told(words: list[str]) -> None:
    answer = answer_of(words, LIMIT_S)
    assert (answer.code, answer.started) == (None, False)
    assert "cannot be run" in answer.words


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: pathlib.Path) -> None:
    command = Command(["sh", "-c", f"sleep 1000 & echo $! > {tmp_path}/pid; sleep 1000"], 5.0)
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"), LIMIT_S)
    assert command.poll() is None
    answer = command.wait()
    assert (answer.code, answer.words) == (None, "sh did not answer within 5 s")
    wait_gone(int((tmp_path / "pid").read_text()))
    command.kill()
    assert command.poll() is answer


def test_an_interrupt_leaves_nothing_running(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    before = set(psutil.Process().children())
    command = Command(["sleep", "1000"], LIMIT_S)
    (child,) = set(psutil.Process().children()) - before
    monkeypatch.setattr(time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        command.wait()
    monkeypatch.undo()
    wait_gone(child.pid)


def test_a_program_asks_nobody() -> None:
    assert answer_of(["cat"], LIMIT_S).code == 0, "its standard input is empty"


# Tails.


@pytest.mark.threat("T20")
def test_control_characters_are_not_shown() -> None:
    assert shown("\x1b[31mred\x1b[0m \x1b]0;title\x07bell\x07 tab\t\r\nnul\0 \x9b31m") == "red bell tab\t\nnul 31m"
    assert shown(b"\xff\xfe half") == "\ufffd\ufffd half"


def test_the_tail_of_a_file_starts_with_a_line_and_leaves_the_position_alone() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"".join(b"line %06d\n" % number for number in range(5000)))
        file.flush()
        os.lseek(file.fileno(), 7, os.SEEK_SET)
        text = file_tail(file.fileno())
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 7
    assert text.startswith("line ")
    assert text.endswith("line 004999\n")
    assert TAIL_BYTES - 20 < len(text) <= TAIL_BYTES


def test_a_tail_in_memory_is_bounded() -> None:
    tail = Tail()
    for _ in range(100):
        tail.add(b"x" * 1000)
    tail.add(b"end")
    assert len(tail.text) == TAIL_BYTES
    assert tail.text.endswith("xend")


def test_last_lines_leaves_blanks_out() -> None:
    assert last_lines("a\n\nb\n  \nc\n", 2) == "b\nc"
