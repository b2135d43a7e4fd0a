"""The fork server: one clean process per head that starts workers, reports their end, and ends with the head.

Why not fork the head: it may have threads, and a fork copies their locks in whatever state they are. Why not start an
interpreter per worker: importing Gymnasium costs a fifth of a second each. So one small process without threads imports
what every worker needs and forks from there, in milliseconds, also when a lost worker is replaced.

It never imports the user's main module, so a script needs no `if __name__ == "__main__"`.

Protocol, over an inherited socket pair that keeps message borders (JSON, both sides are ours):
    head -> server  {"op": "fork", "token": 7, "core": 1} with the worker's end of its channel
                    {"op": "kill", "token": 7}
    server -> head  {"token": 7, "pid": 123}            it runs
                    {"token": 7, "status": -9}          it has ended, or ("error": "...") never began
When the head's end closes, for whatever reason, every worker is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

# What an engine such as Slurm sends to everything on a host before it takes the host away.
ENGINE_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)

_PR_SET_PDEATHSIG = 1
_MAX_MESSAGE = 4096
# How long workers that were killed may take to end. The head waits a little longer for us when it closes.
_COLLECT_S = 1.5


@dataclass(slots=True)
class _Child:
    pid: int
    token: int
    pidfd: int


class ForkServer:
    """Starts workers on request and watches over them."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, _Child] = {}  # by pidfd
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def run(self) -> None:
        """Serve until the head is gone, then end every worker."""
        try:
            while self._serve():
                pass
        finally:
            self._end_all()

    def _serve(self) -> bool:
        # The one wait without a limit: this process has nothing to do until the head speaks, ends, or a worker ends.
        for fd, _ in self._poll.poll():
            if fd == self._control.fileno():
                if not self._answer():
                    return False
            elif fd in self._children:
                self._end(self._children[fd])
        return True

    def _answer(self) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(self._control, _MAX_MESSAGE, 1)
        except OSError:
            return False
        if not data:
            return False
        request = json.loads(data)
        if request["op"] == "fork":
            self._fork(request["token"], request["core"], fds[0])
        else:
            for child in self._children.values():
                if child.token == request["token"]:
                    _kill_group(child.pid)
        return True

    def _fork(self, token: int, core: int | None, channel_fd: int) -> None:
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:  # out of memory or of processes: the others go on
            os.close(channel_fd)
            self._tell({"token": token, "status": 1, "error": f"it could not be forked: {error}"})
            return
        if pid == 0:
            try:
                self._become_worker(server, core, channel_fd)
            finally:
                # Whatever goes wrong: the rest of this program is the fork server's, which ends the other workers.
                os._exit(1)
        os.close(channel_fd)
        self._watch(pid, token)
        self._tell({"token": token, "pid": pid})

    def _watch(self, pid: int, token: int) -> None:
        child = _Child(pid, token, os.pidfd_open(pid))
        self._children[child.pidfd] = child
        self._poll.register(child.pidfd, select.POLLIN)

    def _become_worker(self, server: int, core: int | None, channel_fd: int) -> None:
        from clusterenv.worker.loop import run_forked

        # A session of its own: Ctrl-C at the terminal is the head's business, and whatever an environment starts can
        # be ended together with it. The kernel ends us when the fork server is gone, even if the environment hangs.
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:
            os._exit(1)
        self._control.close()
        for child in self._children.values():
            os.close(child.pidfd)
        if core is not None:
            # The cores that a container may use can change while it runs: better another core than no worker.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, {core})
        run_forked(socket.socket(fileno=channel_fd))

    def _end_all(self) -> None:
        """Kill every worker, then collect those that end within the limit.

        One that hangs in the kernel (a dead network disk, a driver) ends when that lets it go. It must keep neither the
        others alive nor us; the system collects it.
        """
        for child in self._children.values():
            _kill_group(child.pid)
        self._poll.unregister(self._control)
        end = time.monotonic() + _COLLECT_S
        while self._children and (left := end - time.monotonic()) > 0:
            for fd, _ in self._poll.poll(left * 1000):
                self._end(self._children[fd])

    def _end(self, child: _Child) -> None:
        """Kill what is left of a worker's group, collect its status and report it."""
        _kill_group(child.pid)
        _, status = os.waitpid(child.pid, 0)
        del self._children[child.pidfd]
        self._poll.unregister(child.pidfd)
        os.close(child.pidfd)
        self._tell({"token": child.token, "status": os.waitstatus_to_exitcode(status)})

    def _tell(self, message: dict[str, int | str]) -> None:
        try:
            self._control.send(json.dumps(message).encode())
        except OSError:
            return  # the head is gone; the next poll says so too


def _kill_group(pid: int) -> None:
    # The worker is not yet collected, so neither number can belong to somebody else.
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _heed_not(number: int, frame: Any) -> None:
    """The handler of a signal that means nothing."""


def main(control_fd: int, *, spared: bool = False) -> None:
    """Run a fork server on an inherited descriptor.

    Args:
        control_fd: the descriptor.
        spared: whether signals that an engine sends to everything on a host mean nothing here nor to the workers: our
            node has them too, finishes what is under way, and then ends us.
    """
    # Imported here, before the first fork, so that no worker pays for it again.
    import clusterenv.worker.block
    import clusterenv.worker.loop
    import clusterenv.worker.vector_block  # noqa: F401

    # Signals may have been ignored where the head was started. If SIGCHLD is, workers vanish before we can end
    # what they started.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    for number in ENGINE_SIGNALS if spared else ():
        signal.signal(number, _heed_not)  # not "ignored": that would be passed on to what environments start
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Into a file or a pipe Python writes by the block: of a worker that is killed, the last lines would be lost.
        sys.stdout.reconfigure(line_buffering=True)
    ForkServer(socket.socket(fileno=control_fd)).run()
