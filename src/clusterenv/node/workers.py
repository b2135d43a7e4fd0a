"""The worker processes of this host: started, watched, ended, and reported when they are lost."""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
from typing import TYPE_CHECKING

from clusterenv.amounts import parse_bytes
from clusterenv.cluster.restart import Fault
from clusterenv.config import usable_cores
from clusterenv.node.base import Loss
from clusterenv.node.handle import WorkerHandle
from clusterenv.node.starting import check_descriptors, pickled
from clusterenv.node.supervisor import Supervisor, search_path
from clusterenv.transport.channel import Channel, ChannelClosed, pack
from clusterenv.transport.uninterrupted import uninterrupted
from clusterenv.transport.wake import check_supported
from clusterenv.worker.loop import Setup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterenv.config import Local
    from clusterenv.node.board import Board
    from clusterenv.worker.base import Block

_logger = logging.getLogger(__name__)

# How long we wait to learn why a process ended, and for the end of one that was killed.
_EXIT_S = 1.0
# Beside one channel per worker: the control socket, the arena, and what starting a process takes for a moment.
_SPARE_DESCRIPTORS = 12


class Workers:
    """The processes of all workers, with a channel to each.

    Args:
        builders: what builds the block of each worker.
        blocks: the slots of each worker.
        cluster: how the workers are set up.
        spared: whether workers ignore the signals by which an engine ends a node, because the node ends them itself.

    Attributes:
        handles: what is known of each worker.
        spare_core: whether there is a core that none of the workers needs: only then may anybody spin while it waits.
        supervisor: starts and ends the processes.
        board: the words in which workers are asked and answer; there from the moment that they have an arena.
    """

    board: Board

    def __init__(
        self, builders: Sequence[Callable[[], Block]], blocks: Sequence[range], cluster: Local, *, spared: bool
    ) -> None:
        check_supported()
        check_descriptors(len(blocks), "workers", len(blocks) + _SPARE_DESCRIPTORS)
        self._cluster = cluster
        self._builds = [pickled(build) for build in builders]
        limit = cluster.worker_memory
        self._memory_limit = parse_bytes("worker_memory", limit) if limit else None
        self._cores = sorted(os.sched_getaffinity(0))
        self.spare_core = usable_cores() > len(blocks)
        self.handles = [WorkerHandle(worker, slots) for worker, slots in enumerate(blocks)]
        self._losses: list[Loss] = []
        self.supervisor = Supervisor(cluster.threads, spared=spared)

    def launch(self, handle: WorkerHandle) -> None:
        """Start a process for a worker and send it its set-up; do not wait for it."""
        channel, theirs = Channel.pair()
        with theirs:
            try:
                token = self.supervisor.start(theirs, self._cluster.core_for(handle.worker, self._cores))
            except BaseException:
                channel.close()
                raise
        handle.renew(channel, token)
        build, authkey = self._builds[handle.worker], bytes(multiprocessing.current_process().authkey)
        setup = Setup(handle.worker, search_path(), self.spare_core, build, self._memory_limit, authkey)
        try:
            channel.send_later(pack(setup))  # what the socket does not hold goes out by `push`
        except ChannelClosed as error:
            self.channel_failed(handle, f"it did not take its set-up: {error}")

    def relaunch(self, worker: int, seeds: Sequence[int | None]) -> None:
        """Start a process in the place of one that is lost."""
        handle = self.handles[worker]
        # The old process should be gone before another writes to the same rows; one stuck in the kernel writes none.
        if self.supervisor.exited(handle.token, _EXIT_S) is None:
            _logger.warning("worker %d does not end although it was killed", worker)
        self.supervisor.forget(handle.token)
        handle.channel.close()
        self.launch(handle)
        handle.started_s = time.monotonic()
        handle.fresh_seeds = tuple(seeds)

    def look_at_all(self) -> None:
        """See whether the workers still live."""
        for handle in self.handles:
            self.look(handle)

    def look(self, handle: WorkerHandle) -> bool:
        """Whether a worker is lost, also if it has ended just now. One that sleeps although it was asked is woken."""
        if handle.lost:
            return True
        ended = self.supervisor.exited(handle.token)
        if ended is not None:
            self.count_as_lost(handle, ended.describe())
        elif handle.bound:
            self.board.wake_again(handle.worker)
        return ended is not None

    def lose(self, worker: int, cause: str) -> None:
        """Kill a worker and count it as lost."""
        handle = self.handles[worker]
        if not handle.lost:
            self.supervisor.kill(handle.token)
            self.count_as_lost(handle, cause)

    def channel_failed(self, handle: WorkerHandle, cause: str) -> None:
        """Find out why the channel of a worker failed, end its process, and count it as lost."""
        ended = self.supervisor.exited(handle.token, _EXIT_S)
        if ended is None:
            self.supervisor.kill(handle.token)
        self.count_as_lost(handle, cause if ended is None else ended.describe())

    def count_as_lost(self, handle: WorkerHandle, cause: str) -> None:
        """Count a worker as lost, once, with what the arena tells about its last moment."""
        if not handle.lost:
            # Marked as lost and not counted, nobody would hear of it.
            uninterrupted(self._count_as_lost, handle, cause)

    def _count_as_lost(self, handle: WorkerHandle, cause: str) -> None:
        handle.lost = True
        slot = torn = None
        reported, fault = True, Fault.CRASH
        if handle.bound:
            if grown := self.board.outgrown(handle.worker):
                cause = f"its memory grew to {grown:,} MiB, and worker_memory is {self._cluster.worker_memory}"
                fault = Fault.MEMORY
            slot, torn = self.board.position(handle.worker)
            reported = not self.board.unread(handle.worker)
            self.board.excuse(handle.worker)
        self._losses.append(Loss(handle.worker, cause, slot, torn, reported, fault))

    @property
    def has_losses(self) -> bool:
        """Whether there are any."""
        return bool(self._losses)

    def losses(self) -> list[Loss]:
        """The workers lost since they were last asked for."""
        losses, self._losses = self._losses, []
        return losses

    def pids(self) -> list[int | None]:
        """The process of each worker, or None where there is none."""
        return [self.supervisor.pid(handle.token) for handle in self.handles]

    def close(self) -> None:
        """End every process and close the channels."""
        self.supervisor.close()
        for handle in self.handles:
            handle.close()
