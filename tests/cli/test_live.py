"""The live view."""

from __future__ import annotations

import io
import json
import math

import pytest
from rich.console import Console

from clusterenv.cli.live import JsonSink, LiveSink, clock


def shown(values: dict[str, float]) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, color_system=None)
    sink = LiveSink(console, "PPO on CartPole-v1", 100_000)
    sink.write({}, 0, 0.0)
    sink.write(values, 50_000, 10.0)
    sink.close()
    return stream.getvalue()


def test_how_far_how_good_how_fast_how_fresh() -> None:
    text = shown(
        {
            "charts/episodic_return": 187.32,
            "cluster/workers_ready": 2,
            "cluster/workers": 2,
            "sync/policy_lag_min": 0,
            "sync/policy_lag_mean": 1.5,
            "sync/policy_lag_max": 4,
            "sync/divergence_max": 0.0123,
            "sync/publish_to_apply_ms_p50": 1234.5,
            "cluster/worker_wait_fraction": 0.25,
            "cluster/straggler_ratio": 1.52,
        }
    )
    for part in (
        "PPO on CartPole-v1",
        "50,000 of 100,000 steps",
        "0:10 passed",
        "0:10 left",
        "187.3",
        "5.0k (10s)",
        "2/2",
        "0/1.5/4",
        "0.0123 at most",
        "1,234 ms",
        "25%",
        "1.5 times the step of the one in the middle",
    ):
        assert part in text


def test_what_is_unknown_is_not_shown() -> None:
    assert "nan" not in shown({})
    assert "return" not in shown({})


def test_json_lines() -> None:
    stream = io.StringIO()
    sink = JsonSink(stream)
    sink.write({"charts/SPS": 5.0}, 64, 1.23456)
    sink.close()
    assert json.loads(stream.getvalue()) == {"global_step": 64, "seconds": 1.235, "charts/SPS": 5.0}


def test_what_is_no_number_is_null() -> None:
    stream = io.StringIO()
    JsonSink(stream).write({"losses/policy_loss": math.inf}, 64, 1.0)
    assert json.loads(stream.getvalue(), parse_constant=pytest.fail)["losses/policy_loss"] is None


def test_a_clock() -> None:
    assert [clock(seconds) for seconds in (-1, 0, 59.6, 3600, 36_061)] == [
        "0:00",
        "0:00",
        "1:00",
        "1:00:00",
        "10:01:01",
    ]
