"""A sink in a thread of its own: in order, never in the way, and its errors are heard."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from clusterenv.metrics.recorder import Recorder
from clusterenv.metrics.sinks.background import BackgroundSink
from tests.zoo import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LIMIT_S = 30.0


class Reader:
    """Reads what is written when it is let."""

    def __init__(self) -> None:
        self.reads, self.busy = threading.Event(), threading.Event()
        self.steps: list[int] = []
        self.closed = False
        self.problem: Exception | None = None

    def write(self, values: Mapping[str, float], global_step: int, seconds: float) -> None:
        self.busy.set()
        assert self.reads.wait(LIMIT_S)
        if self.problem is not None:
            raise self.problem
        assert values == {"charts/SPS": float(global_step)}
        self.steps.append(global_step)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def reader() -> Iterator[Reader]:
    """One that reads at the end at the latest, so that no thread is left."""
    reader = Reader()
    yield reader
    reader.reads.set()
    wait_until(lambda: not any(thread.name == "metrics" for thread in threading.enumerate()), LIMIT_S)


def write(sink: BackgroundSink, *steps: int) -> None:
    recorder = Recorder([sink])
    for step in steps:
        recorder.record({"charts/SPS": step}, global_step=step, seconds=0.0)


def test_everything_arrives_in_order_before_it_is_closed(reader: Reader) -> None:
    reader.reads.set()
    sink = BackgroundSink(reader)
    write(sink, *range(100))
    sink.close()
    assert reader.steps == list(range(100))
    assert reader.closed
    assert sink.dropped == 0


def test_values_are_those_of_the_moment(reader: Reader) -> None:
    sink = BackgroundSink(reader)
    values = {"charts/SPS": 1.0}
    sink.write(values, 1, 0.0)
    values["charts/SPS"] = 2.0
    reader.reads.set()
    sink.close()
    assert reader.steps == [1]


@pytest.mark.fault("F38")
def test_who_does_not_read_holds_nobody_up_and_gets_the_newest(
    reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    sink = BackgroundSink(reader, rows=3)
    write(sink, 0)
    assert reader.busy.wait(LIMIT_S)  # it is stuck with the first
    write(sink, *range(1, 9))
    reader.reads.set()
    sink.close()
    assert reader.steps == [0, 6, 7, 8]
    assert sink.dropped == 5
    assert "5 rows of metrics were not shown" in caplog.text


@pytest.mark.fault("F38")
def test_who_never_reads_is_left_behind(reader: Reader, caplog: pytest.LogCaptureFixture) -> None:
    sink = BackgroundSink(reader, close_s=0.1)
    write(sink, 0)
    assert reader.busy.wait(LIMIT_S)
    write(sink, 1, 2)
    sink.close()
    assert not reader.closed
    assert "2 rows of metrics were not shown" in caplog.text
    reader.reads.set()
    wait_until(lambda: reader.closed, LIMIT_S)
    assert reader.steps == [0], "and are not shown later, among other things"


def test_what_it_raises_is_raised_where_the_metrics_come_from(reader: Reader) -> None:
    reader.problem = ArithmeticError("a mistake")
    reader.reads.set()
    sink = BackgroundSink(reader)
    write(sink, 0)
    wait_until(lambda: sink._problem is not None, LIMIT_S)
    for step in (1, 2):
        with pytest.raises(ArithmeticError):
            write(sink, step)
    with pytest.raises(ArithmeticError):
        sink.close()
    assert reader.closed


def test_what_it_raises_last_is_raised_when_it_is_closed(reader: Reader) -> None:
    reader.problem = ArithmeticError("a mistake")
    sink = BackgroundSink(reader)
    write(sink, 0)
    reader.reads.set()
    with pytest.raises(ArithmeticError, match="a mistake"):
        sink.close()


@pytest.mark.fault("F38")
def test_a_stream_that_fails_is_left_and_the_run_goes_on(reader: Reader, caplog: pytest.LogCaptureFixture) -> None:
    reader.problem = BrokenPipeError("nobody reads any more")
    sink = BackgroundSink(reader, rows=3)
    write(sink, 0, 1)
    reader.reads.set()
    wait_until(lambda: reader.closed, LIMIT_S)
    write(sink, *range(2, 9))
    sink.close()
    assert [record.getMessage() for record in caplog.records] == [
        "metrics are shown no more: nobody reads any more. The run goes on."
    ]
