"""What the head asks of a node, wherever it is: the same words for blocks in this process and in others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from gymnasium.error import ClosedEnvironmentError

from clusterenv.cluster.restart import Fault

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gymnasium import Space

    from clusterenv.sync.codec import Decoded, Encoded
    from clusterenv.transport.arena import Arena, Command
    from clusterenv.transport.fragments import Fragments
    from clusterenv.transport.shared import SharedArrays
    from clusterenv.worker.actor import Attachment
    from clusterenv.worker.describe import BlockDescription
    from clusterenv.worker.loop import Reply
    from clusterenv.worker.report import Report


# (generation of the node in this place, life within it): compared, never counted with.
Incarnation: TypeAlias = tuple[int, int]


class Loss(NamedTuple):
    """A worker is lost.

    Attributes:
        worker: its index.
        cause: what is known of its end.
        slot: the slot it was stepping, or None.
        torn: the slots whose rows it was writing, which may be half old and half new, or None.
        reported: whether everything that it had announced has arrived.
        fault: which kind it is; each has a budget of its own.
    """

    worker: int
    cause: str
    slot: int | None
    torn: range | None
    reported: bool = True
    fault: Fault = Fault.CRASH


class NetworkBytes(NamedTuple):
    """Bytes of messages between head and nodes, without what sockets and encryption add."""

    received: int = 0
    sent: int = 0


class Waiting:
    """What the waits of nodes have in common."""

    ending, plays_ahead = False, True  # see `Node`

    def _go_on_waiting(self) -> None:
        if self.ending:
            raise ClosedEnvironmentError("The batch is being closed by another thread.")


class Message(NamedTuple):
    """A request that goes over the channel: the name of a method of the block and its arguments."""

    name: str
    arguments: tuple[Any, ...]


class Node(Protocol):
    """The workers of one host.

    Attributes:
        ending: whether another thread wants to close the batch: whoever waits for workers stops waiting.
        plays_ahead: whether workers play while the head does something else, so that a stream may fall behind them.
        reported: what the workers have reported. It stays here until it is handed over, and another takes its place:
            so it is at one place only, and an interrupt on the way cannot lose it.
    """

    ending: bool
    plays_ahead: bool
    reported: Report

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""

    @property
    def blocks(self) -> Sequence[range]:
        """The slots of each worker."""

    @property
    def epoch(self) -> int:
        """Which head of its run this is: 0 for the first."""

    @property
    def news_s(self) -> float:
        """How old the count of steps that workers have played may be, in seconds."""

    @property
    def come_back_s(self) -> float | None:
        """How long lost nodes are waited for."""

    @property
    def network_bytes(self) -> NetworkBytes:
        """What has gone over the network so far: nothing where all is on one host."""

    def start(self, limit_s: float | None) -> list[BlockDescription]:
        """Build every block and say what it is."""

    def bind(self, arena: Arena, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Give the workers the arena."""

    def request(
        self, command: Command, workers: Sequence[int], actions: Mapping[int, Mapping[int, Any]] | None
    ) -> None:
        """Ask these workers to step the slots that are asked for in the arena.

        `actions` holds those that fit no array, by worker and row, each with the number that its slot was asked with:
        one that comes twice, or too late, is never taken for another.
        """

    def check_attachable(self, attachment: Attachment) -> None:
        """Raise ConfigError if this policy cannot reach the workers."""

    def check_sendable(self, actions: Sequence[Any]) -> None:
        """Raise ResultError if these actions cannot reach a worker."""

    def wait(self, workers: Sequence[int], limit_s: float | None) -> list[int]:
        """Wait until these workers have answered or are lost; return those that are late."""

    def wait_any(self, limit_s: float) -> bool:
        """Wait until some slot may have become ready, or for a short while; return whether something happened."""

    def listen(self) -> None:
        """From here on `wait_any` hears of slots that become ready. Look at them after this."""

    def reports(self) -> Report:
        """Read what the workers have announced, and return all that they have `reported`."""

    def post(self, messages: Mapping[int, Message]) -> None:
        """Send each worker its message; each answers with one reply."""

    def lend(self, messages: Mapping[int, Message], memory: SharedArrays) -> None:
        """As `post`, with shared memory as the last argument."""

    def tell(self, worker: int, order: tuple[Any, ...] | None) -> None:
        """Give a streaming worker its next order, the arguments of `play`; None ends its stream."""

    def played(self, limit_s: float) -> list[tuple[int, Reply]]:
        """The fragments of streaming workers that have arrived, in their order per worker; wait at most `limit_s`."""

    def incarnation(self, worker: int) -> Incarnation:
        """Another one for every process that takes this worker's place."""

    def replies(self, workers: Sequence[int], limit_s: float | None) -> dict[int, Reply]:
        """The replies of these workers that arrive within the limit; a lost worker has none."""

    @property
    def hosts(self) -> Sequence[range]:
        """The workers of each host; weights move to a host, for all its workers."""

    def host_life(self, host: int) -> Incarnation:
        """Another one whenever the host may have lost the weights that it was given."""

    def may_give(self, host: int, memory: SharedArrays) -> bool:
        """Whether the host can take weights for this memory: it is not lost, and has taken the last ones."""

    def wait_taken(self, limit_s: float | None) -> None:
        """Wait until every host has taken the last weights that it was given."""

    def give(self, host: int, memory: SharedArrays, encoded: Encoded, decoded: Decoded) -> None:
        """Move weights to a host, into the memory that its workers were lent with the policy."""

    def halt(self, fragments: Fragments) -> None:
        """Whoever plays stops after the step that it is in."""

    def look(self) -> None:
        """See whether the workers still live."""

    @property
    def has_losses(self) -> bool:
        """Whether a worker was lost since the last look."""

    def losses(self) -> list[Loss]:
        """The workers lost since the last look."""

    def lose(self, worker: int, cause: str) -> None:
        """Declare a worker lost and end it."""

    def replace(self, worker: int, seeds: Sequence[int | None], *, patient: bool = False) -> None:
        """Start a fresh worker in the place of a lost one; do not wait for it.

        If it is `patient` and the host of the worker is lost, its place stays free for whoever may come.
        """

    def ready(self, workers: Sequence[int], limit_s: float | None) -> dict[int, Reply]:
        """Wait for replacements to be built; return what went wrong with those that could not be."""

    def built(self, workers: Sequence[int]) -> dict[int, Reply | None]:
        """The replacements that are there by now, each with what went wrong, or None. Waits for nobody."""

    def alive(self, worker: int) -> bool:
        """Whether a worker is not lost."""

    def pids(self) -> list[int | None]:
        """The process of each worker."""

    def logs(self) -> dict[str, str]:
        """The last lines that each host's node wrote, by the name that its launcher has for it.

        Raises:
            ConfigError: nobody keeps them; the message says where they are.
        """

    def close(self, limit_s: float | None) -> None:
        """Close the environments within the limit, then end everything. Never raises, may be called twice."""
