"""Fresh workers on other hosts, in the place of lost ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterenv.errors import ProtocolError
from clusterenv.node.records import CODEC, check_reply
from clusterenv.wire import messages as m
from clusterenv.worker.loop import Reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterenv.node.crew import Crew
    from clusterenv.node.host import Host
    from clusterenv.node.returning import Returns


class Replacements:
    """Those that are being built, and what came of the others.

    Args:
        crew: all workers; those that are built are alive again.
        returns: brings back hosts that are lost as a whole.
    """

    def __init__(self, crew: Crew, returns: Returns) -> None:
        self._crew, self._returns = crew, returns
        self._came: dict[int, Reply | None] = {}  # what went wrong with each that is there, or None

    def begin(self, worker: int, seeds: Sequence[int | None], limit_s: float | None, *, patient: bool) -> None:
        """Ask for a fresh worker in the place of a lost one; do not wait for it."""
        host, mine = self._crew.host_of(worker), self._crew.within(worker)
        if host.lost:
            self._returns.expect(host, mine, seeds, patient=patient)
            return
        host.lives[mine] += 1
        life = host.lives[mine]
        self._came.pop(worker, None)

        def replaced(answer: m.Answer, frames: Sequence[Any]) -> None:
            if host.lives[mine] == life:  # else it came too late, and was replaced again
                self._take(worker, answer)

        host.ask(m.Replace, replaced, worker=mine, seeds=list(seeds), limit_s=limit_s)

    def _take(self, worker: int, answer: m.Answer) -> None:
        if answer.error:
            self._came[worker] = Reply(error=answer.error)
            return
        problem, pid = CODEC.unpack(answer.value)
        if problem is not None:
            check_reply(problem, self._crew.blocks[worker], "replace")
        if not isinstance(pid, int | None):
            raise ProtocolError(f"a replacement was answered with a process {str(pid)[:80]}.")
        self._came[worker] = problem
        self._crew.pids[worker] = pid
        self._crew.alive[worker] = problem is None

    def tend(self) -> bool:
        """Help lost hosts on their way back; whether any are still on it."""
        for host, pids in self._returns.tend():
            self._back(host, pids)
        return self._returns.any

    def _back(self, host: Host, pids: Sequence[int | None]) -> None:
        for worker, pid in zip(host.workers, pids, strict=True):
            self._crew.alive[worker], self._crew.pids[worker] = True, pid
            self._came[worker] = None

    def building(self, worker: int) -> bool:
        """Whether a replacement is under way, on a host that is not lost."""
        dead = not self._crew.alive[worker] and not self._crew.host_of(worker).lost
        return dead and worker not in self._came

    def take(self, workers: Sequence[int]) -> dict[int, Reply | None]:
        """Those of these that are there by now, each with what went wrong, or None. Each is told of once."""
        return {worker: self._came.pop(worker) for worker in workers if worker in self._came}
