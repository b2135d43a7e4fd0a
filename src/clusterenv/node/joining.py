"""How nodes come in: the head listens, a launcher starts them, and each is checked before it is welcome."""

from __future__ import annotations

import collections
import ipaddress
import logging
import pathlib
import socket
import time
from typing import TYPE_CHECKING, Any

import msgspec

from clusterenv._version import __version__
from clusterenv.cluster.slots import share, split
from clusterenv.clusters import INSECURE, Join, Ssh, Tcp, split_address
from clusterenv.errors import ConfigError, LaunchError, ProtocolError, WorkersMissing, words_of
from clusterenv.launchers.base import NodeJob
from clusterenv.launchers.choose import launcher_for
from clusterenv.launchers.tail import shown
from clusterenv.node.base import NetworkBytes
from clusterenv.node.host import Host
from clusterenv.node.starting import check_descriptors
from clusterenv.transport.addresses import LOOPBACK, interface_addresses, own_addresses
from clusterenv.transport.security import make_keys, open_run
from clusterenv.transport.sockets import Address, Hub
from clusterenv.wire import messages as m
from clusterenv.wire.frames import CutOff
from clusterenv.wire.frames import split as split_frames

if TYPE_CHECKING:
    from clusterenv.clusters import Remote
    from clusterenv.launchers.base import Launcher

_logger = logging.getLogger(__name__)

# How many messages are taken in one go: a node that never stops speaking must not keep us from all else.
AT_ONCE = 1_000
_LOOK_S = 0.25
_TELL_EVERY_S = 10.0
# No limit, for nodes and launchers that take a number: the longest that a user may type.
_FOR_EVER_S = 999_999_999.0
# Who presses Ctrl-C while nodes close wants them ended, and no longer wait than is usual. How often we look meanwhile
# whether a node is still there: seldom, since it reads none of these messages, and there is room for some thousands.
_HURRY_S, _STILL_THERE_S = 5.0, 10.0
# How many lost nodes are remembered beyond the number of places: one that comes back is told that it was given up.
_REMEMBERED = 100
# Open files of the head: three for a node that is its own process (connection, standard input, output), one for any
# other (connection); and in all those of the socket and its threads, of the arena, and of starting a process.
_OF_A_PROCESS, _SPARE_DESCRIPTORS = 3, 24
# The fields of nodes' messages that people get to read.
_WORDS: dict[type[m.Message], tuple[str, ...]] = {
    m.Hello: ("name", "clusterenv", "python", "gymnasium"),
    m.Answer: ("error",),
    m.Lost: ("cause",),
    m.Leave: ("reason",),
}
_EVERYWHERE = "0.0.0.0"  # noqa: S104 (nodes on other hosts have to reach it, and only with the keys of the run)


