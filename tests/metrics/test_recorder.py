"""The recorder hands every value to every sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clusterenv.errors import ConfigError
from clusterenv.metrics.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Mapping


class Notebook:
    """A sink that remembers."""

    def __init__(self, *, fails: bool = False) -> None:
        self.rows: list[tuple[dict[str, float], int, float]] = []
        self.closed, self.fails = 0, fails

    def write(self, values: Mapping[str, float], global_step: int, seconds: float) -> None:
        self.rows.append((dict(values), global_step, seconds))

    def close(self) -> None:
        self.closed += 1
        if self.fails:
            raise OSError("disk full")


def test_every_sink_gets_the_values_and_the_moment() -> None:
    first, second = Notebook(), Notebook()
    Recorder([first, second]).record({"charts/SPS": 3, "sync/count": 1}, global_step=64, seconds=0.5)
    assert first.rows == second.rows == [({"charts/SPS": 3.0, "sync/count": 1.0}, 64, 0.5)]


def test_a_misspelt_name_is_refused_before_anything_is_written() -> None:
    sink = Notebook()
    with pytest.raises(ConfigError, match="charts/SPS"):
        Recorder([sink]).record({"charts/episodic_return": 1.0, "charts/SPs": 1.0}, global_step=1, seconds=1.0)
    assert sink.rows == []


def test_leaving_closes_every_sink_once_even_if_one_fails() -> None:
    sinks = [Notebook(), Notebook(fails=True), Notebook()]
    recorder = Recorder(sinks)
    with pytest.raises(OSError, match="disk full"), recorder:
        pass
    recorder.close()
    assert [sink.closed for sink in sinks] == [1, 1, 1]
