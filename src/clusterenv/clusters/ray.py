"""Hosts of a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from clusterenv.clusters.addresses import split_address
from clusterenv.clusters.base import MAX_WORKERS_PER_NODE, Remote
from clusterenv.clusters.checks import NAME, check_whole, refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Ray(Remote):
    """Hosts of a Ray cluster, each with an actor that runs the node.

    Attributes:
        cpus: CPUs that Ray sets aside for each node. 0 means as many as `workers`, and 1 if that is 0 too.
        address: of the Ray head, "host:port"; "auto" for the Ray that runs on this host; "local" for a new one on this
            host. "" means the one in RAY_ADDRESS, or else the one that runs here, or else a new one.
        namespace: the Ray namespace in which the actors have their names.
    """

    kind: ClassVar[str] = "ray"

    cpus: int = 0
    address: str = ""
    namespace: str = "clusterenv"
    wait_s: float | None = 120.0

    def _check(self) -> None:
        check_whole(self, "cpus", 0, MAX_WORKERS_PER_NODE)
        if not NAME.fullmatch(self.namespace):
            raise refused(self, "namespace", self.namespace, "1 to 128 letters, digits and . _ @ + -")
        if self.address in ("", "auto", "local"):
            return
        if self.address.startswith("ray://"):
            raise refused(
                self, "address", self.address, "'host:port': nodes have to reach this host, so run on one of Ray's own"
            )
        if not split_address(self.address, what="ray: address").port:
            raise refused(self, "address", self.address, "'host:port' with a port, as in 'head:6379'")
