"""Signals that end a command: nothing is left behind, whoever sent them."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest

from clusterenv.cli.exits import Terminated
from clusterenv.cli.main import main
from clusterenv.cli.signals import stopped_by_signals
from tests.cli.kit import PROGRAM

if TYPE_CHECKING:
    import pathlib

ENDING = [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR2, 140)]
LIMIT_S = 60.0


def files_of(folder: pathlib.Path) -> list[pathlib.Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), *ENDING])
def test_a_doctor_that_is_told_to_end_leaves_no_keys(tmp_path: pathlib.Path, number: int, code: int) -> None:
    words = ["doctor", "--cluster", f"join:nodes=1,bind=127.0.0.1,token_file={tmp_path / 'token'}"]
    with subprocess.Popen([*PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as doctor:
        try:
            assert doctor.stderr is not None
            assert "waiting for 1 nodes" in doctor.stderr.readline()
            assert files_of(tmp_path) == [tmp_path / "token"]
            doctor.send_signal(number)
            _, err = doctor.communicate(timeout=LIMIT_S)
        finally:
            doctor.kill()
    assert doctor.returncode == code
    assert err.splitlines()[-1] == "Stopped."
    assert files_of(tmp_path) == []


@pytest.mark.parametrize("command", ["train", "plot", "eval", "bench", "doctor"])
@pytest.mark.parametrize(("number", "code"), ENDING)
def test_every_command_can_be_ended(monkeypatch: pytest.MonkeyPatch, command: str, number: int, code: int) -> None:
    def wait(arguments: list[str]) -> int:
        os.kill(os.getpid(), number)
        return 0

    before = signal.getsignal(number)
    monkeypatch.setattr("clusterenv.cli.main._commands", lambda: {command: wait})
    monkeypatch.setattr("clusterenv.cli.main.complain", lambda text: None)
    assert main([command]) == code
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("command", ["node", "join"])
def test_nodes_have_their_own_way(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    before, seen = signal.getsignal(signal.SIGTERM), []

    def look(arguments: list[str]) -> int:
        seen.append(signal.getsignal(signal.SIGTERM))
        return 0

    monkeypatch.setattr("clusterenv.cli.main._commands", lambda: {command: look})
    assert main([command]) == 0
    assert seen == [before]


@pytest.mark.parametrize("number", [number for number, _ in ENDING])
def test_what_was_ignored_at_the_start_stays_ignored(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with stopped_by_signals():
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR2])
def test_what_several_tell_is_told_once(number: signal.Signals) -> None:
    """Kernel and shell tell of a lost terminal, and Slurm warns every process: none may break into the cleaning up."""
    cleaned = []

    def work() -> None:
        with stopped_by_signals():
            try:
                os.kill(os.getpid(), number)
            finally:
                os.kill(os.getpid(), number)
                cleaned.append(True)

    with pytest.raises(Terminated):
        work()
    assert cleaned
    assert signal.getsignal(number) is signal.SIG_DFL


def test_in_another_thread_nothing_is_changed() -> None:
    before, seen = signal.getsignal(signal.SIGTERM), []

    def look() -> None:
        with stopped_by_signals():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]
