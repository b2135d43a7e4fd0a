"""The fork server's own loop, run in this process where a real one cannot be brought into the state."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import NoReturn

import pytest

from clusterenv.node import forkserver
from clusterenv.node.forkserver import ForkServer

LIMIT_S = 20.0


@pytest.mark.fault("F43")
def test_a_fork_that_fails_costs_one_worker_and_not_all(monkeypatch: pytest.MonkeyPatch) -> None:
    # Out of memory or of processes: the workers that run must go on, and the head must learn why this one does not.
    def no_fork() -> NoReturn:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", no_fork)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one, other = socket.socketpair()
    with ours, theirs, one, other:
        ours.settimeout(LIMIT_S)
        errors: list[BaseException] = []

        def serve() -> None:
            try:
                ForkServer(theirs).run()
            except BaseException as error:
                errors.append(error)
                theirs.close()

        thread = threading.Thread(target=serve)
        thread.start()
        for token in (1, 2):
            socket.send_fds(ours, [json.dumps({"op": "fork", "token": token, "core": None}).encode()], [other.fileno()])
            answer = ours.recv(4096)
            assert answer, f"the fork server ended: {errors}"
            assert json.loads(answer)["token"] == token
            assert "status" in json.loads(answer)
        ours.shutdown(socket.SHUT_RDWR)
        thread.join(LIMIT_S)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    "last_words", [b"", json.dumps({"op": "kill", "token": 5}).encode()], ids=["none", "kill somebody unknown"]
)
def test_the_server_ends_when_the_head_hangs_up(last_words: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        thread = threading.Thread(target=ForkServer(theirs).run)
        thread.start()
        if last_words:
            ours.send(last_words)
        ours.close()
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def test_a_worker_that_cannot_die_keeps_no_other_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    # As one that hangs in the kernel does: it has its signal, and does not end.
    stuck, *others = [subprocess.Popen(["sleep", "100"], start_new_session=True) for _ in range(3)]
    kill_group = forkserver._kill_group
    monkeypatch.setattr(forkserver, "_kill_group", lambda pid: None if pid == stuck.pid else kill_group(pid))
    monkeypatch.setattr(forkserver, "_COLLECT_S", 0.5)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = ForkServer(theirs)
        for token, worker in enumerate((stuck, *others)):
            server._watch(worker.pid, token)
        thread = threading.Thread(target=server.run)
        thread.start()
        ours.close()
        thread.join(LIMIT_S)
        ended = not thread.is_alive()
        left = [child.pid for child in server._children.values()]
        for worker in (stuck, *others):
            worker.send_signal(signal.SIGKILL)
        thread.join(LIMIT_S)
        for child in list(server._children.values()):
            server._end(child)
        for worker in (stuck, *others):
            worker.wait(LIMIT_S)
    assert ended, "the fork server waits for a worker that does not end"
    assert left == [stuck.pid]


IGNORING = """
import os, signal
import clusterenv

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
envs = clusterenv.make_vec("CartPole-v1", 4, cluster="local:2")
envs.reset(seed=1)
os.kill(envs.worker_pids()[0], signal.SIGKILL)
print(envs.step([0] * 4)[3].tolist(), envs.restarts, flush=True)
envs.close()
"""


def test_a_head_that_was_started_with_ignored_children() -> None:
    """As by `trap "" CHLD`, which outlives exec: without care the first loss would end every worker."""
    over = subprocess.run([sys.executable, "-c", IGNORING], capture_output=True, text=True, timeout=60, check=True)
    assert over.stdout == "[True, True, False, False] 1\n"
    assert "Traceback" not in over.stderr
