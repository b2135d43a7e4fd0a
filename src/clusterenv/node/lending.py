"""What nodes on other hosts are lent: a policy, its weights, and memory for fragments.

Shared memory ends at the host. So every node makes memory of its own for each that the head has, and knows it by a
number. Weights go to a node once it has the policy; one version at a time, and in pieces, so that a slow link is never
flooded.
"""

from __future__ import annotations

import functools
import logging
import math
from typing import TYPE_CHECKING, Any

from clusterenv.errors import ConfigError, ProtocolError
from clusterenv.node.columns import columns_from_frames
from clusterenv.node.parcels import pieces_of
from clusterenv.node.records import attachment_to_data, fragment_spec_to_data
from clusterenv.transport.fragments import Fragments
from clusterenv.transport.sockets import MAX_FRAME_BYTES
from clusterenv.wire import messages as m
from clusterenv.wire.arrays import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterenv.node.base import Message
    from clusterenv.node.host import Host
    from clusterenv.sync.codec import Encoded
    from clusterenv.transport.arena import Arena
    from clusterenv.transport.fragments import FragmentSpec
    from clusterenv.transport.shared import SharedArrays
    from clusterenv.worker.actor import Fragment

_logger = logging.getLogger(__name__)


class Lending:
    """The memory of the head that nodes have counterparts of."""

    def __init__(self) -> None:
        # Weights that wait for the policy of a host to be on its way, with the number of their memory.
        self._later: dict[int, tuple[int, Encoded]] = {}
        self.fragments: Fragments | None = None

    def data_of(self, message: Message, memory: SharedArrays) -> Any:
        """What a node must know to make its own memory, and the policy for it."""
        if message.name == "attach":
            return attachment_to_data(message.arguments[0])
        spec = message.arguments[0]
        _check_frames(spec)
        self.fragments = Fragments(spec, memory)
        return fragment_spec_to_data(spec)

    def lent(self, host: Host, number: int) -> None:
        """A host has been told of a memory: weights that waited for that can go."""
        host.memories.add(number)
        if self._waits(host, number):
            self._send(host, *self._later.pop(host.index))

    def may_give(self, host: Host, memory: SharedArrays) -> bool:
        """Whether a host can take weights for this memory. Those that wait for another were never wanted."""
        return host.giving is None and not host.lost and not self._waits(host, memory.number)

    def give(self, host: Host, memory: SharedArrays, encoded: Encoded) -> None:
        """Send weights to a host, or keep them until it has been told of their memory."""
        if memory.number in host.memories:
            self._send(host, memory.number, encoded)
        else:
            self._later[host.index] = (memory.number, encoded)

    def _waits(self, host: Host, number: int) -> bool:
        return host.index in self._later and self._later[host.index][0] == number

    def _send(self, host: Host, number: int, encoded: Encoded) -> None:
        base = None if encoded.base_version is None else tuple(encoded.base_version)
        version = {"kind": encoded.kind, "base": base, "version": tuple(encoded.version), "digest": encoded.digest}
        waiting = host.giving = set()  # the pieces that are not answered; another set for every version

        def taken(offset: int, answer: m.Answer, frames: Sequence[Any]) -> None:
            waiting.discard(offset)
            if answer.error and host.giving is waiting:
                _logger.warning("node %s could not use its weights and gets them whole: %s", host.name, answer.error)
                host.spoilt += 1
            if (answer.error or not waiting) and host.giving is waiting:
                host.giving = None

        for offset, piece in pieces_of(encoded.payload):
            waiting.add(offset)
            fields = {"memory": number, "offset": offset, "size": encoded.nbytes, **version}
            host.ask(m.Weights, functools.partial(taken, offset), [piece], **fields)

    def take_fragment(self, arena: Arena, block: range, fragment: Fragment, frames: Sequence[Any]) -> None:
        """Fill the columns of a fragment that has arrived."""
        if self.fragments is None or not 0 <= fragment.buffer < self.fragments.spec.buffers:
            raise ProtocolError("a fragment came that nobody asked for.")
        if fragment.steps > self.fragments.spec.steps:
            raise ProtocolError(
                f"a fragment of {shown(fragment.steps)} steps came; there is room for {self.fragments.spec.steps}."
            )
        columns = self.fragments.columns(fragment.buffer, block)
        columns_from_frames(columns, frames)
        # As the worker leaves its own arena: the newest observation, in the middle of an episode.
        mine = arena.spec.rows(block)
        for array, played in zip(arena.observation, columns.obs, strict=True):
            array[mine] = played[min(fragment.steps, len(played) - 1)]
        arena.terminated[mine] = arena.truncated[mine] = False

    def take_progress(self, workers: range, progress: Sequence[int]) -> None:
        """How many steps each worker of a host has played."""
        if self.fragments is not None and len(progress) == len(workers):
            self.fragments.progress[workers.start : workers.stop] = progress


def _check_frames(spec: FragmentSpec) -> None:
    """Raise ConfigError if a worker's part of a fragment does not fit one frame: it would break the connection."""
    slots = -(-spec.num_envs // spec.num_workers)
    states = [("states", leaf) for leaf in spec.state] if spec.every_state else []
    for what, leaf in [*(("observations", leaf) for leaf in spec.observation), *states]:
        size = (spec.steps + 1) * slots * leaf.dtype.itemsize * math.prod(leaf.shape)
        if size > MAX_FRAME_BYTES:
            raise ConfigError(
                f"{spec.steps} steps of {slots} slots have {size / 2**30:.1f} GiB of {what}, more than the "
                f"{MAX_FRAME_BYTES / 2**30:.0f} GiB that a worker on another host may send at once. Use fewer steps or "
                "more workers."
            )
