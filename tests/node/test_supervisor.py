"""The fork server and its supervisor: workers start, end, and never stay."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

import psutil
import pytest

import clusterenv
from clusterenv import Timeouts
from clusterenv.errors import LaunchError
from clusterenv.node.supervisor import Exit, Supervisor
from clusterenv.transport.channel import ChannelClosed
from tests.node.kit import LIMIT_S, build_with, gone, pid_of, started, supervisor, with_grandchild
from tests.zoo import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable


def server_of(sup: Supervisor) -> psutil.Process:
    return psutil.Process(sup._server.pid)


def test_a_worker_runs_as_a_child_of_the_server_in_a_session_of_its_own() -> None:
    with supervisor() as sup, started(sup) as (token, _):
        pid = pid_of(sup, token)
        assert psutil.Process(pid).ppid() == server_of(sup).pid
        wait_until(lambda: os.getsid(pid) == pid, LIMIT_S)
        assert os.getsid(server_of(sup).pid) != os.getsid(0)
        assert sup.exited(token) is None


def test_the_number_of_a_worker_that_is_being_forked_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterenv.node.supervisor._TOLD_S", LIMIT_S)
    with supervisor() as sup, started(sup) as (token, _):  # the server itself is still starting
        assert sup.pid(token) is not None
        sup.forget(token)
        assert sup.pid(token) is None, "and nobody waits for one that is forgotten"


def test_several_workers_are_told_apart() -> None:
    with supervisor() as sup, started(sup) as (one, _), started(sup) as (two, _):
        assert one != two
        assert pid_of(sup, one) != pid_of(sup, two)
        sup.kill(one)
        assert sup.exited(one, LIMIT_S) == Exit(one, -signal.SIGKILL)
        assert sup.exited(two) is None
        assert sup.pid(one) is None


def test_a_core_that_is_gone_costs_neither_the_worker_nor_another() -> None:
    # A container may be given fewer cores while it runs.
    with supervisor() as sup, started(sup) as (one, _), started(sup, core=9_999) as (two, channel):
        pid_of(sup, two)
        build_with(channel, lambda: os._exit(3))
        assert sup.exited(two, LIMIT_S) == Exit(two, 3)
        assert sup.exited(one) is None


def test_more_workers_than_the_control_socket_has_room_for_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    made = socket.socketpair

    def narrow(*arguments: Any) -> tuple[socket.socket, socket.socket]:
        pair = made(*arguments)
        for end in pair:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least that the kernel gives
        return pair

    monkeypatch.setattr(socket, "socketpair", narrow)
    envs = clusterenv.make_vec("CartPole-v1", num_envs=24, cluster="local:24", timeouts=Timeouts(start_s=LIMIT_S))
    try:
        assert envs.reset(seed=0)[0].shape == (24, 4)
    finally:
        envs.close()


def test_a_worker_whose_channel_closes_ends_well() -> None:
    with supervisor() as sup:
        with started(sup) as (token, _):
            pid_of(sup, token)
        assert sup.exited(token, LIMIT_S) == Exit(token, 0)


ENDS: dict[str, tuple[Callable[[], Any], int, str]] = {
    "exit": (lambda: os._exit(3), 3, "its process ended with exit code 3"),
    "clean exit": (lambda: os._exit(0), 0, "its process ended with exit code 0"),
    "sys.exit": (lambda: sys.exit(4), 4, "its process ended with exit code 4"),
    "segfault": (lambda: ctypes.string_at(0), -11, "its process was ended by signal 11 (SIGSEGV)"),
    "abort": (os.abort, -6, "its process was ended by signal 6 (SIGABRT)"),
    "SIGTERM": (lambda: os.kill(os.getpid(), signal.SIGTERM), -15, "its process was ended by signal 15 (SIGTERM)"),
}


@pytest.mark.parametrize(("end", "status", "says"), ENDS.values(), ids=ENDS.keys())
def test_the_end_of_a_worker_is_reported_in_words(end: Callable[[], Any], status: int, says: str) -> None:
    with supervisor() as sup, started(sup) as (token, channel):
        build_with(channel, end)
        exited = sup.exited(token, LIMIT_S)
        assert exited == Exit(token, status)
        assert exited.describe() == says
        with pytest.raises(ChannelClosed):
            channel.receive(LIMIT_S)


def test_a_real_time_signal_has_words_too() -> None:
    assert Exit(1, -62).describe().startswith("its process was ended by signal 62")


def note_of(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "pid"


def grandchild(note: pathlib.Path) -> int:
    wait_until(note.exists, LIMIT_S)
    return int(note.read_text())


@pytest.mark.fault("F10")
def test_what_a_worker_started_is_killed_with_it(tmp_path: pathlib.Path) -> None:
    with supervisor() as sup, started(sup) as (token, channel):
        build_with(channel, with_grandchild(note_of(tmp_path)))
        pid = grandchild(note_of(tmp_path))
        assert not gone(pid)
        sup.kill(token)
        assert sup.exited(token, LIMIT_S) is not None
        wait_until(lambda: gone(pid), LIMIT_S)


@pytest.mark.fault("F10")
def test_what_a_worker_started_ends_when_the_worker_exits_by_itself(tmp_path: pathlib.Path) -> None:
    with supervisor() as sup, started(sup) as (token, channel):
        build_with(channel, with_grandchild(note_of(tmp_path), lambda: os._exit(0)))
        pid = grandchild(note_of(tmp_path))
        assert sup.exited(token, LIMIT_S) == Exit(token, 0)
        wait_until(lambda: gone(pid), LIMIT_S)


def test_closing_ends_the_server_its_workers_and_what_they_started(tmp_path: pathlib.Path) -> None:
    with supervisor() as sup, started(sup) as (token, channel):
        build_with(channel, with_grandchild(note_of(tmp_path)))
        pids = [server_of(sup).pid, pid_of(sup, token), grandchild(note_of(tmp_path))]
        sup.close()
        sup.close()
        wait_until(lambda: all(gone(pid) for pid in pids), LIMIT_S)


def test_a_stopped_worker_is_killed_all_the_same() -> None:
    with supervisor() as sup, started(sup) as (token, _):
        os.kill(pid_of(sup, token), signal.SIGSTOP)
        sup.kill(token)
        assert sup.exited(token, LIMIT_S) == Exit(token, -signal.SIGKILL)


def test_a_stopped_server_does_not_keep_close_from_ending_everything() -> None:
    with supervisor() as sup, started(sup) as (token, _):
        pid = pid_of(sup, token)
        server_of(sup).suspend()
        sup.close()
        wait_until(lambda: gone(pid), LIMIT_S)


def test_when_the_server_dies_its_workers_do_and_the_head_learns_it() -> None:
    with supervisor() as sup, started(sup) as (token, _):
        pid = pid_of(sup, token)
        server_of(sup).kill()
        wait_until(lambda: gone(pid), LIMIT_S)
        assert sup.exited(token, LIMIT_S) is not None
        assert sup.pid(token) is None
        sup.kill(token)
        ours, theirs = socket.socketpair()
        with ours, theirs, pytest.raises(LaunchError, match="the fork server is gone"):
            sup.start(theirs, None)


@pytest.mark.fault("F10")
@pytest.mark.parametrize("learns", ["exited", "close"])
def test_what_workers_started_ends_when_the_server_dies(tmp_path: pathlib.Path, learns: str) -> None:
    with supervisor() as sup, started(sup) as (token, channel):
        build_with(channel, with_grandchild(note_of(tmp_path)))
        worker, started_by_it = pid_of(sup, token), grandchild(note_of(tmp_path))
        server_of(sup).kill()
        wait_until(lambda: gone(worker), LIMIT_S)
        try:
            assert not gone(started_by_it)
            if learns == "exited":
                assert sup.exited(token, LIMIT_S) is not None
            else:
                sup.close()
            wait_until(lambda: gone(started_by_it), LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(started_by_it, signal.SIGKILL)


@pytest.mark.fault("F10")
def test_what_workers_started_ends_when_a_stopped_server_is_closed(tmp_path: pathlib.Path) -> None:
    with supervisor() as sup, started(sup) as (token, channel):
        build_with(channel, with_grandchild(note_of(tmp_path)))
        assert pid_of(sup, token)
        started_by_it = grandchild(note_of(tmp_path))
        server_of(sup).suspend()
        sup.close()
        try:
            wait_until(lambda: gone(started_by_it), LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(started_by_it, signal.SIGKILL)


def test_a_token_that_nobody_has_is_no_error() -> None:
    with supervisor() as sup, started(sup) as (token, _):
        sup.kill(999)
        assert sup.exited(999, 0.0) is None
        assert pid_of(sup, token)


def test_a_worker_is_pinned_to_its_core() -> None:
    core = max(os.sched_getaffinity(0))
    with supervisor() as sup, started(sup, core) as (token, _):
        pid = pid_of(sup, token)
        wait_until(lambda: os.sched_getaffinity(pid) == {core}, LIMIT_S)


@pytest.mark.parametrize(("threads", "expected"), [(1, "1"), (3, "3"), (None, "7")])
def test_thread_variables(threads: int | None, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with supervisor(threads) as sup, started(sup) as (token, _):
        assert psutil.Process(pid_of(sup, token)).environ()["OMP_NUM_THREADS"] == expected
        assert os.environ["OMP_NUM_THREADS"] == "7"


def test_workers_have_no_terminal_and_no_foreign_descriptors(tmp_path: pathlib.Path) -> None:
    with (
        (tmp_path / "open").open("w") as file,
        supervisor() as sup,
        started(sup) as (sibling, _),
        started(sup) as (token, channel),
    ):
        os.set_inheritable(file.fileno(), True)
        pid = pid_of(sup, token)
        assert pid_of(sup, sibling) != pid
        build_with(channel, with_grandchild(note_of(tmp_path)))
        grandchild(note_of(tmp_path))
        open_files = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
        assert os.fspath(tmp_path / "open") not in open_files
        assert not [path for path in open_files if "pidfd" in path], "a worker must not hold those of its siblings"
        assert len([path for path in open_files if path.startswith("socket:")]) == 1


def test_workers_hold_no_end_of_the_channels_of_others() -> None:
    # Otherwise a channel would not close when its worker ends, and the head would wait for nothing.
    with supervisor() as sup, started(sup) as (one, channel), started(sup) as (two, _):
        pid_of(sup, two)
        sup.kill(one)
        with pytest.raises(ChannelClosed):
            channel.receive(LIMIT_S)


def test_closing_in_a_fork_of_the_head_leaves_the_workers_to_the_parent() -> None:
    with supervisor() as sup, started(sup) as (token, _):
        pid = pid_of(sup, token)
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                sup.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert not gone(pid)
        assert sup.exited(token) is None
        sup.kill(token)
        assert sup.exited(token, LIMIT_S) is not None


def test_an_interpreter_that_cannot_be_started_is_a_launch_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(LaunchError, match="the fork server could not be started"):
        Supervisor(1)


@pytest.mark.parametrize("name", ["json", "socket", "clusterenv", "numpy"])
def test_nothing_is_imported_from_the_current_folder(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The current folder is anybody's: /tmp, a download folder, a checkout of somebody else's code.
    (tmp_path / f"{name}.py").write_text("open('was_imported', 'w').close()\nraise SystemExit(9)\n")
    monkeypatch.chdir(tmp_path)
    with supervisor() as sup, started(sup) as (token, _):
        sup.exited(token, 0.0)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: sup.pid(token) is not None or sup.exited(token) is not None, LIMIT_S)
        assert not (tmp_path / "was_imported").exists()
        assert sup.pid(token) is not None


def test_an_entry_of_the_path_that_is_no_text_is_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    # Python ignores such entries; `sys.path.insert(0, Path(...))` is a common slip.
    monkeypatch.setattr(sys, "path", [*sys.path, pathlib.Path("/somewhere")])
    with supervisor() as sup, started(sup) as (token, _):
        assert pid_of(sup, token)
