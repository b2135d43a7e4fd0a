"""Where the policy should act: a decision that follows from measurements, and says why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.errors import ConfigError
from clusterenv.learners.common.placement import Measured, decide, head_rate_of, worker_rate_of


def measured(**changes: Any) -> Measured:
    """A small network and a quick environment on eight cores."""
    values: dict[str, Any] = {
        "workers": 8,
        "step_s": 1e-4,
        "worker_s": {1: 2e-5, 4: 3e-5, 16: 5e-5},
        "head_s": {8: 2e-4, 32: 3e-4, 128: 6e-4},
        "exchange_s": {8: 1e-4, 32: 2e-4, 128: 5e-4},
        "stepping_rate": 60_000.0,
        "round_trip_s": 1e-4,
        "observation_bytes": 16,
        "weights_bytes": 20_000,
    }
    return Measured(**{**values, **changes})


# A deep network: a worker's core needs 5 ms for a row, the head's device 2 ms for 128 of them.
DEEP: dict[str, Any] = {
    "worker_s": {1: 5e-3, 4: 2e-2, 16: 8e-2},
    "head_s": {8: 1e-3, 32: 1.2e-3, 128: 2e-3},
    "step_s": 5e-4,
    "stepping_rate": 15_000.0,
    "weights_bytes": 6_000_000,
}


def test_a_small_network_acts_on_the_workers() -> None:
    plan = decide(measured())
    assert (plan.inference, plan.workers, plan.inference_batch) == ("worker", 8, None)
    assert plan.rate == worker_rate_of(measured(), plan.envs_per_worker)


def test_a_deep_network_acts_on_the_head() -> None:
    plan = decide(measured(**DEEP))
    assert plan.inference == "head"
    assert plan.rate > 5 * plan.other_rate
    assert plan.inference_batch is not None
    assert plan.workers * plan.envs_per_worker >= 2 * plan.inference_batch  # one batch steps, one is inferred


def test_the_batch_is_the_smallest_that_is_good_enough() -> None:
    """128 rows would be no faster, since the environments are the limit."""
    case = measured(**DEEP)
    assert decide(case).inference_batch == 32
    assert head_rate_of(case, 128) == head_rate_of(case, 32) == 15_000


def test_no_more_workers_than_the_head_can_serve() -> None:
    slow_head = {rows: 100 * seconds for rows, seconds in DEEP["head_s"].items()}
    worst = {rows: 100 * seconds for rows, seconds in DEEP["worker_s"].items()}
    plan = decide(measured(**{**DEEP, "head_s": slow_head, "worker_s": worst}))
    assert plan.inference == "head"
    assert plan.workers == 1
    assert any("more would wait" in reason for reason in plan.reasons)


def test_a_small_gain_is_not_worth_it() -> None:
    rate = worker_rate_of(measured(), 16)
    close = measured(
        stepping_rate=rate * 1.05, head_s={128: 1e-6}, exchange_s={128: 1e-6}, round_trip_s=0.0, step_s=1e-4
    )
    plan = decide(close)
    assert plan.inference == "worker"
    assert plan.other_rate > plan.rate
    assert "too little more" in plan.reasons[-1]


def test_weights_that_take_long_stay_on_the_head() -> None:
    """Worker and head are about as fast, but the link is so slow that workers would act with old weights."""
    case = measured(**{**DEEP, "worker_s": {16: 2e-2}})
    assert decide(replace(case, link_bytes_s=1e8)).inference == decide(case).inference
    slow = replace(case, link_bytes_s=1e5, stepping_rate=worker_rate_of(case, 16) * 0.8)
    plan = decide(slow)
    assert plan.inference == "head"
    assert any("6.0 MB" in reason and "60.0 s" in reason for reason in plan.reasons)
    assert decide(replace(slow, link_bytes_s=None)).inference == "worker"


def test_a_long_way_is_named_as_the_limit() -> None:
    plan = decide(measured(**{**DEEP, "round_trip_s": 1.0}))
    assert any("the way there and back is the limit" in reason for reason in plan.reasons)


times = st.floats(1e-7, 1.0)
cases = st.builds(
    measured,
    workers=st.integers(1, 64),
    step_s=times,
    worker_s=st.fixed_dictionaries({1: times, 16: times}),
    head_s=st.fixed_dictionaries({8: times, 64: times}),
    exchange_s=st.fixed_dictionaries({8: times, 64: times}),
    stepping_rate=st.floats(1.0, 1e6),
    round_trip_s=times,
    link_bytes_s=st.none() | st.floats(1e3, 1e9),
)


@given(cases)
def test_whatever_is_measured_the_plan_can_be_carried_out(case: Measured) -> None:
    plan = decide(case)
    assert 1 <= plan.workers <= case.workers
    assert plan.envs_per_worker >= 1
    assert (plan.inference_batch is None) == (plan.inference == "worker")
    if plan.inference_batch is not None:
        assert plan.inference_batch <= plan.workers * plan.envs_per_worker
    assert plan.reasons


@given(cases, st.floats(1.5, 100.0))
def test_a_faster_device_never_sends_the_policy_away(case: Measured, factor: float) -> None:
    faster = replace(case, head_s={rows: seconds / factor for rows, seconds in case.head_s.items()})
    best = max(head_rate_of(case, rows) for rows in case.head_s)
    assert max(head_rate_of(faster, rows) for rows in case.head_s) >= best


def test_measurements_must_be_there() -> None:
    with pytest.raises(ConfigError, match="each needs a size"):
        measured(head_s={8: 1.0}, exchange_s={16: 1.0})
