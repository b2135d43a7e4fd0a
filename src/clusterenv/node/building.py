"""The first two requests to a node on another host: build your environments, then make memory for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterenv.errors import ProtocolError
from clusterenv.node.records import CODEC
from clusterenv.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterenv.node.host import Host
    from clusterenv.wire.envs import BuildOrder


def ask_to_build(host: Host, order: BuildOrder, limit_s: float | None, found: dict[int, Any]) -> None:
    """Let a node build its share; what it answers goes into `found`, by its index (see `raise_remote_start_error`).

    Args:
        host: the node.
        order: for all slots of the batch.
        limit_s: for the node.
        found: takes the answer.
    """

    def built(answer: m.Answer, frames: Sequence[Any]) -> None:
        found[host.index] = answer.error or CODEC.unpack(answer.value)

    blocks = [(block.start, block.stop) for block in host.blocks]
    packed = CODEC.pack(order.to_data(host.slots))
    host.ask(m.Build, built, blocks=blocks, recipes=packed, limit_s=limit_s, worker_memory=order.worker_memory)


def ask_to_bind(host: Host, spaces: tuple[Any, Any], seeds: Any, bound: dict[int, list[int | None]]) -> None:
    """Let a node make its arena; the processes of its workers go into `bound`, by its index.

    `seeds` are those of workers that take the place of lost ones, by worker, or None.
    """

    def done(answer: m.Answer, frames: Sequence[Any]) -> None:
        if answer.error:  # then it is given up, and whoever waits for it is told why
            raise ProtocolError(f"it could not make memory for its environments: {answer.error}")
        pids = CODEC.unpack(answer.value)
        if (
            type(pids) is not list
            or len(pids) != len(host.workers)
            or not {int, type(None)}.issuperset(map(type, pids))
        ):
            raise ProtocolError(f"node {host.name} has {len(host.workers)} workers and told of {str(pids)[:80]}.")
        bound[host.index] = pids

    host.ask(m.Bind, done, spaces=CODEC.pack((*spaces, seeds)))
