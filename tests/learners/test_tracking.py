"""From batches and counters to metrics."""

from __future__ import annotations

import math
from collections.abc import Sized
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from clusterenv.env.tally import Tally
from clusterenv.learners.common.tracking import WINDOW, Tracker, saved_share
from clusterenv.metrics import keys


def batch(
    lag: Any = ((0, 0), (0, 0)),
    returns: Any = (),
    lengths: Any = (),
    slots: Any = (),
) -> Any:
    lag = np.array(lag)
    episodes = SimpleNamespace(returns=np.array(returns, float), lengths=np.array(lengths), slots=np.array(slots))
    return SimpleNamespace(steps=lag.size, lag=lag, episodes=episodes)


def stats(**changes: Any) -> dict[str, Any]:
    return {
        "syncs": 0,
        "publishes": 0,
        "sync_reasons": {},
        "weight_bytes": {"total": 0},
        "time_s": {"env": 0.0, "policy": 0.0, "idle": 0.0, "wait": 0.0},
        "restarts": 0,
        **changes,
    }


def test_counts_of_the_interval_start_anew_with_each_call() -> None:
    tracker = Tracker(workers=2, full_bytes=1000)
    tracker.take(batch(), waited_s=0.5)
    first = tracker.metrics(
        stats(syncs=3, publishes=2, sync_reasons={"first": 2, "lag": 1}, weight_bytes={"total": 500}), seconds=2.0
    )
    tracker.take(batch(), waited_s=1.0)
    second = tracker.metrics(
        stats(syncs=4, publishes=10, sync_reasons={"first": 2, "lag": 2}, weight_bytes={"total": 600}), seconds=4.0
    )
    assert (first["sync/count"], second["sync/count"]) == (3, 1)
    assert (first["sync/bytes"], second["sync/bytes"]) == (500, 100)
    assert (first["sync/publishes"], second["sync/publishes"]) == (2, 8)
    assert (first["sync/skipped"], second["sync/skipped"]) == (0, 7)
    assert (first["sync/reason/first"], second["sync/reason/first"]) == (2, 0)
    assert (first["sync/reason/lag"], second["sync/reason/lag"]) == (1, 1)
    assert first["sync/saved_fraction"] == pytest.approx(1 - 500 / 3000)
    assert second["sync/saved_fraction"] == pytest.approx(1 - 600 / 11_000)
    assert (first["charts/SPS"], second["charts/SPS"]) == (2, 2)
    assert (first["cluster/learner_wait_fraction"], second["cluster/learner_wait_fraction"]) == (0.25, 0.5)


def test_the_first_interval_of_a_resumed_run_is_its_own() -> None:
    tracker = Tracker(workers=1, full_bytes=1)
    tracker.resume(steps=1000, seconds=100.0)
    tracker.take(batch(), waited_s=0.5)
    values = tracker.metrics(stats(time_s={"idle": 0.5}), seconds=102.0)
    assert tracker.steps == 1004
    assert values["charts/SPS"] == 2
    assert values["cluster/learner_wait_fraction"] == 0.25
    assert values["cluster/worker_wait_fraction"] == 0.25


def test_every_name_is_known() -> None:
    tracker = Tracker(workers=2, full_bytes=1000)
    tracker.take(batch(returns=[1.0], lengths=[2]), waited_s=0.0)
    for name in tracker.metrics(stats(sync_reasons={"age": 1}, publishes=1, time_s={"idle": 1.0}), seconds=1.0):
        keys.find(name)


def test_the_return_is_the_mean_of_the_last_hundred() -> None:
    tracker = Tracker(workers=1, full_bytes=1)
    assert math.isnan(tracker.mean_return)
    assert "charts/episodic_return" not in tracker.metrics(stats(), seconds=1.0)
    for number in range(150):
        tracker.take(batch(returns=[number], lengths=[2 * number]), waited_s=0.0)
    values = tracker.metrics(stats(), seconds=2.0)
    assert values["charts/episodic_return"] == tracker.mean_return == pytest.approx(np.mean(range(50, 150)))
    assert values["charts/episodic_length"] == pytest.approx(2 * np.mean(range(50, 150)))
    assert values["charts/episodes"] == 150


