"""Hosts reached by SSH."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from clusterenv.clusters.addresses import split_address
from clusterenv.clusters.base import Remote, options_of
from clusterenv.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssh(Remote):
    """Hosts reached by SSH, one node each. Host keys are always checked.

    Attributes:
        hosts: "host", "user@host" or "user@host:port"; IPv6 addresses in brackets.
        known_hosts: a file of host keys in place of ~/.ssh/known_hosts.
        config: a file in place of ~/.ssh/config.
        identity: a file with the private key in place of the usual ones and the agent.
    """

    kind: ClassVar[str] = "ssh"

    hosts: tuple[str, ...]
    known_hosts: str = ""
    config: str = ""
    identity: str = ""
    nodes: int = field(init=False, default=0)

    def _check(self) -> None:
        if not self.hosts:
            raise ConfigError("ssh: no host is named. Name at least one, as in 'ssh://node1,user@node2:2222'.")
        seen: set[tuple[str, int]] = set()
        for host in self.hosts:
            address = split_address(host, what="ssh: host", user=True)
            place = (address.host.lower(), address.port or 22)
            if place in seen:
                raise ConfigError(
                    f"ssh: host {host[:80]!r} is named twice, and a host runs one node. "
                    "Name it once; for more processes there set workers=."
                )
            seen.add(place)
        object.__setattr__(self, "nodes", len(self.hosts))

    @property
    def interpreter(self) -> str:
        """The Python that is started on the hosts; "python3" unless another was named."""
        return self.python or "python3"

    @property
    def text(self) -> str:
        """The short text that means the same."""
        options = options_of(self)
        return f"ssh://{','.join(self.hosts)}" + (f"?{'&'.join(options)}" if options else "")
