"""A lost host on its way back: a node comes in, builds its environments, makes its memory. Nothing here waits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from clusterenv.errors import LaunchError
from clusterenv.node.building import ask_to_bind, ask_to_build
from clusterenv.node.starting import raise_remote_start_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterenv.node.host import Host
    from clusterenv.node.joining import Joining

# Another host may be lost meanwhile, and its launcher tell of that one; for memory that a node makes.
_PATIENCE_S, _MEMORY_S = 5.0, 60.0


class Return:
    """The way back of one host.

    Args:
        joining: where nodes come in.
        old: the lost host.
        order: what it builds, see `ask_to_build`.
        spaces: of the batch.
        start_s: how long building may take.
        patient: whether its place stays free for as long as nobody comes.

    Attributes:
        seeds: of its workers, which are fresh, by their number within the host.
        host: the node that has taken the place, or None.
        pids: the processes of its workers, once all is done.
    """

    def __init__(
        self, joining: Joining, old: Host, order: Any, spaces: tuple[Any, Any], start_s: float | None, *, patient: bool
    ) -> None:
        self._joining, self.old, self._order, self._spaces, self._start_s = joining, old, order, spaces, start_s
        self.patient = patient
        self.seeds: dict[int, Sequence[int | None]] = {}
        self.host: Host | None = None
        self.pids: list[int | None] | None = None
        self._found: dict[int, Any] = {}
        self._bound: dict[int, list[int | None]] = {}
        self._began_s = time.monotonic()
        self._limit_s, self._doing = joining.wait_s, "come back"

    def hurry(self) -> None:
        """From now on somebody waits for it."""
        if self.patient and self.host is None:
            self._began_s = time.monotonic()
        self.patient = False

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
            ask_to_bind(self.host, self._spaces, self.seeds, self._bound)
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
            raise LaunchError(
                f"the node in the place of {self.old.name} did not {self._doing} within {self._limit_s} s. "
                f"{self._joining.last_words()}"
            )
        return False