def test_of_several_tasks_each_has_a_mean_of_its_own_last_hundred() -> None:
    tracker = Tracker(workers=1, full_bytes=1, tasks=("low", "high", "never"))
    for number in range(150):
        tracker.take(batch(returns=[number, 1000.0 + number], lengths=[1, 1], slots=[3, 4]), waited_s=0.0)
    assert tracker.task_returns["low"] == pytest.approx(np.mean(range(50, 150)))
    assert tracker.task_returns["high"] == pytest.approx(1000 + np.mean(range(50, 150)))
    values = tracker.metrics(stats(), seconds=1.0)
    assert values["charts/episodic_return/low"] == tracker.task_returns["low"]
    assert "charts/episodic_return/never" not in values
    told = tracker.summary(stats(), env_id="x", seed=1, seconds=1.0).task_returns
    assert math.isnan(told.pop("never"))
    assert told == {name: tracker.task_returns[name] for name in ("low", "high")}


def test_lag_is_that_of_the_last_batch_and_the_summary_has_all() -> None:
    tracker = Tracker(workers=2, full_bytes=1000)
    tracker.take(batch(lag=[[9, 9], [9, 9]]), waited_s=0.0)
    tracker.take(batch(lag=[[0, 1], [2, 5]]), waited_s=0.0)
    values = tracker.metrics(stats(), seconds=1.0)
    assert [values[f"sync/policy_lag_{part}"] for part in ("min", "mean", "max")] == [0, 2, 5]
    told = tracker.summary(
        stats(publishes=4, syncs=1, weight_bytes={"total": 400}), env_id="CartPole-v1", seed=3, seconds=4.0
    )
    assert (told.lag_mean, told.lag_max) == (5.5, 9)
    assert (told.steps, told.steps_per_second) == (8, 2.0)
    assert (told.bytes, told.always_bytes, told.saved) == (400, 5000, 0.92), "the first version travels, too"


def test_divergence_is_that_of_the_measurements_of_the_interval() -> None:
    tracker, tally = Tracker(workers=2, full_bytes=1000), Tally()

    def told(*measured: Any) -> tuple[float | None, float | None]:
        for each in measured:
            tally.measured(np.array(each), None)
        values = tracker.metrics(stats(**{name: tally.summary()[name] for name in ("divergence", "measurements")}), 1.0)
        return values.get("sync/divergence_mean"), values.get("sync/divergence_max")

    assert told() == (None, None)
    assert told([0.5, 0.5]) == (0.5, 0.5)
    assert told([0.125, 0.375], [np.nan, 0.75]) == (0.5, 0.75)
    assert told() == (None, None)
    assert told(*[[0.25, 0.5]] * 100) == (0.375, 0.5), "more than are told one by one"
    found = tracker.summary(tally.summary(), env_id="x", seed=1, seconds=1.0)
    assert found.divergence_max == 0.75
    assert found.divergence_mean == pytest.approx(tally.summary()["divergence"]["mean"])


def test_percentiles_are_told_in_milliseconds_and_only_if_they_are_known() -> None:
    tracker = Tracker(workers=1, full_bytes=1)
    unknown = tracker.metrics(stats(publish_to_apply_s={}, step_s={}, straggler_ratio=None), seconds=1.0)
    names = (
        "sync/publish_to_apply_ms_p50",
        "sync/publish_to_apply_ms_p99",
        "cluster/step_ms_p50",
        "cluster/step_ms_p99",
    )
    assert not {*names, "cluster/straggler_ratio"} & unknown.keys()
    seen = {
        "publish_to_apply_s": {"p50": 0.5, "p99": 2.0},
        "step_s": {"p50": 0.25, "p99": 0.75},
        "straggler_ratio": 1.5,
    }
    values = tracker.metrics(stats(**seen), seconds=2.0)
    assert [values[name] for name in names] == [500, 2000, 250, 750]
    assert values["cluster/straggler_ratio"] == 1.5


