"""`clusterenv bench`: it measures, and says what to do with it."""

from __future__ import annotations

import json
import os
import re
import shlex
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from clusterenv.cli.bench import BenchArgs, advice
from clusterenv.cli.exits import FAILED, NOT_STARTED, OK, USAGE
from clusterenv.cli.main import main
from clusterenv.cli.measure import step_seconds
from clusterenv.config import Timeouts
from clusterenv.errors import EnvError
from clusterenv.learners.common.placement import Plan

QUICK = ["--seconds", "0.02", "--most-envs", "4", "--cluster", "inproc"]


def test_it_says_where_the_policy_should_act(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--tune", "--env-id", "CartPole-v1", *QUICK]) == OK
    told = capsys.readouterr().out
    for part in ("step of the environment", "policy on a worker", "policy on the head", "there and back", "weights"):
        assert part in told
    assert re.search(r"Let the policy act on the (worker|head): \d+ worker\(s\) with \d+ environment", told)
    assert "clusterenv train impala --env-id CartPole-v1" in told.splitlines()[-1]


def test_limits_are_those_that_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """No fork server is there and no environment built within a millisecond."""
    words = ["--seconds", "0.02", "--most-envs", "2", "--cluster", "local:1", "--timeouts.start-s", "0.001"]
    assert main(["bench", "--env-id", "CartPole-v1", *words]) == NOT_STARTED
    assert "0 of 1 workers" in capsys.readouterr().err


def test_the_advice_keeps_the_limits() -> None:
    args = BenchArgs(env_id="CartPole-v1", cluster="local:2", timeouts=Timeouts(step_s=300.0, call_s=None))
    plan = Plan(
        inference="worker", workers=2, envs_per_worker=4, inference_batch=None, rate=1.0, other_rate=0.5, reasons=()
    )
    assert advice(args, plan)[-1].endswith(" --timeouts.step-s 300.0 --timeouts.call-s None")


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


def test_only_workers_with_environments_count(capsys: pytest.CaptureFixture[str]) -> None:
    """Of six workers four get one of the four environments that there may be."""
    words = [*QUICK[:-1], "inproc:6"]
    assert main(["bench", "--tune", "--env-id", "CartPole-v1", "--json", *words]) == OK
    told = json.loads(capsys.readouterr().out)
    assert (told["measured"]["workers"], told["measured"]["cores"]) == (4, 1)
    assert told["plan"]["workers"] * told["plan"]["envs_per_worker"] <= 4


@pytest.mark.parametrize(
    ("cluster", "most_envs", "slots"),
    [
        ("local:2", 64, 32),  # as many as the largest batch on the head
        ("local:3", 4, 3),  # one for each worker
        ("local:9", 4, 4),
        ("tcp:nodes=3,workers=2", 8, 6),
        ("tcp:nodes=2", 8, 8),  # who knows how many workers
    ],
)
def test_each_worker_gets_an_environment_if_there_may_be_so_many(cluster: str, most_envs: int, slots: int) -> None:
    args = BenchArgs(env_id="CartPole-v1", cluster=cluster, most_envs=most_envs)
    assert args.slots() == slots


def test_workers_share_the_cores_of_their_host() -> None:
    cores = len(os.sched_getaffinity(0))
    asked = ("inproc:4", "local:4", "tcp:nodes=2", "ssh://a,b?workers=4")
    assert [BenchArgs(env_id="E", cluster=cluster).cores() for cluster in asked] == [1, cores, cores, None]


class Failing(gymnasium.Env[Any, Any]):
    """Ends its episode after two steps and raises in the `doing` after that; it counts its closings."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)
    closings = 0

    def __init__(self, doing: str = "step") -> None:
        self.doing, self.resets, self.steps = doing, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        if self.doing == "reset" and self.resets > 1:
            raise KeyError("no such level")
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.doing == "step" and self.steps > 1:
            raise KeyError("no such move")
        return 1, 0.0, self.steps % 2 == 0, False, {}

    def close(self) -> None:
        type(self).closings += 1


@pytest.mark.parametrize(("doing", "step", "words"), [("step", 1, "no such move"), ("reset", 0, "no such level")])
def test_an_environment_that_raises_is_named(doing: str, step: int, words: str) -> None:
    with pytest.raises(EnvError, match=f"raised in {doing}: KeyError: '{words}'") as told:
        step_seconds(Failing(doing), 0.01)
    assert isinstance(told.value, KeyError)
    assert (told.value.slot, told.value.step) == (0, step)


def test_an_environment_that_raises_is_closed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are made: one tells its spaces, one is stepped."""
    monkeypatch.setattr(Failing, "closings", 0)
    spec = gymnasium.envs.registration.EnvSpec("Failing-v0", entry_point=lambda **_: Failing())
    monkeypatch.setitem(gymnasium.registry, "Failing-v0", spec)
    assert main(["bench", "--env-id", "Failing-v0", *QUICK]) == FAILED
    assert "EnvError: the environment in slot 0" in capsys.readouterr().err
    assert Failing.closings == 2


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

    odd = ("max_episode_steps=9", "name='two words; $HOME'")  # a shell would split, and replace
    args = BenchArgs(env_id="CartPole-v1", env_args=odd, lstm=8, cluster="local:8,worker_memory=2GiB")
    rows = 32 if inference == "head" else None
    command = advice(args, plan(inference=inference, inference_batch=rows))[-1]
    settings: Any = parse(catalog.find("impala"), shlex.split(command)[3:]).settings
    assert (settings.inference, settings.inference_batch, settings.num_envs) == (inference, rows, 66)
    assert (settings.cluster, settings.lstm, settings.env_args) == ("local:3,worker_memory=2GiB", 8, odd)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--env-id", "NoSuchEnv-v0"], "NoSuchEnv"),
        (["--env-id", "CartPole-v1", "--cluster", "loca:2"], "Did you mean"),
        (["--env-id", "CartPole-v1", "--seconds", "0"], "seconds=0.0 must be more than 0"),
        (["--env-id", "CartPole-v1", "--device", "foo"], "device='foo' cannot be used: "),
        (["--env-id", "CartPole-v1", "--device", "cuda:99"], "device='cuda:99' cannot be used: "),
        (["--env-id", "CartPole-v1", "--torch-threads", "99999999999"], "torch_threads=99999999999 must be at most"),
        (["--env-id", "CartPole-v1", "--lstm", "99999999"], "lstm=99999999 must be at most 8192"),
    ],
)
def test_what_is_wrong_is_said(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == USAGE
    assert message in capsys.readouterr().err
