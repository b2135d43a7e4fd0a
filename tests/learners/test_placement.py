"""Where the policy should act: a decision that follows from measurements, and says why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.errors import ConfigError
from clusterenv.learners.common.placement import Measurements, Plan, head_rate_of, worker_rate_of
from clusterenv.learners.common.placement import decide as decide_within


def measured(**changes: Any) -> Measurements:
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
    return Measurements(**{**values, **changes})


def decide(case: Measurements, most_envs: int = 256) -> Plan:
    """The plan, with environments for every size in these tests unless there shall be fewer."""
    return decide_within(case, most_envs=most_envs)


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


@pytest.mark.parametrize(("stepping_rate", "workers"), [(32.0, 40), (0.64, 64), (100.0, 13)])
def test_environments_that_take_seconds_get_workers_enough_too(stepping_rate: float, workers: int) -> None:
    slow = measured(
        workers=64,
        step_s=2.0,
        worker_s={1: 1e4},
        head_s={8: 0.3},
        exchange_s={8: 0.1},
        stepping_rate=stepping_rate,
        weights_bytes=10**10,
        link_bytes_s=1e6,
    )
    assert decide(slow).workers == workers  # the head infers 20 rows per second


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


def test_workers_that_share_cores_take_turns() -> None:
    alone, crowded = measured(workers=2), measured(workers=8, cores=2)
    assert worker_rate_of(crowded, 16) == worker_rate_of(alone, 16) == worker_rate_of(measured(), 16) / 4
    assert any("The 8 workers share 2 core(s)" in reason for reason in decide(crowded).reasons)
    assert not any("share" in reason for reason in decide(measured(cores=8)).reasons)


def test_workers_that_share_cores_may_lose_the_policy_to_the_head() -> None:
    """With a core for each, eight workers would be faster than the head; with one core for all they are not."""
    assert decide(measured()).inference == "worker"
    assert decide(measured(cores=1)).inference == "head"


def test_there_are_no_more_environments_than_were_allowed() -> None:
    assert decide(measured(), most_envs=128).envs_per_worker == 4  # 16 are hardly faster
    steep = measured(worker_s={1: 1e-3, 4: 1.1e-3, 16: 1.2e-3}, stepping_rate=1000.0)
    assert [decide(steep, most_envs=most).envs_per_worker for most in (256, 127, 32, 31)] == [16, 4, 4, 1]
    plan = decide(measured(**DEEP, workers=3), most_envs=64)  # two batches of 32 are 66 slots of 3 workers, or 63
    assert (plan.inference_batch, plan.workers, plan.envs_per_worker) == (32, 3, 21)


@pytest.mark.parametrize("most", [7, 15])
def test_the_smallest_sizes_must_fit(most: int) -> None:
    with pytest.raises(ConfigError, match=f"most_envs={most} must be at least 1 for each of 8 worker"):
        decide(measured(), most_envs=most)


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
    cores=st.none() | st.integers(1, 64),
)


@given(cases, st.integers(64, 2000))
def test_whatever_is_measured_the_plan_can_be_carried_out(case: Measurements, most: int) -> None:
    plan = decide(case, most)
    assert plan.workers * plan.envs_per_worker <= most
    assert 1 <= plan.workers <= case.workers
    assert plan.envs_per_worker >= 1
    assert (plan.inference_batch is None) == (plan.inference == "worker")
    if plan.inference_batch is not None:
        assert plan.inference_batch <= plan.workers * plan.envs_per_worker
    assert plan.reasons


@given(cases, st.floats(1.5, 100.0))
def test_a_faster_device_never_sends_the_policy_away(case: Measurements, factor: float) -> None:
    faster = replace(case, head_s={rows: seconds / factor for rows, seconds in case.head_s.items()})
    best = max(head_rate_of(case, rows) for rows in case.head_s)
    assert max(head_rate_of(faster, rows) for rows in case.head_s) >= best


def test_measurements_must_be_there() -> None:
    with pytest.raises(ConfigError, match="each needs a size"):
        measured(head_s={8: 1.0}, exchange_s={16: 1.0})