def test_bytes_of_the_network_are_those_of_the_interval() -> None:
    tracker = Tracker(workers=1, full_bytes=1)
    first = tracker.metrics(stats(network_bytes={"received": 9000, "sent": 8000}), seconds=1.0)
    assert "cluster/bytes_in" not in first, "the start of the cluster is among them"
    second = tracker.metrics(stats(network_bytes={"received": 9500, "sent": 8100}), seconds=3.0)
    assert (second["cluster/bytes_in"], second["cluster/bytes_out"]) == (250, 50)


def test_always_means_to_every_host() -> None:
    tracker = Tracker(workers=4, full_bytes=1000)
    seen = stats(publishes=4, syncs=6, hosts=2, weight_bytes={"total": 4000})
    values = tracker.metrics(seen, seconds=1.0)
    assert values["sync/skipped"] == 2, "four versions for two hosts, of which six went out"
    assert values["sync/saved_fraction"] == pytest.approx(0.6)
    assert tracker.summary(seen, env_id="x", seed=1, seconds=1.0).always_bytes == 10_000


def test_what_is_kept_does_not_grow_with_the_run() -> None:
    tracker, sizes = Tracker(workers=1, full_bytes=1), []
    for _ in range(2):
        for _ in range(WINDOW):  # the last returns are kept: as many as there may be
            tracker.take(batch(returns=[1.0], lengths=[2]), waited_s=0.1)
        sizes.append(sum(len(kept) for kept in vars(tracker).values() if isinstance(kept, Sized)))
    assert sizes[0] == sizes[1]


def test_before_anything_happened_there_is_no_number() -> None:
    told = Tracker(workers=1, full_bytes=1).summary({}, env_id="x", seed=1, seconds=0.0)
    assert math.isnan(told.final_return)
    assert math.isnan(told.saved)
    assert math.isnan(told.steps_per_second)
    assert math.isnan(told.lag_mean)
    assert math.isnan(told.divergence_mean)
    assert math.isnan(told.divergence_max)
    values = Tracker(workers=3, full_bytes=1).metrics({}, seconds=0.0)
    assert not any(math.isnan(value) for value in values.values())
    assert values["cluster/workers"] == 3


def test_how_long_workers_waited() -> None:
    tracker = Tracker(workers=2, full_bytes=1)
    tracker.metrics(stats(time_s={"idle": 1.0}), seconds=10.0)
    values = tracker.metrics(stats(time_s={"idle": 2.0}), seconds=12.0)
    assert values["cluster/worker_wait_fraction"] == pytest.approx(0.25)
    values = tracker.metrics(stats(time_s={"idle": 9.0}), seconds=13.0)  # told late, of an interval before this one
    assert values["cluster/worker_wait_fraction"] == 1.0


def test_workers_that_are_lost_are_not_ready() -> None:
    values = Tracker(workers=3, full_bytes=1).metrics(stats(workers_ready=1), seconds=1.0)
    assert (values["cluster/workers"], values["cluster/workers_ready"]) == (3, 1)


def test_sending_more_than_always_is_a_negative_saving() -> None:
    assert saved_share(300, 200) == -0.5


def test_slots_that_explore_for_the_others_do_not_count() -> None:
    tracker = Tracker(workers=1, full_bytes=1, scored=range(2, 4))
    told = batch(returns=[1.0, 5.0, 7.0], lengths=[1, 2, 3])
    told.episodes.slots = np.array([0, 3, 2])
    tracker.take(told, waited_s=0.0)
    assert (list(tracker.returns), list(tracker.lengths), tracker.episodes) == ([5.0, 7.0], [2.0, 3.0], 3)
