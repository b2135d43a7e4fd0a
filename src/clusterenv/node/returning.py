"""Lost hosts on their way back: a node comes in, builds its environments, makes its memory. Nothing here waits."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from clusterenv.cluster.restart import Fault, Tries
from clusterenv.errors import ClusterEnvError, LaunchError, words_of
from clusterenv.node.building import ask_to_bind, ask_to_build
from clusterenv.node.starting import raise_remote_start_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterenv.node.crew import Crew
    from clusterenv.node.host import Host
    from clusterenv.node.joining import Joining
    from clusterenv.wire.envs import BuildOrder

_logger = logging.getLogger(__name__)

# How long a failure that the launcher reports is not yet taken for that of this host: it may be about another that was
# lost at the same time. And how long a node may take to make its memory.
_PATIENCE_S, _MEMORY_S = 5.0, 60.0


class Returns:
    """All lost hosts whose places are to be taken again.

    Args:
        joining: where nodes come in.
        crew: where the hosts have their places.
        give_up: ends a host, with the cause.
    """

    def __init__(self, joining: Joining, crew: Crew, give_up: Callable[[Host, str], None]) -> None:
        self._joining, self._crew, self._give_up = joining, crew, give_up
        self._ways: dict[int, Return] = {}  # by the index of the host

    def prepare(self, order: BuildOrder, spaces: tuple[Any, Any], start_s: float | None) -> None:
        """What a host has to build, and how long that may take."""
        self._order, self._spaces, self._start_s = order, spaces, start_s

    @property
    def any(self) -> bool:
        """Whether any are on their way."""
        return bool(self._ways)

    def expect(self, lost: Host, worker: int, seeds: Sequence[int | None], *, patient: bool) -> None:
        """A worker of a lost host is wanted again: a node shall take the place, one for all its workers."""
        if lost.index not in self._ways:
            self._begin(lost, {}, patient=patient, tries=Tries())
        self._ways[lost.index].seeds[worker] = seeds

    def hurry(self) -> None:
        """Somebody waits for them from now on: their places do not stay free for ever."""
        for way in self._ways.values():
            way.hurry()

    def tend(self) -> list[tuple[Host, list[int | None]]]:
        """Help them on; those that are back, with the processes of their workers.

        Raises:
            LaunchError: one does not come back, or cannot be built.
            EnvError: an environment raised while it was built.
        """
        back = []
        for index, way in list(self._ways.items()):
            try:
                done = way.progress()
            except BaseException as error:
                self._end(way)
                if not way.may_try_again(error):
                    raise
                _logger.warning("node %s is not back: %s", way.old.name, words_of(error))
                self._try_again(way, error)
                continue
            self._crew.hosts[index] = way.host or way.old
            if done and way.host is not None and way.pids is not None:
                del self._ways[index]
                back.append((way.host, way.pids))
        return back

    def _begin(self, lost: Host, seeds: dict[int, Sequence[int | None]], *, patient: bool, tries: Tries) -> None:
        expected = sum(1 for way in self._ways.values() if way.host is None)
        self._joining.make_room(lost, expected, start=tries.left, patient=patient)
        way = Return(self._joining, lost, self._order, self._spaces, self._start_s, patient=patient, tries=tries)
        way.seeds = seeds
        self._ways[lost.index] = way

    def _end(self, way: Return) -> None:
        del self._ways[way.old.index]
        if way.host is None:
            self._joining.expect_no_longer()
        else:  # the next reset, or whoever comes next, takes a fresh one
            self._crew.hosts[way.old.index] = way.host
            self._give_up(way.host, f"its node {way.host.name} could not be built again")

    def _try_again(self, way: Return, error: BaseException) -> None:
        try:
            self._begin(self._crew.hosts[way.old.index], way.seeds, patient=way.patient, tries=way.tries_now)
        except LaunchError:  # the error of this node says more than that there is no other
            raise error from None


class Return:
    """The way back of one host.

    Args:
        joining: where nodes come in.
        old: the lost host.
        order: what all hosts build.
        spaces: of the batch.
        start_s: how long building may take.
        patient: whether its place stays free for as long as nobody comes.
        tries: how often a node was started for it in vain: it may be lost again while it builds.

    Attributes:
        seeds: of its workers, which are fresh, by their number within the host.
        host: the node that has taken the place, or None.
        pids: the processes of its workers, once all is done.
    """

    def __init__(
        self,
        joining: Joining,
        old: Host,
        order: BuildOrder,
        spaces: tuple[Any, Any],
        start_s: float | None,
        *,
        patient: bool,
        tries: Tries,
    ) -> None:
        self._joining, self.old, self._order, self._spaces, self._start_s = joining, old, order, spaces, start_s
        self.patient, self.tries = patient, tries
        self._late = False
        self.seeds: dict[int, Sequence[int | None]] = {}
        self.host: Host | None = None
        self.pids: list[int | None] | None = None
        self._found: dict[int, Any] = {}
        self._bound: dict[int, list[int | None]] = {}
        self._began_s = time.monotonic()
        self._limit_s, self._doing = joining.wait_s, "come back"

    def hurry(self) -> None:
        """Somebody waits for it from now on: its place does not stay free for ever."""
        if self.patient and self.host is None:
            self._began_s = time.monotonic()
        self.patient = False

    @property
    def tries_now(self) -> Tries:
        """The tries so far, this one included."""
        return self.tries.after(Fault.CRASH if self.host is None else self.host.fault)

    def may_try_again(self, error: BaseException) -> bool:
        """Whether another node may take the place, after this error: if one was lost again, or if we are patient."""
        lost_again = self.host is not None and not self._late and self.tries_now.left
        return (lost_again and isinstance(error, LaunchError)) or (self.patient and isinstance(error, ClusterEnvError))

    def progress(self) -> bool:
        """See how far it is, and ask for what comes next; whether all is done.

        Raises:
            LaunchError: it does not come back, or cannot be built.
            EnvError: an environment raised while it was built.
        """
        if self.host is None:
            self._look_for_a_node()
        elif self.host.lost:
            raise LaunchError(f"{self.host.cause}. {self._joining.last_words()}")
        elif self._doing == "build" and self._found:
            raise_remote_start_error(self.host.name, len(self.host.blocks), self._found[self.host.index])
            self._next("make memory", _MEMORY_S)
            # A worker that a stream had left out before has no seeds, and comes back all the same.
            seeds = {n: self.seeds.get(n, [None] * len(block)) for n, block in enumerate(self.host.blocks)}
            ask_to_bind(self.host, self._spaces, seeds, self._bound)
        elif self._bound:
            self.pids = self._bound[self.host.index]
        return self.pids is not None or self._check_time()

    def _look_for_a_node(self) -> None:
        self.host = self._joining.newcomer(self.old)
        if self.host is not None:
            self._next("build", self._start_s)
            ask_to_build(self.host, self._order, self._start_s, self._found)
        elif not self.patient and time.monotonic() - self._began_s > _PATIENCE_S:
            problem = self._joining.launcher_problem()
            if problem:
                raise LaunchError(f"a node could not come back: {problem}")

    def _next(self, doing: str, limit_s: float | None) -> None:
        self._began_s, self._limit_s, self._doing = time.monotonic(), limit_s, doing

    def _check_time(self) -> bool:
        late = self._limit_s is not None and time.monotonic() - self._began_s > self._limit_s
        if late and not (self.patient and self.host is None):
            self._late = True
            raise LaunchError(
                f"the node in the place of {self.old.name} did not {self._doing} within {self._limit_s} s. "
                f"{self._joining.last_words()}"
            )
        return False
