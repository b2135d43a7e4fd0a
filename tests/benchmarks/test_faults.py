"""The experiment on learning under faults, for a moment: calm and faulty are trained, compared and told."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch

from clusterenv.learners.ppo import PPO, PPOConfig
from experiments import faults

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def loggers_as_before() -> Iterator[None]:
    level = logging.getLogger("clusterenv").level
    yield
    logging.getLogger("clusterenv").setLevel(level)


def test_it_trains_compares_and_saves(tmp_path: pathlib.Path) -> None:
    args = faults.Args(
        seeds=1, modes=["stream"], target=5.0, total_steps=1024, num_envs=4, kill_every_s=600, out=tmp_path
    )
    faults.main(args)  # over before anybody is killed, however busy the machine
    found = json.loads((tmp_path / "faults.json").read_text())
    assert [(run["weather"], run["mode"]) for run in found["runs"]] == [("calm", "stream"), ("faulty", "stream")]
    assert found["compared"][0]["ratio"] == 1.0  # both reach so little with the first batch
    page = (tmp_path / "faults.md").read_text()
    assert "| stream | 128 | 128 | 0 | 1.00 |" in page


def run(mode: str, weather: str, steps: int | None) -> dict[str, Any]:
    return {"mode": mode, "weather": weather, "steps": steps, "kills": 2}


def test_the_comparison() -> None:
    runs = [run("a", "calm", 100), run("a", "faulty", 120), run("a", "calm", 200), run("a", "faulty", 240)]
    runs += [run("b", "calm", 100), run("b", "faulty", None)]
    one, other = faults.compare(runs)
    assert one["ratio"] == pytest.approx(1.2)
    assert other["ratio"] is None
    page = faults.report(faults.Args(), runs)
    assert "| a | 100, 200 | 120, 240 | 8 | 1.20 |" in page
    assert "| b | 100 | not reached | 4 | not reached |" in page


def test_a_policy_is_judged_on_calm_environments() -> None:
    config = PPOConfig(cluster="inproc", num_envs=4, rollout_steps=8, total_steps=32, minibatches=2, runtime="torch")
    learner = PPO(config)
    learner.train()
    with torch.no_grad():
        for tensor in learner.network.parameters():
            tensor.zero_()
    first = faults.evaluate(learner.network, seed=1)
    assert 15 < first < 35, "a coin is worth about 22 steps"
    assert faults.evaluate(learner.network, seed=1) == first
