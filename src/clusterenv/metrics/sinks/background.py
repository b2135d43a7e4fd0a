"""A sink that holds nobody up: what is read too slowly is dropped."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterenv.metrics.recorder import Sink

    Row = tuple[dict[str, float], int, float]

_log = logging.getLogger(__name__)


class BackgroundSink:
    """Hands numbers to another sink in a thread of its own.

    For what goes to a terminal or a pipe: whoever stops reading there would stop the run. While the other sink is
    stuck, the newest rows wait for it, and the oldest of them are dropped.

    Args:
        sink: the other one. What it raises is raised here from then on; but if its stream fails, nothing is shown any
            more and the run goes on.
        rows: how many may wait.
        close_s: how long `close` waits for those; after that they are dropped, and the thread is left behind.

    Attributes:
        dropped: how many rows were.
    """

    def __init__(self, sink: Sink, rows: int = 1000, close_s: float = 2.0) -> None:
        self.dropped = 0
        self._sink, self._close_s = sink, close_s
        self._rows: deque[Row] = deque(maxlen=rows)
        self._change = threading.Condition()
        self._closing = self._failed = False
        self._problem: Exception | None = None
        # A daemon: the program may end although somebody still does not read.
        self._thread = threading.Thread(target=self._work, name="metrics", daemon=True)
        self._thread.start()

    def write(self, values: Mapping[str, float], global_step: int, seconds: float) -> None:
        """Take the values of one moment."""
        with self._change:
            if self._problem is not None:
                raise self._problem
            if self._failed:
                return
            self.dropped += len(self._rows) == self._rows.maxlen
            self._rows.append((dict(values), global_step, seconds))
            self._change.notify()

    def close(self) -> None:
        """Let the other sink write what waits, and close it."""
        with self._change:
            self._closing = True
            self._change.notify()
        self._thread.join(self._close_s)
        with self._change:
            self.dropped += len(self._rows)
            self._rows.clear()
            if self._problem is not None:
                raise self._problem
        if self.dropped:
            _log.warning("%d rows of metrics were not shown, since nobody read them in time.", self.dropped)

    def _work(self) -> None:
        try:
            try:
                while (row := self._next()) is not None:
                    self._sink.write(*row)
            finally:
                self._sink.close()
        except OSError as error:  # whoever read there has gone, or a disk is full
            with self._change:
                self._failed = True
                self._rows.clear()
            _log.warning("metrics are shown no more: %s. The run goes on.", error)
        except Exception as error:  # it is raised where the metrics come from
            with self._change:
                self._problem = error

    def _next(self) -> Row | None:
        with self._change:
            self._change.wait_for(lambda: self._rows or self._closing)
            return self._rows.popleft() if self._rows else None
