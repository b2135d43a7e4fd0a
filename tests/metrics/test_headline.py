"""The line that people look at."""

from __future__ import annotations

import io
import math

import pytest

from clusterenv.metrics import keys
from clusterenv.metrics.headline import Headline, thousands
from clusterenv.metrics.sinks.console import ConsoleSink

EVERYTHING = {
    "charts/episodic_return": 187.32,
    "cluster/workers_ready": 15.0,
    "cluster/workers": 16.0,
    "sync/policy_lag_min": 0.0,
    "sync/policy_lag_mean": 1.4,
    "sync/policy_lag_max": 5.0,
    "sync/saved_fraction": 0.88,
    "cluster/learner_wait_fraction": 0.03,
}


def test_the_whole_line() -> None:
    headline = Headline()
    headline.take({}, 0, 0.0)
    headline.take({"sync/count": 12.0}, 2_448_000 - 412_000, 50.0)
    headline.take(EVERYTHING, 2_448_000, 60.0)
    assert headline.line() == (
        "2,448,000 steps | SPS 41.2k (10s) 40.8k (60s) | return 187.3 | workers 15/16 | lag 0/1.4/5 "
        "| sync 12/min (88% saved) | learner wait 3%"
    )


def test_more_bytes_than_always_are_not_saved() -> None:
    headline = Headline()
    headline.take({}, 0, 0.0)
    headline.take({"sync/count": 6.0, "sync/saved_fraction": -0.65}, 100, 60.0)
    assert headline.line().endswith("| sync 6/min (65% more)")


def test_the_first_line_has_the_rate_of_its_own_interval() -> None:
    headline = Headline()
    headline.take({"charts/SPS": 3_655.0}, 2_048, 0.56)
    assert headline.line() == "2,048 steps | SPS 3.7k"
    headline.take({"charts/SPS": 9_999.0}, 12_048, 10.56)
    assert headline.line() == "12,048 steps | SPS 1.0k (10s) 1.0k (60s)"


def test_what_is_unknown_is_left_out() -> None:
    headline = Headline()
    headline.take({"charts/episodic_return": math.nan}, 32, 1.0)
    assert headline.line() == "32 steps"


def test_rates_look_back_no_further_than_their_window() -> None:
    headline = Headline()
    for second in range(0, 201, 2):  # 100 steps a second, then 500
        headline.take({"sync/count": 1.0}, 100 * second if second <= 190 else 19_000 + 500 * (second - 190), second)
    assert headline.steps_per_second(10.0) == pytest.approx(500.0)
    assert headline.steps_per_second(60.0) == pytest.approx((50 * 100 + 10 * 500) / 60)
    assert headline.syncs_per_minute() == pytest.approx(30.0)


def test_old_moments_are_forgotten() -> None:
    headline = Headline()
    for second in range(10_000):
        headline.take({}, second, float(second))
    assert len(headline._moments) <= 62


def test_two_values_at_one_moment_give_no_rate() -> None:
    headline = Headline()
    headline.take({}, 0, 1.0)
    headline.take({}, 64, 1.0)
    assert headline.steps_per_second(10.0) is None


def test_the_newest_value_wins() -> None:
    headline = Headline()
    headline.take({"charts/episodic_return": 1.0}, 1, 1.0)
    headline.take({"charts/episodic_return": 2.0}, 2, 2.0)
    headline.take({"charts/SPS": 9.0}, 3, 3.0)
    assert headline.get(keys.EPISODIC_RETURN) == 2.0


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (999, "999"), (1000, "1.0k"), (999_900, "999.9k"), (2e6, "2.00M")]
)
def test_rates_are_short(value: float, text: str) -> None:
    assert thousands(value) == text


def test_the_console_writes_a_line_at_once_and_then_every_ten_seconds() -> None:
    stream = io.StringIO()
    sink = ConsoleSink(stream)
    for second in range(25):
        sink.write({}, second * 100, float(second))
    assert [line.split(" steps")[0] for line in stream.getvalue().splitlines()] == [" 0", " 1,000", " 2,000"]
    sink.close()
    assert stream.getvalue().splitlines()[-1].startswith(" 2,400 steps")


def test_the_console_repeats_no_line_and_leaves_the_stream_open() -> None:
    stream = io.StringIO()
    sink = ConsoleSink(stream)
    sink.close()
    sink.write({}, 5, 1.0)
    sink.close()
    assert stream.getvalue() == " 5 steps\n"
