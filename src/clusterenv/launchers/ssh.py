"""Nodes on hosts that are reached by SSH: one connection per host, held open as long as the node lives.

The keys go through standard input, which stays open. A node ends itself when it closes, and that is the one way to end
it which works for every user: signals sent over SSH reach the processes of an ordinary user, but not those of root.
Host keys are always checked, and nobody is ever asked for a password.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import socket
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterenv import extras
from clusterenv.clusters import Address, Ssh, split_address
from clusterenv.errors import LaunchError, words_of
from clusterenv.launchers.tail import Tail, last_lines, shown

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import ModuleType
    from typing import Any

    from clusterenv.launchers.base import NodeJob

_log = logging.getLogger(__name__)

# From the first packet to an accepted key.
_CONNECT_S = 20.0
# A connection over which nothing answers for a minute is lost.
_KEEPALIVE_S, _KEEPALIVES = 15.0, 4
# How long we wait for what ends at once as a rule: closing a connection, joining an idle thread.
_SOON_S = 3.0

# Of what the node wrote last, in the one line about its host.
_LINES = 4


class _Refused(Exception):
    """Why we do not connect, in our own words."""


@dataclass(slots=True)
class _Host:
    """A host, the connection to it, and how it fares. Changed on the loop's thread only."""

    name: str
    address: Address
    state: str = "connecting"
    problem: str | None = None
    output: Tail = field(default_factory=Tail)
    connection: Any = None
    process: Any = None
    task: asyncio.Task[None] | None = None


class SshLauncher:
    """Starts the nodes of an `Ssh` cluster. The connections live on a thread of their own."""

    def __init__(self, cluster: Ssh) -> None:
        self._asyncssh: ModuleType = extras.load("asyncssh", extra="ssh", purpose="a cluster reached by SSH")
        self._cluster = cluster
        self._hosts = [_Host(name, split_address(name, user=True)) for name in cluster.hosts]
        self._job: NodeJob | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def nodes(self) -> int:
        """How many nodes it starts: one per host."""
        return self._cluster.nodes

    def script(self, job: NodeJob) -> str:
        """Commands that do the same, one per host. The keys would have to be typed into each."""
        return "".join(
            shlex.join([*_ssh_words(self._cluster, host.address), _line(job, node)]) + "\n"
            for node, host in enumerate(self._hosts)
        )

    def start(self, job: NodeJob) -> None:
        """Begin to connect to every host. What goes wrong there is told by `failure`."""
        if self._job is not None:
            raise LaunchError("these nodes were started before. Make a new launcher for new ones.")
        self._job = job
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="clusterenv-ssh", daemon=True)
        try:
            self._thread.start()
            for host in self._hosts:
                self._loop.call_soon_threadsafe(self._begin, host)
        except BaseException:
            self.close(_SOON_S)
            raise

    def restart(self, node: int) -> bool:
        """End what is left of this node and start it again; False after `close`."""
        if self._loop is None or not 0 <= node < len(self._hosts):
            return False
        self._hosts[node].state, self._hosts[node].problem = "connecting", None
        self._loop.call_soon_threadsafe(self._begin, self._hosts[node])
        return True

    def status(self) -> str:
        """How many hosts run the node, and how the others fare."""
        running = sum(host.state == "running" for host in self._hosts)
        others = ", ".join(f"{host.name}: {host.state}" for host in self._hosts if host.state != "running")
        return f"{running} of {self.nodes} hosts run the node" + (f" ({others})" if others else "")

    def failure(self) -> str | None:
        """One line per host that failed, once every host has answered or failed."""
        if any(host.state == "connecting" for host in self._hosts):
            return None
        return "\n".join(f"{host.name}: {host.problem}" for host in self._hosts if host.problem) or None

    def logs(self) -> dict[str, str]:
        """The last lines that the node of each host wrote, with what the shell there wrote before."""
        return {host.name: host.output.text for host in self._hosts}

    def close(self, limit_s: float) -> None:
        """Close the standard input of every node, wait, then close the connections and join the thread."""
        loop, thread, self._loop = self._loop, self._thread, None
        if loop is None or thread is None:
            return
        if thread.is_alive():
            _finish(loop, self._end_all(limit_s), limit_s + _SOON_S)
            _finish(loop, loop.shutdown_default_executor(), _SOON_S)  # it looks up names
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_SOON_S)
        if thread.is_alive():
            _log.warning("ssh: the thread of the connections did not end within %.0f s", _SOON_S)
        else:
            loop.close()

    # On the loop's thread.

    def _begin(self, host: _Host) -> None:
        before, host.task = host.task, None
        host.task = asyncio.ensure_future(self._serve(host, before))

    async def _serve(self, host: _Host, before: asyncio.Task[None] | None) -> None:
        """Connect to a host and run the node there, to its end."""
        if before is not None:
            before.cancel()
            await asyncio.wait([before], timeout=_SOON_S)
        host.state, host.problem = "connecting", None
        try:
            await asyncio.wait_for(self._open(host), _CONNECT_S)
            host.state = "running"
            while output := await host.process.stdout.read(65536):
                host.output.add(output)
            await host.process.wait_closed()
            host.problem = self._ending(host)
        except Exception as error:  # whatever it is, it is told: nobody else looks at this task
            host.problem = self._why(host, error)
        finally:
            # In this order: `failure` looks at the problems once no state is "connecting".
            host.state = "failed" if host.problem else "ended"
            self._drop(host)

    async def _open(self, host: _Host) -> None:
        """Connect, start the node, and hand it the keys."""
        assert self._job is not None  # noqa: S101 (set in `start`)
        options = self._asyncssh.SSHClientConnectionOptions(**_options(self._cluster, host.address))
        if options.known_hosts is None:
            raise _Refused(
                "your SSH configuration turns the check of host keys off (UserKnownHostsFile none), which is refused. "
                "Set known_hosts= to a file with the key of this host"
            )
        host.connection = await self._asyncssh.connect(host.address.host, options=options)
        host.process = await host.connection.create_process(
            _line(self._job, self._hosts.index(host)),
            stderr=self._asyncssh.STDOUT,
            encoding=None,
            request_pty=False,  # a terminal would echo the keys
        )
        # A node that has ended already takes no keys: its exit code says why.
        with contextlib.suppress(BrokenPipeError, self._asyncssh.ProtocolError):
            host.process.stdin.write(self._job.keys.rstrip("\n").encode() + b"\n")

    async def _end_all(self, limit_s: float) -> None:
        await asyncio.gather(*(self._end(host, limit_s) for host in self._hosts))

    async def _end(self, host: _Host, limit_s: float) -> None:
        """End the node of one host by closing its standard input, or give up."""
        if host.task is None or host.task.done():
            return
        if host.process is not None:
            with contextlib.suppress(OSError, self._asyncssh.Error):
                host.process.stdin.write_eof()
            await asyncio.wait([host.task], timeout=limit_s)
        if not host.task.done():
            if host.process is not None:
                _log.warning(
                    "ssh: the node on %s did not end within %.0f s. It ends when it notices that the head is gone.",
                    host.name,
                    limit_s,
                )
                with contextlib.suppress(OSError, self._asyncssh.Error):
                    host.process.kill()  # heard by the processes of ordinary users only
            host.task.cancel()
            await asyncio.wait([host.task], timeout=_SOON_S)

    def _drop(self, host: _Host) -> None:
        connection, host.connection, host.process = host.connection, None, None
        if connection is not None:
            connection.abort()

    # What went wrong, in words.

    def _ending(self, host: _Host) -> str | None:
        """How the node of a host ended; None if there was nothing wrong with it."""
        status, killed = host.process.exit_status, host.process.exit_signal
        words = " | ".join(last_lines(host.output.text, _LINES).splitlines()) or "it wrote nothing"
        if killed:
            return f"the node was ended by signal {shown(str(killed[0]))}: {words}"
        if status in (126, 127):
            return (
                f"{self._python!r} cannot be run there (exit code {status}): {words}. "
                "Set python= to the full path of an interpreter of that host that has clusterenv"
            )
        if status is None:
            return f"the connection was lost: {words}"
        return f"the node ended with exit code {status}: {words}" if status else None

    @property
    def _python(self) -> str:
        return self._job.python if self._job else self._cluster.interpreter

    def _why(self, host: _Host, error: Exception) -> str:
        """Why there is no node on a host."""
        ssh, words = self._asyncssh, shown(words_of(error)).strip() or type(error).__name__
        by_hand = shlex.join([*_ssh_words(self._cluster, host.address), "true"])
        if isinstance(error, _Refused):
            return words
        if isinstance(error, ssh.HostKeyNotVerifiable):
            return (
                f"its host key is unknown or has changed ({words}). Connect once by hand, compare the fingerprint and "
                "accept it, or set known_hosts= to a file that has it"
            )
        if isinstance(error, ssh.PermissionDenied):
            return f"the key was refused ({words}). Make this work without a password: {by_hand}"
        if isinstance(error, ssh.KeyImportError):
            return f"the private key cannot be read ({words}). Use a key without a passphrase, or an agent"
        if isinstance(error, socket.gaierror):
            return f"the name is unknown ({words}). Check the name, or name the host in ~/.ssh/config"
        if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
            return f"no answer within {_CONNECT_S:.0f} s. Is the host up, and does a firewall let SSH through?"
        if isinstance(error, ConnectionRefusedError):
            return f"the connection was refused ({words}). Does sshd run there, and on this port?"
        if host.state == "running":
            return f"the connection was lost ({words})"
        return f"no connection ({words}). Make this work: {by_hand}"