class Joining:
    """The door of a cluster.

    Args:
        cluster: where the nodes are.
        launcher: starts them; None for the one of the cluster's kind.

    Attributes:
        heads: the addresses that nodes were told to join at.
        silence_s: after this long without a sign of life a node is lost.
        beat_s: how often a node gives one.
        epoch: which head of its run this is.
    """

    beats = 5  # signs of life of a node within the silence after which it is lost

    def __init__(self, cluster: Remote, launcher: Launcher | None = None) -> None:
        self._cluster = cluster
        self.silence_s, self.beat_s = cluster.silence_s, cluster.silence_s / self.beats
        self._launcher = launcher_for(cluster) if launcher is None else launcher
        self._keys, self.epoch = make_keys(), 0
        self.heads = ""
        self._hub: Hub | None = None
        self._hosts: dict[str, Host] = {}  # by incarnation, those that are welcome
        self._peers: dict[bytes, Host] = {}
        self._wanted = cluster.nodes  # how many more may come in
        self._new: list[Host] = []  # those that have no slots yet
        self._refused: collections.deque[str] = collections.deque(maxlen=10)
        # Goodbyes that we say for nodes whose successors are already here: `receive` hands them out first.
        self._goodbyes: collections.deque[tuple[Host, m.FromNode | ProtocolError, list[Any]]] = collections.deque()

    @property
    def members(self) -> list[Host]:
        """The nodes that are welcome."""
        return [host for host in self._hosts.values() if not host.lost]

    @property
    def network_bytes(self) -> NetworkBytes:
        """Of all messages so far."""
        return NetworkBytes() if self._hub is None else NetworkBytes(self._hub.received_bytes, self._hub.sent_bytes)

    def gather(self, num_envs: int) -> tuple[list[Host], list[range]]:
        """Start the nodes, wait until all are there, and give each its slots."""
        nodes = self._cluster.nodes
        each = _OF_A_PROCESS if isinstance(self._cluster, (Tcp, Ssh)) else 1
        check_descriptors(nodes, "nodes", nodes * each + _SPARE_DESCRIPTORS)
        host, port = self._listening()
        if isinstance(self._cluster, Join) and self._cluster.key_file:
            self._keys, self.epoch = open_run(pathlib.Path(self._cluster.key_file).expanduser())
        if self._cluster.insecure:
            host = _private(host)
            _logger.warning(INSECURE)
        self._hub = hub = Hub(self._keys, host, port, secure=not self._cluster.insecure)
        self.heads = self._addresses(host, hub.port)
        self._launcher.start(self._job(self.heads))
        self._wait_for_all()
        hosts = sorted(self._new, key=lambda host: (host.hello.index is None, host.hello.index or 0, host.name))
        self._new = []
        return self._share(hosts, num_envs)

    def script(self) -> str:
        """What the launcher would run, without keys and with a port of 0 where the head would take a free one."""
        host, port = self._listening()
        return self._launcher.script(self._job(self._addresses(host, port)))

    def _listening(self) -> tuple[str, int]:
        if self._cluster.bind:
            where = split_address(self._cluster.bind)
            return where.host, where.port
        return (LOOPBACK if isinstance(self._cluster, Tcp) else _EVERYWHERE), 0

    def _addresses(self, listen: str, port: int) -> str:
        """The addresses at which a head that listens here is reached, as one argument of the node program."""
        reachable = own_addresses() if listen in (_EVERYWHERE, "::") else [listen]
        return ",".join(Address(host, port, not self._cluster.insecure).url for host in reachable)

    def _job(self, heads: str) -> NodeJob:
        insecure = ["--insecure"] if self._cluster.insecure else []
        imports = [word for module in self._cluster.imports for word in ("--import", module)]
        workers = ["--workers", str(self._cluster.workers)] if self._cluster.workers else []
        return NodeJob(
            arguments=("--head", heads, *insecure, *imports, *workers),
            keys=self._keys.node.text(),
            python=self._cluster.interpreter,
        )

    def _share(self, hosts: list[Host], num_envs: int) -> tuple[list[Host], list[range]]:
        wanted = share(num_envs, [host.hello.workers or host.hello.cores or 1 for host in hosts])
        blocks = split(num_envs, sum(wanted))
        first = 0
        sharing: list[Host] = []
        for host, workers in zip(hosts, wanted, strict=True):
            mine = blocks[first : first + workers]
            if not mine:
                host.tell(m.Close(limit_s=0.0))
                continue
            self._settle(host, len(sharing), range(first, first + len(mine)), mine)
            sharing.append(host)
            first += len(mine)
        return sharing, blocks

    def _settle(self, host: Host, index: int, workers: range, blocks: list[range]) -> None:
        host.index, host.workers, host.blocks = index, workers, blocks
        host.lives = [0] * len(blocks)

    def _wait_for_all(self) -> None:
        limit_s = self._cluster.wait_s
        end = None if limit_s is None else time.monotonic() + limit_s
        told_s = time.monotonic()
        while len(self._new) < self._cluster.nodes:
            self._take_next()
            now = time.monotonic()
            # Somebody who types the wrong thing by hand tries again.
            refused = self._refused and not isinstance(self._cluster, Join)
            problem = self._refused[0] if refused else self._launcher.failure()
            if problem and len(self._new) < self._cluster.nodes:
                raise LaunchError(f"a node could not join: {problem}")
            if now - told_s > _TELL_EVERY_S:
                told_s = now
                arrived = f"{len(self._new)} of {self._cluster.nodes} nodes are there"
                _logger.info("%s; %s", arrived, self._launcher.status())
            if end is not None and now > end:
                hint = f"{self._launcher.status()}. {self.last_words()}"
                raise WorkersMissing(len(self._new), self._cluster.nodes, limit_s or 0.0, hint, what="nodes")

    def receive(self, limit_s: float) -> tuple[Host, m.FromNode | ProtocolError, list[Any]] | None:
        """The next message of a member, or what is wrong with it. Who wants to join is let in, or told why not."""
        if self._goodbyes:
            return self._goodbyes.popleft()
        got = self._open().receive(limit_s)
        sorted_out = None if got is None else self._sort(*got)
        # A node that joins may have shown that the one before it is gone.
        return self._goodbyes.popleft() if sorted_out is None and self._goodbyes else sorted_out

    def expect(self, size: int) -> None:
        """Environments and fragments of all nodes have this many bytes; of what they send, some times that may wait."""
        self._open().expect(size)

    def _take_next(self) -> None:
        """While nodes are waited for: take the next message, which may let one more in."""
        got = self._open().receive(_LOOK_S)
        sorted_out = None if got is None else self._sort(*got)
        if sorted_out is None:
            return
        host, message, _ = sorted_out
        host.heard_s = time.monotonic()
        # Nodes without slots have nothing to say but that they live, maybe for hours. Nobody needs to keep that.
        if isinstance(message, ProtocolError):
            self._turn_away(host, f"it sent what is no message: {message}")

    def _turn_away(self, host: Host, reason: str) -> None:
        _logger.warning("node %s is refused: %s", host.name, reason)
        host.tell(m.Refuse(reason=reason[:1000]))
        self._drop_new(host)
        self._refused.append(f"{host.name}: {reason}")

    def _sort(self, peer: bytes, pieces: list[Any]) -> tuple[Host, m.FromNode | ProtocolError, list[Any]] | None:
        host = self._peers.get(peer)
        if host is not None and host.lost:
            return None
        try:
            frames = split_frames(pieces)
            message = _readable(m.decode_from_node(frames))
        except CutOff:
            return None
        except ProtocolError as error:
            why = shown(str(error))
            _logger.warning("a message of a node was dropped: %s", why)
            if host is not None:
                return host, ProtocolError(why), []
            # Whoever knocks waits for an answer.
            reason = f"it cannot be understood here ({why[:500]}). Install the same version on all hosts."
            self._open().send(peer, [m.encode(m.Refuse(reason=reason))])
            return None
        if isinstance(message, m.Hello):
            self._greet(peer, message)
            return None
        if host is not None and isinstance(message, m.Beat):
            host.tell(m.Heard())
        if host in self._new and isinstance(message, m.Leave):
            self._drop_new(host)
            return None
        return None if host is None else (host, message, frames[1:])

    def _drop_new(self, host: Host) -> None:
        """A node that has no slots yet is gone again, as if it had never come: its place is for the next."""
        self._new.remove(host)
        host.lost = True
        self._wanted += 1

    def _drop_dead(self) -> None:
        """Forget the newcomers that have no connection any more."""
        for host in list(self._new):
            if not host.tell(m.Ping()):
                self._drop_new(host)

    def _greet(self, peer: bytes, hello: m.Hello) -> None:
        host = self._hosts.get(hello.incarnation)
        if host is not None and not host.lost:  # after a broken connection
            self._peers.pop(host.peer, None)
            self._peers[peer] = host
            self._welcome(peer)
            host.come_back(peer)
            return
        reason = self._objection(hello)
        if host is not None:
            reason = "it was silent for too long and has been replaced"
        elif reason is None and self._wanted < 1 and not self._takes_its_own_place(hello):
            reason = f"all {self._cluster.nodes} nodes are there already"
        if reason is not None:
            _logger.warning("node %s is refused: %s", hello.name, reason)
            self._open().send(peer, [m.encode(m.Refuse(reason=reason))])
            if self._wanted > 0:
                self._refused.append(f"{hello.name}: {reason}")
            return
        self._wanted = max(0, self._wanted - 1)
        host = Host(-1, self._open(), peer, hello)
        self._hosts[hello.incarnation] = self._peers[peer] = host
        self._forget_lost()
        self._new.append(host)
        self._welcome(peer)

    def _forget_lost(self) -> None:
        """Only the newest are remembered: a run that lives for months may lose nodes every day."""
        lost = [host for host in self._hosts.values() if host.lost]
        for host in lost[: -(_REMEMBERED + self._cluster.nodes)]:
            del self._hosts[host.hello.incarnation]
            self._peers.pop(host.peer, None)

    def _takes_its_own_place(self, hello: m.Hello) -> bool:
        """Let a node that its engine has started again take its place, if the one before it is lost or unconnected.

        Nodes before it whose loss nobody has noticed yet leave now. Returns whether it has a place.
        """
        before = [host for host in self._hosts.values() if host.hello.index == hello.index]
        living = [host for host in before if not host.lost]
        if hello.index is None or not before or any(host.tell(m.Ping()) for host in living):
            return False
        for host in living:
            reason = "another process has taken its place"
            if host in self._new:
                self._new.remove(host)
                host.lost = True
            else:
                self._goodbyes.append((host, m.Leave(reason=reason), []))
        return True

    def _objection(self, hello: m.Hello) -> str | None:
        if hello.protocol != m.PROTOCOL or hello.clusterenv != __version__:
            return (
                f"it has clusterenv {hello.clusterenv} (protocol {hello.protocol}), the head has {__version__} "
                f"(protocol {m.PROTOCOL}). Install the same version on all hosts."
            )
        if hello.run != self._keys.node.run:
            return "it belongs to another run"
        if hello.epoch > self.epoch:
            return f"it has served a later head of this run (epoch {hello.epoch}; this one has {self.epoch})"
        if not hello.fresh:
            return "it holds what another head of this run has left, and has to begin anew"
        return None

    def _welcome(self, peer: bytes) -> None:
        self._open().send(peer, [m.encode(m.Welcome(silence_s=self.silence_s, beat_s=self.beat_s, epoch=self.epoch))])

    # After a loss.

    @property
    def wait_s(self) -> float | None:
        """How long somebody waits for a node."""
        return self._cluster.wait_s

    def make_room(self, lost: Host, expected: int, *, start: bool = True, patient: bool = False) -> None:
        """The place of a lost host is free: let its launcher start a node for it.

        Args:
            lost: the host.
            expected: how many others are on their way.
            start: whether the launcher shall do that.
            patient: if it cannot, or shall not, leave the place to whoever may come.

        Raises:
            LaunchError: no node will come.
        """
        self._drop_dead()
        if len(self._new) > expected:
            return  # somebody has come by himself
        place = lost.hello.index
        started = start and place is not None and self._launcher.restart(place)
        if not started and not patient:
            why = self._launcher.failure() or ""
            raise LaunchError(f"node {lost.name} is lost, and its launcher cannot start it again. {why}")
        self._wanted += 1

    def newcomer(self, lost: Host) -> Host | None:
        """A node that has come in takes the place of a lost host, if one is there."""
        self._drop_dead()
        if not self._new:
            return None
        own = [host for host in self._new if host.hello.index == lost.hello.index]
        host = own[0] if own else self._new[0]
        self._new.remove(host)
        host.heard_s = time.monotonic()  # it may have come a while ago
        self._settle(host, lost.index, lost.workers, lost.blocks)
        host.generation = lost.generation + 1
        return host

    def expect_no_longer(self) -> None:
        """A node that was expected is not waited for any more."""
        self._wanted = max(0, self._wanted - 1)

    def launcher_problem(self) -> str | None:
        """Why no more nodes will come, in the words of the launcher."""
        return self._launcher.failure()

    def seems_gone(self, host: Host) -> str | None:
        """Whether a host that is not heard has no connection, and its launcher knows why."""
        return None if host.tell(m.Ping()) else self._launcher.failure()

    def logs(self) -> dict[str, str]:
        """The last lines that each node wrote, by the name that the launcher has for it.

        Raises:
            ConfigError: the launcher cannot know them.
        """
        if isinstance(self._cluster, Join):
            raise ConfigError(
                f"cluster={self._cluster.text!r} keeps no logs: its nodes were started by hand, and what they write "
                "stays on their machines. Look at the terminals in which `clusterenv join` runs."
            )
        return self._launcher.logs()

    def last_words(self) -> str:
        """What the nodes wrote last, for an error."""
        lines = [f"{name}: {text.strip()[-500:]}" for name, text in self._launcher.logs().items() if text.strip()]
        return "Their last words: " + " | ".join(lines) if lines else ""

    def close(self, limit_s: float | None) -> None:
        """Let the nodes close within the limit, or for as long as they take, then end them."""
        end = time.monotonic() + (_FOR_EVER_S if limit_s is None else limit_s)
        hub = self._hub
        try:
            if hub is not None:
                self._say_goodbye(hub, end)
        except BaseException:
            end = min(end, time.monotonic() + _HURRY_S)
            raise
        finally:  # also after Ctrl-C: nobody closes a second time
            try:
                self._launcher.close(max(0.0, end - time.monotonic()))
            finally:
                if hub is not None:
                    hub.close()
                    self._hub = None

    def _say_goodbye(self, hub: Hub, end: float) -> None:
        for _ in range(AT_ONCE):  # who has come back meanwhile has another connection
            if (got := hub.receive(0.0)) is None:
                break
            self._sort(*got)
        for host in self.members:
            host.tell(m.Close(limit_s=max(0.0, end - time.monotonic())))
        waiting = {host.peer: host for host in self.members}
        look_at = time.monotonic() + _STILL_THERE_S
        while waiting and (now := time.monotonic()) < end:
            if now >= look_at:  # who was killed meanwhile says nothing any more
                look_at = now + _STILL_THERE_S
                waiting = {peer: host for peer, host in waiting.items() if host.tell(m.Ping())}
            got = hub.receive(min(_LOOK_S, end - now))
            if got is not None and _says_goodbye(got[1]):
                waiting.pop(got[0], None)

    def _open(self) -> Hub:
        if self._hub is None:
            raise LaunchError("the cluster is closed.")
        return self._hub


