"""The names of what is measured."""

from __future__ import annotations

import re

import pytest

from clusterenv.errors import ConfigError
from clusterenv.metrics import keys

# What plots of other people look for. A name that changes here breaks them.
PROMISED = [
    "charts/episodic_return",
    "charts/episodic_length",
    "charts/SPS",
    "charts/learning_rate",
    "losses/policy_loss",
    "losses/value_loss",
    "losses/entropy",
    "losses/approx_kl",
    "losses/clipfrac",
    "losses/explained_variance",
    "sync/policy_lag_mean",
    "sync/policy_lag_max",
    "sync/divergence_mean",
    "sync/divergence_max",
    "sync/count",
    "sync/bytes",
    "sync/skipped",
    "sync/publish_to_apply_ms_p50",
    "sync/publish_to_apply_ms_p99",
    "cluster/step_ms_p50",
    "cluster/step_ms_p99",
    "cluster/straggler_ratio",
    "cluster/bytes_in",
    "cluster/bytes_out",
    "cluster/restarts",
    "cluster/learner_wait_fraction",
    "cluster/worker_wait_fraction",
]


@pytest.mark.parametrize("name", PROMISED)
def test_a_promised_name_is_there(name: str) -> None:
    assert keys.find(name).name == name


def test_every_metric_has_a_unit_and_a_sentence() -> None:
    for metric in keys.METRICS.values():
        assert re.fullmatch(r"(charts|losses|sync|cluster|replay|inference)/[A-Za-z0-9_]+", metric.name)
        assert metric.unit
        assert metric.sentence[0].isupper()
        assert metric.sentence.endswith(".")


def test_no_name_is_used_twice() -> None:
    constants = [value for value in vars(keys).values() if isinstance(value, keys.Metric)]
    assert len({metric.name for metric in constants}) == len(constants) == len(keys.METRICS)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown metric 'charts/SPs'\. Did you mean 'charts/SPS'\?"):
        keys.find("charts/SPs")


def test_reasons_of_syncs_and_tasks_need_no_list() -> None:
    assert keys.find("sync/reason/lag").unit == "syncs"
    task = keys.find("charts/episodic_return/Catch-v0-rows=5")
    assert (task.name, task.unit) == ("charts/episodic_return/Catch-v0-rows=5", "reward")
    assert task.sentence == "Mean return of the last 100 finished episodes of the task 'Catch-v0-rows=5'."
    assert keys.find("losses/task_weight/Catch-v0").unit == "0-1"