def _finish(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None], limit_s: float) -> None:
    """Have something done on the loop's thread; give up after the limit."""
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        future.result(limit_s)
    except Exception:  # close never raises; what is left is told here
        future.cancel()
        _log.warning("ssh: the connections were not closed in good order", exc_info=True)


def _line(job: NodeJob, node: int) -> str:
    """The command for the shell there, which makes place for the node."""
    return "exec " + job.line("-", node)


def _options(cluster: Ssh, address: Address) -> dict[str, Any]:
    """How to connect. What is left out is taken from the user's SSH configuration."""
    options: dict[str, Any] = {
        "host": address.host,
        "password_auth": False,
        "kbdint_auth": False,
        "keepalive_interval": _KEEPALIVE_S,
        "keepalive_count_max": _KEEPALIVES,
    }
    if address.port:
        options["port"] = address.port
    if address.user:
        options["username"] = address.user
    if cluster.known_hosts:
        options["known_hosts"] = os.path.expanduser(cluster.known_hosts)
    if cluster.config:
        options["config"] = [os.path.expanduser(cluster.config)]
    if cluster.identity:
        options["client_keys"] = [os.path.expanduser(cluster.identity)]
        options["agent_path"] = None
    return options


def _ssh_words(cluster: Ssh, address: Address) -> list[str]:
    """The words of the ssh program that connect in the same way."""
    words = ["ssh", "-o", "BatchMode=yes"]
    if cluster.config:
        words += ["-F", cluster.config]
    if cluster.known_hosts:
        words += ["-o", f"UserKnownHostsFile={cluster.known_hosts}"]
    if cluster.identity:
        words += ["-o", "IdentitiesOnly=yes", "-i", cluster.identity]
    if address.port:
        words += ["-p", str(address.port)]
    return [*words, f"{address.user}@{address.host}" if address.user else address.host]