_INSTEAD = "Set bind= to a private address of this host, or leave insecure out."


def _private(listen: str) -> str:
    """The address to listen on. Without keys it is under no circumstances one that the whole internet can reach.

    A name is looked up here and once: what libzmq would find behind it, later, nobody has checked.
    """
    refused = f"insecure=True with bind={listen!r} is refused"
    try:
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(listen, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{refused}: its address is not known ({words_of(error)}). {_INSTEAD}") from error
    for address in found:
        try:
            public = next((each for each in _meant(address) if each.is_global), None)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{refused}: the addresses of this host cannot be found out ({words_of(error)}). {_INSTEAD}"
            ) from error
        if public is not None:
            raise ConfigError(f"insecure=True with the public address {public} is refused. {_INSTEAD}")
    return found[0]


def _meant(address: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """By which addresses one is reached who listens on this one."""
    found = ipaddress.ip_address(address)
    found = getattr(found, "ipv4_mapped", None) or found
    if not found.is_unspecified:
        return [found]
    # Who listens on :: is reached over IPv4 as well. The name of this host may stand for an address that only a router
    # in front of it has.
    meant = own_addresses() + interface_addresses(socket.AF_INET)
    if found.version == 6:
        meant += interface_addresses(socket.AF_INET6)
    return [ipaddress.ip_address(own) for own in meant]


def _readable(message: m.FromNode) -> m.FromNode:
    """A message whose words are safe to log, to raise and to print: they could steer the terminal of the reader."""
    fields = _WORDS.get(type(message))
    if fields is None:
        return message
    words = {field: shown(getattr(message, field)) for field in fields}
    if isinstance(message, m.Hello):  # in one line, which is its own
        words = {field: " ".join(text.split()) for field, text in words.items()}
    return msgspec.structs.replace(message, **words)


def _says_goodbye(pieces: list[Any]) -> bool:
    try:
        return isinstance(m.decode_from_node(split_frames(pieces)), m.Leave)
    except ProtocolError:
        return False
