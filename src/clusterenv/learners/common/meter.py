"""What central inference measures about itself, in constant memory. One thread counts, another may ask."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

import numpy as np

_KEPT = 4096  # latencies, of the last batches


class Measured(NamedTuple):
    """The batches since the last time somebody asked.

    Attributes:
        batches: how many.
        rows: in all of them.
        full: how many were full.
        p50_s: the median of their latencies, from the answers of the environments to the next actions.
        p99_s: the latency that one in a hundred exceeds.
    """

    batches: int
    rows: int
    full: int
    p50_s: float
    p99_s: float


class Meter:
    """Counts inference batches.

    Args:
        size: of a full batch.

    Example:
        >>> meter = Meter(size=4)
        >>> meter.add(rows=4, latency_s=0.001)
        >>> meter.add(rows=2, latency_s=0.003)
        >>> meter.take()
        Measured(batches=2, rows=6, full=1, p50_s=0.002, p99_s=0.00298)
        >>> meter.take().batches
        0
    """

    def __init__(self, size: int) -> None:
        self._size, self._lock = size, threading.Lock()
        self._batches = self._rows = self._full = 0
        self._latencies: deque[float] = deque(maxlen=_KEPT)

    def add(self, rows: int, latency_s: float) -> None:
        """A batch was run."""
        with self._lock:
            self._batches += 1
            self._rows += rows
            self._full += rows >= self._size
            self._latencies.append(latency_s)

    def take(self) -> Measured:
        """What was counted; the next count begins at zero. Latencies are NaN where there were none."""
        with self._lock:
            counts = self._batches, self._rows, self._full
            latencies = list(self._latencies)
            self._batches = self._rows = self._full = 0
            self._latencies.clear()
        p50, p99 = np.percentile(latencies, [50, 99]) if latencies else (np.nan, np.nan)
        return Measured(*counts, float(p50), float(p99))
