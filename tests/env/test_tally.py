"""Counters: histograms in constant memory, and the plain dict of `stats()`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterenv.env.batch import Piece, assemble
from clusterenv.env.tally import DIVERGENCE_BINS, LAG_BINS, Histogram, Tally
from clusterenv.worker.actor import Fragment
from tests.env.made_up import columns, ends
from tests.env.test_batch import BOX, POLICY

VALUES = st.lists(st.lists(st.integers(0, 600), max_size=20), max_size=5)


@settings(max_examples=50)
@given(VALUES)
def test_a_histogram_counts_every_value_once(parts: list[list[int]]) -> None:
    histogram = Histogram(LAG_BINS)
    for part in parts:
        histogram.add(np.array(part, dtype=np.int64))
    every = [value for part in parts for value in part]
    found = histogram.summary()
    lower = -1.0
    for edge in LAG_BINS:
        assert found["histogram"][f"<={edge}"] == sum(lower < value <= edge for value in every)
        lower = edge
    assert found["histogram"][">256"] == sum(value > 256 for value in every)
    assert found["mean"] == pytest.approx(np.mean(every) if every else 0.0)
    assert found["max"] == max(every, default=0)


def test_a_value_on_an_edge_belongs_below_it() -> None:
    histogram = Histogram(DIVERGENCE_BINS)
    histogram.add(np.array([[0.0, 0.05], [0.0500001, 7.0]]))
    counted = {name: count for name, count in histogram.summary()["histogram"].items() if count}
    assert counted == {"<=0": 1, "<=0.05": 1, "<=0.1": 1, ">1": 1}


def test_a_batch_counts_steps_episodes_and_lag() -> None:
    tally, made = Tally(), columns(POLICY, 4, 3, version=5)
    ends(made, 1, 0, length=2, total=1.0, last=0.0)
    ends(made, 1, 1, length=0, total=1.0, last=0.0)
    batch = assemble([Piece(0, made, np.arange(3))], None, BOX, epoch=0, newest=7, divergence=np.zeros(1))
    tally.batch(batch)
    tally.batch(batch)
    found = tally.summary()
    assert (found["steps"], found["episodes"]) == (24, 2)
    assert found["lag"]["mean"] == 2.0
    assert found["lag"]["histogram"]["<=2"] == 24


def test_syncs_by_reason_and_bytes_by_encoding() -> None:
    tally = Tally()
    tally.sync("first", "bf16-key", 100)
    tally.sync("drift", "bf16-delta", 10)
    tally.sync("drift", "bf16-delta", 20)
    found = tally.summary()
    assert found["syncs"] == 3
    assert found["sync_reasons"] == {"first": 1, "drift": 2}
    assert found["weight_bytes"] == {"bf16-key": 100, "bf16-delta": 30, "total": 130}


def test_workers_without_a_sample_have_no_part_in_the_effective_sample_size() -> None:
    tally = Tally()
    assert tally.summary()["ess"] == {"mean": 1.0, "min": 1.0}
    tally.measured(np.array([0.1, 0.0]), np.array([0.5, np.nan]))
    tally.measured(np.array([0.3, 0.2]), np.array([0.7, 0.9]))
    found = tally.summary()
    assert found["ess"]["mean"] == pytest.approx(0.7)
    assert found["ess"]["min"] == 0.5
    assert found["measurements"] == 2
    assert found["divergence"]["max"] == 0.3


def test_times_add_up_also_when_something_raises() -> None:
    tally = Tally()
    tally.fragment(0, Fragment(0, env_s=0.5, policy_s=0.25, idle_s=0.125))
    tally.fragment(0, Fragment(0, env_s=0.5, policy_s=0.25, idle_s=0.125))
    with pytest.raises(ZeroDivisionError), tally.time("encode"):
        raise ZeroDivisionError
    found = tally.summary()["time_s"]
    assert (found["env"], found["policy"], found["idle"]) == (1.0, 0.5, 0.25)
    assert found["encode"] > 0.0
    assert found["wait"] == found["estimate"] == 0.0


def test_a_version_is_applied_with_the_first_fragment_of_it_or_a_newer_one() -> None:
    tally = Tally()
    assert tally.summary()["publish_to_apply_s"] == {}
    tally.published(1, 10.0)
    tally.published(2, 11.0)
    tally.published(3, 13.0)
    tally.applied(0, 14.0)
    assert tally.summary()["publish_to_apply_s"] == {}, "an old one says nothing"
    tally.applied(2, 14.0)  # 4 s and 3 s: whoever acts with 2 will not act with 1 any more
    tally.applied(2, 99.0)  # it is the first that counts
    assert tally.summary()["publish_to_apply_s"]["p50"] == 3.5
    tally.applied(3, 14.0)
    assert tally.summary()["publish_to_apply_s"]["p50"] == 3.0
    assert tally.summary()["publish_to_apply_s"]["p99"] == pytest.approx(3.98)
    assert tally.publishes == 3


def test_versions_that_nobody_ever_acts_with_take_no_more_memory() -> None:
    tally = Tally()
    for number in range(10_000):
        tally.published(number, float(number))
    tally.applied(10_000, 10_000.0)
    assert tally.summary()["publish_to_apply_s"]["p50"] == pytest.approx(500.5), "those of the newest thousand"


def test_step_times_are_means_of_fragments_and_stragglers_are_seen() -> None:
    tally = Tally()
    assert tally.straggler_ratio([0, 1, 2]) is None
    tally.fragment(0, Fragment(0, steps=0))
    assert tally.summary()["step_s"] == {}
    for worker, env_s in enumerate((9.0, 0.75, 1.75, 3.75)):
        tally.fragment(worker, Fragment(0, steps=4, env_s=env_s, policy_s=0.25))
    tally.fragment(0, Fragment(0, steps=2, env_s=0.25, policy_s=0.25))  # the last of each worker: 1/4, 1/4, 1/2 and 1 s
    assert tally.straggler_ratio(range(3)) == 2.0
    assert tally.straggler_ratio([0, 1]) == 1.0
    assert tally.straggler_ratio(range(9)) == pytest.approx(1.0 / 0.375)
    assert tally.summary()["step_s"]["p50"] == 0.5, "of five fragments"
    assert tally.summary()["step_s"]["p99"] == pytest.approx(1.0 + 0.96 * (2.3125 - 1.0))


def test_the_summary_is_plain_data() -> None:
    tally = Tally()
    tally.measured(np.array([0.1]), np.array([0.5]))
    tally.sync("first", "fp32", 8)
    assert json.loads(json.dumps(tally.summary())) == tally.summary()
