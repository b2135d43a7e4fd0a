"""What nodes on the head's own host have in common: one host, whose workers see the head's memory itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterenv.errors import ConfigError
from clusterenv.node.base import NetworkBytes, Waiting
from clusterenv.transport.weights import WeightBuffer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterenv.node.base import Incarnation
    from clusterenv.sync.codec import Decoded, Encoded
    from clusterenv.transport.fragments import Fragments
    from clusterenv.transport.shared import SharedArrays
    from clusterenv.worker.actor import Attachment

_COME_BACK_S = 60.0


class Here(Waiting):
    """The words of `node.base` that need no messages on one host."""

    blocks: Sequence[range]

    @property
    def epoch(self) -> int:
        """Always the first: these workers end with their head and never meet another."""
        return 0

    @property
    def news_s(self) -> float:
        """The head sees the steps in shared memory."""
        return 0.0

    @property
    def come_back_s(self) -> float | None:
        """A replacement on this host is there within seconds, or never."""
        return _COME_BACK_S

    @property
    def network_bytes(self) -> NetworkBytes:
        """Memory is shared, and sockets between processes are no network."""
        return NetworkBytes()

    @property
    def hosts(self) -> list[range]:
        """One host: this one."""
        return [range(len(self.blocks))]

    def check_attachable(self, attachment: Attachment) -> None:
        """Any policy can be handed over on one host."""

    def host_life(self, host: int) -> Incarnation:
        """Weights in shared memory outlive every worker."""
        return 0, 0

    def may_give(self, host: int, memory: SharedArrays) -> bool:
        """Weights are taken at once."""
        return True

    def wait_taken(self, limit_s: float | None) -> None:
        """Weights are taken at once."""

    def give(self, host: int, memory: SharedArrays, encoded: Encoded, decoded: Decoded) -> None:
        """Put the weights where the workers find them."""
        WeightBuffer(memory).put(decoded.version, decoded.flat)

    def logs(self) -> dict[str, str]:
        """There is no other place than this one."""
        raise ConfigError(
            "there is no log of a node: on this host environments write to the standard output and error of this "
            "process itself. Look there; or use a cluster with nodes, such as cluster='tcp:nodes=1'."
        )

    def halt(self, fragments: Fragments) -> None:
        """Whoever plays stops after the step that it is in."""
        fragments.stop[:] = 1
