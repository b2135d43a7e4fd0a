"""`clusterenv bench`: it measures, and says what to do with it."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest

from clusterenv.cli.bench import BenchArgs, advice
from clusterenv.cli.exits import OK, USAGE
from clusterenv.cli.main import main
from clusterenv.learners.common.placement import Plan

QUICK = ["--seconds", "0.02", "--most-envs", "4", "--cluster", "inproc"]


def test_it_says_where_the_policy_should_act(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--tune", "--env-id", "CartPole-v1", *QUICK]) == OK
    told = capsys.readouterr().out
    for part in ("step of the environment", "policy on a worker", "policy on the head", "there and back", "weights"):
        assert part in told
    assert re.search(r"Let the policy act on the (worker|head): \d+ worker\(s\) with \d+ environment", told)
    assert "clusterenv train impala --env-id CartPole-v1" in told.splitlines()[-1]


def test_without_tune_it_only_measures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--env-id", "CartPole-v1", "--json", *QUICK]) == OK
    told = json.loads(capsys.readouterr().out)
    assert told["plan"] is None
    measured = told["measured"]
    assert measured["observation_bytes"] == 16
    assert measured["worker_s"].keys() == {"1", "4"}
    assert measured["head_s"].keys() == measured["exchange_s"].keys() == {"1"}
    for name in ("step_s", "stepping_rate", "weights_bytes"):
        assert measured[name] > 0


def plan(**changes: Any) -> Plan:
    values: dict[str, Any] = {
        "inference": "head",
        "workers": 3,
        "envs_per_worker": 22,
        "inference_batch": 32,
        "rate": 5000.0,
        "other_rate": 100.0,
        "reasons": ("Because.",),
    }
    return Plan(**{**values, **changes})


@pytest.mark.parametrize("inference", ["worker", "head"])
def test_the_command_that_it_shows_is_one(inference: str) -> None:
    from clusterenv.cli.options import parse
    from clusterenv.learners import catalog

    args = BenchArgs(env_id="CartPole-v1", env_args=("max_episode_steps=9",), lstm=8)
    rows = 32 if inference == "head" else None
    command = advice(args, plan(inference=inference, inference_batch=rows))[-1]
    settings: Any = parse(catalog.find("impala"), shlex.split(command)[3:]).settings
    assert (settings.inference, settings.inference_batch, settings.num_envs) == (inference, rows, 66)
    assert (settings.cluster, settings.lstm) == ("local:3", 8)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--env-id", "NoSuchEnv-v0"], "NoSuchEnv"),
        (["--env-id", "CartPole-v1", "--cluster", "loca:2"], "Did you mean"),
        (["--env-id", "CartPole-v1", "--seconds", "0"], "seconds=0.0 must be more than 0"),
    ],
)
def test_what_is_wrong_is_said(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == USAGE
    assert message in capsys.readouterr().err
