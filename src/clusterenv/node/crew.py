"""The workers on all hosts, by their number in the cluster: on which host each is, and whether it lives."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterenv.node.base import Incarnation
    from clusterenv.node.host import Host


class Crew:
    """All workers of a cluster.

    Attributes:
        hosts: the nodes; one that was lost and came back is another object in the same place.
        blocks: the slots of each worker.
        alive: whether each worker is not lost.
        pids: the process of each on its host, None where there is none.
    """

    def __init__(self) -> None:
        self.hosts: list[Host] = []
        self.blocks: list[range] = []
        self.alive: list[bool] = []
        self.pids: list[int | None] = []
        self._host: list[int] = []

    def assemble(self, hosts: list[Host], blocks: list[range]) -> None:
        """These nodes have joined, and have these slots."""
        self.hosts, self.blocks = hosts, blocks
        self.alive, self.pids = [True] * len(blocks), [None] * len(blocks)
        self._host = [host.index for host in hosts for _ in host.workers]

    def host_of(self, worker: int) -> Host:
        """The node of a worker."""
        return self.hosts[self._host[worker]]

    def within(self, worker: int) -> int:
        """The number of a worker within its node."""
        return worker - self.host_of(worker).workers.start

    def by_host(self, workers: Iterable[int]) -> dict[int, list[int]]:
        """These workers, by the index of their host."""
        grouped: dict[int, list[int]] = {}
        for worker in workers:
            grouped.setdefault(self._host[worker], []).append(worker)
        return grouped

    def alive_of(self, host: Host) -> list[bool]:
        """Whether each worker of a host is not lost."""
        return self.alive[host.workers.start : host.workers.stop]

    def incarnation(self, worker: int) -> Incarnation:
        """Another one for every process that takes this worker's place."""
        host = self.host_of(worker)
        return host.generation, host.lives[self.within(worker)]
