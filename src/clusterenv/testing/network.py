"""Hosts on one machine: network namespaces on a bridge, whose links can be slowed, cut and made lossy.

Linux, as root, with `ip` and `tc` (and `iptables` for loss and one-way partitions). Everything disappears with the
process that made it, however that ends: each namespace is held by a child that ends when our end of a pipe closes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

from clusterenv.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

_COMMAND_S = 20.0
_PIPE = subprocess.PIPE
# A range of its own for documentation and benchmarks (RFC 2544): no real network answers there.
_NET = "198.18.0"
MAX_HOSTS = 64


def why_not(*programs: str) -> str | None:
    """Why no network can be made here, or None if one can.

    Args:
        programs: what is needed besides, such as iptables for loss and partitions.

    Example:
        >>> why_not() is None or "network namespaces" in why_not()
        True
    """
    if os.name != "posix" or not os.path.exists("/proc/self/ns/net"):
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "tc", "unshare", "nsenter", *programs):
        if shutil.which(program) is None:
            return f"network namespaces need the program {program!r}, which is not installed"
    tried = subprocess.run([_program("unshare"), "--net", "true"], capture_output=True, timeout=_COMMAND_S, check=False)
    return None if tried.returncode == 0 else "network namespaces are forbidden here: unshare --net failed"


class Namespace:
    """A network namespace that lasts as long as this object and this process."""

    def __init__(self) -> None:
        # `cat` ends when the pipe closes, which it does when we end, even by SIGKILL.
        words = [_program("unshare"), "--net", "sh", "-c", "echo ready; exec cat"]
        self._holder = holder = subprocess.Popen(words, stdin=_PIPE, stdout=_PIPE, start_new_session=True)
        if holder.stdout is None or holder.stdout.readline() != b"ready\n":
            self.close()
            raise ConfigError("no network namespace could be made: unshare --net failed. It needs root.")
        self._enter = [_program("nsenter"), f"--net=/proc/{self._holder.pid}/ns/net", "--"]
        self.run("ip", "link", "set", "lo", "up")

    @property
    def pid(self) -> int:
        """Of the process that holds it."""
        return self._holder.pid

    def words(self, *command: str) -> list[str]:
        """The command that runs another one in here."""
        return [*self._enter, *command]

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process in here; the options are those of `subprocess.Popen`."""
        return subprocess.Popen(self.words(*command), **options)

    def run(self, *command: str) -> str:
        """Run a command in here, to its end; what it printed. ConfigError if it fails."""
        return _run(self.words(*command))

    def close(self) -> None:
        """Let it go: it ends when the last process in it has ended."""
        if self._holder.stdin is not None:
            self._holder.stdin.close()
        if self._holder.stdout is not None:
            self._holder.stdout.close()
        try:
            self._holder.wait(_COMMAND_S)
        except subprocess.TimeoutExpired:
            self._holder.kill()
            self._holder.wait(_COMMAND_S)


class NetHost(Namespace):
    """One host of a `Network`.

    Attributes:
        name: "h0", "h1", …; its link has that name too.
        address: its IPv4 address.
    """

    def __init__(self, index: int, switch: Namespace) -> None:
        super().__init__()
        self.name = f"h{index}"
        self.address = f"{_NET}.{index + 1}"
        self._switch = switch
        switch.run("ip", "link", "add", self.name, "type", "veth", "peer", "name", "up0", "netns", str(self.pid))
        switch.run("ip", "link", "set", self.name, "master", "bridge", "up")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "up0")
        self.run("ip", "link", "set", "up0", "up")

    def link(self, up: bool) -> None:
        """Plug the cable in, or pull it out."""
        self._switch.run("ip", "link", "set", self.name, "up" if up else "down")

    def rate(self, mbit: float | None) -> None:
        """Limit what it sends and, apart from that, what it receives; None lifts the limit."""
        for where, device in ((self, "up0"), (self._switch, self.name)):
            if mbit is None:
                where.run("tc", "qdisc", "delete", "dev", device, "root")
            else:
                # The queue is long, as in real routers: 200 ms.
                limit = ("tbf", "rate", f"{round(mbit * 1000)}kbit", "burst", "32kb", "latency", "200ms")
                where.run("tc", "qdisc", "replace", "dev", device, "root", *limit)


class Network:
    """Hosts that see one another and nothing else.

    Args:
        hosts: how many.

    Attributes:
        hosts: the hosts.
        switch: the namespace of the bridge between them; the other end of a host's cable has the host's name there.

    Raises:
        ConfigError: no network can be made here; `why_not` tells beforehand.

    Example:
        >>> with Network(2) as net:                                   # doctest: +SKIP
        ...     head, node = net.hosts
        ...     node.rate(10)
        ...     net.partition(head, node)
        ...     node.run("ping", "-c", "1", head.address)
    """

    def __init__(self, hosts: int = 2) -> None:
        if isinstance(hosts, bool) or not isinstance(hosts, int) or not 1 <= hosts <= MAX_HOSTS:
            raise ConfigError(f"hosts={hosts!r} must be a whole number from 1 to {MAX_HOSTS}.")
        reason = why_not()
        if reason is not None:
            raise ConfigError(f"{reason}.")
        with contextlib.ExitStack() as made:
            self.switch = Namespace()
            made.callback(self.switch.close)
            self.switch.run("ip", "link", "add", "bridge", "type", "bridge")
            self.switch.run("ip", "link", "set", "bridge", "up")
            self.hosts: list[NetHost] = []
            for index in range(hosts):
                host = NetHost(index, self.switch)
                made.callback(host.close)
                self.hosts.append(host)
            self._made = made.pop_all()

    @contextlib.contextmanager
    def partition(self, one: NetHost, other: NetHost, *, one_way: bool = False) -> Iterator[None]:
        """Nothing passes between two hosts, or nothing from the first to the second. Connections stay half open."""
        ways = [(one, other)] if one_way else [(one, other), (other, one)]
        with contextlib.ExitStack() as healing:
            for sender, receiver in ways:
                healing.enter_context(_drop(receiver, "-s", sender.address))
            yield

    @contextlib.contextmanager
    def loss(self, host: NetHost, share: float) -> Iterator[None]:
        """A host loses this share of the packets that it is sent, at random."""
        if not 0 < share <= 1:
            raise ConfigError(f"share={share!r} must be above 0 and at most 1.")
        with _drop(host, "-m", "statistic", "--mode", "random", "--probability", f"{share:.6f}"):
            yield

    def close(self) -> None:
        """End the holders. Who started processes in the hosts ends them."""
        self._made.close()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()


@contextlib.contextmanager
def _drop(host: NetHost, *match: str) -> Iterator[None]:
    rule = ("-i", "up0", *match, "-j", "DROP")
    host.run("iptables", "-w", "-A", "INPUT", *rule)
    try:
        yield
    finally:
        host.run("iptables", "-w", "-D", "INPUT", *rule)


def _program(name: str) -> str:
    return shutil.which(name) or name


def _run(words: Sequence[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    if done.returncode != 0:
        raise ConfigError(f"{' '.join(words)} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
