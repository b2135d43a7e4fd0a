"""What inference tells about itself."""

from __future__ import annotations

import math

from clusterenv.learners.common.meter import Meter


def test_every_batch_is_counted_once() -> None:
    meter = Meter(size=3)
    for rows in (3, 1, 3):
        meter.add(rows, latency_s=rows / 10)
    first, second = meter.take(), meter.take()
    assert (first.batches, first.rows, first.full) == (3, 7, 2)
    assert math.isclose(first.p50_s, 0.3)
    assert (second.batches, second.rows, second.full) == (0, 0, 0)
    assert math.isnan(second.p50_s)


def test_one_slow_batch_in_fifty_is_seen_in_the_tail_only() -> None:
    meter = Meter(size=1)
    for index in range(100):
        meter.add(1, latency_s=1.0 if index % 50 == 0 else 0.001)
    told = meter.take()
    assert told.p50_s < 0.002
    assert told.p99_s > 0.9
