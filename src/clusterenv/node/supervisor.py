"""The head's side of the fork server: start workers, learn of their end, end them."""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from typing import TYPE_CHECKING, NamedTuple

from clusterenv.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Sequence

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
# The search path comes as an argument. Python itself puts the current folder first, in which anybody may have left a
# module; it is taken out before anything is imported.
_BOOTSTRAP = (
    "import sys; del sys.path[0]; import json; sys.path[:] = json.loads(sys.argv[2]); "
    "from clusterenv.node.forkserver import main; main(int(sys.argv[1]), spared=sys.argv[3:] == ['spared'])"
)
_SERVER_END_S = 2.0
# How long the fork server may refuse to take a message, and how often its reports are read during a long wait.
_DEAF_S, LISTEN_S = 60.0, 0.1
# How long we wait for the number of a process that is being forked.
_TOLD_S = 5.0


def search_path() -> list[str]:
    """Where the head looks for modules, without the objects of some tools, which mean nothing to another process."""
    return [entry for entry in sys.path if isinstance(entry, str)]


class Exit(NamedTuple):
    """A worker has ended: on its own, or together with the fork server."""

    token: int
    status: int
    reason: str = ""

    def describe(self) -> str:
        """The end in words."""
        if self.reason:
            return self.reason
        if self.status >= 0:
            return f"its process ended with exit code {self.status}"
        try:
            name = signal.Signals(-self.status).name
        except ValueError:
            name = "unknown"
        return f"its process was ended by signal {-self.status} ({name})"


_supervisors: weakref.WeakSet[Supervisor] = weakref.WeakSet()


def _let_go_in_child() -> None:
    """A forked child of the head must not keep the control sockets open: the head's death would go unseen."""
    for supervisor in list(_supervisors):
        supervisor.let_go()


os.register_at_fork(after_in_child=_let_go_in_child)


class Supervisor:
    """Owns the fork server and the processes it starts.

    Args:
        threads: for the numerical libraries of each worker; None leaves them alone.
        spared: whether the signals of an engine mean nothing to these processes.
    """

    def __init__(self, threads: int | None, *, spared: bool = False) -> None:
        self._owner = os.getpid()
        self._tokens = 0
        self._unborn: set[int] = set()  # workers that were asked for, of which the fork server has told nothing yet
        self._pids: dict[int, int] = {}
        self._exits: dict[int, Exit] = {}
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = dict(os.environ)
        if threads is not None:
            environment.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))
        words = [sys.executable, "-c", _BOOTSTRAP, str(theirs.fileno()), json.dumps(search_path())]
        with theirs:
            try:
                self._server = subprocess.Popen(
                    [*words, *(["spared"] if spared else [])],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env=environment,
                    start_new_session=True,
                )
            except OSError as error:
                self._control.close()
                raise LaunchError(f"the fork server could not be started: {error}") from error
        _supervisors.add(self)

    def start(self, channel_end: socket.socket, core: int | None) -> int:
        """Start a worker on its end of a channel and return its token."""
        self._tokens += 1
        self._unborn.add(self._tokens)
        request = json.dumps({"op": "fork", "token": self._tokens, "core": core}).encode()
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [channel_end.fileno()]))
        try:
            self._send(request, [rights])
        except OSError as error:
            raise LaunchError(f"the fork server is gone ({error}); its own words are on stderr") from error
        return self._tokens

    def kill(self, token: int) -> None:
        """Kill a worker and everything it started."""
        try:
            self._send(json.dumps({"op": "kill", "token": token}).encode())
        except OSError:
            return  # the fork server is gone, and every worker with it

    def listen(self) -> None:
        """Take what the fork server has reported. Needed in every long wait: a full socket stops the fork server."""
        self._read()

    def pid(self, token: int) -> int | None:
        """The process of a worker, if it runs.

        A worker may speak before the fork server, which has just forked it, has told us its number: that is waited for.
        """
        end = time.monotonic() + _TOLD_S
        self._read()
        while token in self._unborn and self._control.fileno() >= 0 and (left := end - time.monotonic()) > 0:
            self._read(min(left, LISTEN_S))  # another thread may read what we wait for
        return self._pids.get(token)

    def exited(self, token: int, limit_s: float = 0.0) -> Exit | None:
        """The end of a worker, if it has ended; wait for it at most `limit_s`."""
        end = time.monotonic() + limit_s
        self._read()
        while token not in self._exits and self._control.fileno() >= 0 and time.monotonic() < end:
            self._read(max(0.0, end - time.monotonic()))
        if token not in self._exits and self._control.fileno() < 0:
            return Exit(token, -signal.SIGKILL, "the batch was closed")
        return self._exits.get(token)

    def forget(self, token: int) -> None:
        """Nobody will ask for this worker again: a batch may lose workers for weeks."""
        self._unborn.discard(token)
        self._exits.pop(token, None)
        self._pids.pop(token, None)

    def let_go(self) -> None:
        """Close our end of the control socket without a word."""
        self._control.close()

    def close(self) -> None:
        """End the fork server, which ends every worker. Safe to call twice, and after a fork of the head."""
        self._control.close()
        if os.getpid() != self._owner:
            return
        try:
            self._server.wait(_SERVER_END_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait(_SERVER_END_S)
        if self._server.returncode:
            self._kill_groups()
        self._pids.clear()

    def _send(self, request: bytes, rights: Sequence[tuple[int, int, array.array[int]]] = ()) -> None:
        """Send a request, and listen while the socket is full: if both sides only spoke, both would wait for ever."""
        end = time.monotonic() + _DEAF_S
        while True:
            self._read()
            try:
                self._control.sendmsg([request], rights, socket.MSG_DONTWAIT)
                return
            except BlockingIOError:
                if time.monotonic() > end:
                    raise OSError(f"it took no message for {_DEAF_S} s") from None
            poll = select.poll()
            poll.register(self._control, select.POLLIN | select.POLLOUT)
            poll.poll(LISTEN_S * 1000)

    def _read(self, limit_s: float = 0.0) -> None:
        """Take what the fork server has reported."""
        while self._control.fileno() >= 0:
            poll = select.poll()
            poll.register(self._control, select.POLLIN)
            if not poll.poll(limit_s * 1000):
                return
            limit_s = 0.0
            try:
                data = self._control.recv(4096)
            except OSError:
                data = b""
            if not data:
                self._server_is_gone()
                return
            message = json.loads(data)
            self._unborn.discard(message["token"])
            if "pid" in message:
                self._pids[message["token"]] = message["pid"]
            else:
                self._pids.pop(message["token"], None)
                self._exits[message["token"]] = Exit(message["token"], message["status"], message.get("error", ""))

    def _server_is_gone(self) -> None:
        try:
            status = self._server.wait(_SERVER_END_S)
        except subprocess.TimeoutExpired:
            status = -signal.SIGKILL
        reason = f"the fork server ended with exit code {status}; its own words are on stderr"
        for token in range(1, self._tokens + 1):
            self._exits.setdefault(token, Exit(token, status, reason))
        self._unborn.clear()
        self._kill_groups()
        self._pids.clear()

    def _kill_groups(self) -> None:
        """Kill what environments have started: without a fork server the kernel kills every worker, but no more."""
        for pid in self._pids.values():
            # A worker leads a session, and while any process of it lives, nobody else gets its number. Afterwards the
            # number may be a stranger's, who hardly leads a session.
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(pid) != pid:
                    continue
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
