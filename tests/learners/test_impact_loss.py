"""The ratio of three policies: against numbers worked out beforehand, gradients included."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.learners.common.gae import next_values
from clusterenv.learners.common.vtrace import vtrace
from clusterenv.learners.impact.loss import ratio, steer, surrogate
from tests.learners.kit import tensor, vectors

CASES = vectors("impact")["ratio_cases"]
LOGS = st.floats(-5, 0)


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_numbers_worked_out_beforehand(case: dict[str, Any]) -> None:
    logp = tensor(case["log_theta"]).requires_grad_()
    moved = ratio(logp, tensor(case["log_worker"]), tensor(case["log_target"]), case["rho"])
    objective = surrogate(moved, tensor(case["advantage"]), case["clip"])
    objective.backward()  # type: ignore[no-untyped-call]
    assert moved.item() == pytest.approx(case["ratio"], rel=1e-9)
    assert objective.item() == pytest.approx(case["objective"], rel=1e-9)
    assert logp.grad is not None
    assert logp.grad.item() == pytest.approx(case["d_objective_d_logpi_theta"], rel=1e-9, abs=1e-12)


def test_there_are_ten_of_them() -> None:
    assert len(CASES) == 10


def test_targets_and_advantages_come_from_the_target_network() -> None:
    told = vectors("impact")["vtrace_with_target_network"]
    column = {name: tensor(told[name]).reshape(-1, 1) for name in ("log_pi_worker", "log_pi_target", "log_pi_theta")}
    value, terminated = tensor(told["values"]).reshape(-1, 1), tensor(told["discounts"]).reshape(-1, 1) == 0
    every = torch.cat([value, tensor(told["bootstrap_value"]).reshape(1, 1)])
    nowhere = (torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    aim = vtrace(
        log_ratio=column["log_pi_target"] - column["log_pi_worker"],
        reward=tensor(told["rewards"]).reshape(-1, 1),
        value=value,
        next_value=next_values(every, terminated, torch.zeros_like(terminated), torch.zeros(0), nowhere),
        ended=terminated,
        gamma=0.99,
    )
    moved = ratio(column["log_pi_theta"], column["log_pi_worker"], column["log_pi_target"], told["rho"])
    gained = surrogate(moved, aim.advantage, told["clip"])
    for found, name in ((aim.target, "vs"), (aim.advantage, "pg_advantages"), (moved, "ratio"), (gained, "surrogate")):
        torch.testing.assert_close(found.flatten(), tensor(told["expected"][name]), rtol=1e-9, atol=1e-9)
    assert -gained.mean().item() == pytest.approx(told["expected"]["policy_loss_mean"])


@given(LOGS, LOGS, LOGS)
def test_without_a_limit_the_actor_plays_no_part(learner: float, actor: float, target: float) -> None:
    moved = ratio(tensor(learner), tensor(actor), tensor(target), None)
    assert moved.item() == pytest.approx(tensor(learner - target).exp().item(), rel=1e-9)


@given(LOGS, LOGS, LOGS, st.floats(0.1, 10))
def test_the_limit_only_ever_makes_it_smaller(learner: float, actor: float, target: float, rho: float) -> None:
    logs = tensor(learner), tensor(actor), tensor(target)
    assert ratio(*logs, rho).item() <= ratio(*logs, None).item() * (1 + 1e-12)
    assert ratio(*logs, rho).item() <= rho * tensor(learner - actor).exp().item() * (1 + 1e-12)


@pytest.mark.parametrize(
    ("logs", "rho", "expected"),
    [((-110.0, -1.0, -100.0), None, -10.0), ((-1.0, -100.0, -1.0), 2.0, 0.0), ((-200.0, -1.0, -99.0), 2.0, None)],
)
def test_what_one_of_the_three_all_but_rules_out_is_no_reason_for_nan(
    logs: tuple[float, float, float], rho: float | None, expected: float | None
) -> None:
    """In float32, where infinity begins at exp(89)."""
    learner, actor, target = (torch.tensor(log) for log in logs)
    learner.requires_grad_()
    moved = ratio(learner, actor, target, rho)
    moved.backward()  # type: ignore[no-untyped-call]
    assert moved.item() == pytest.approx(0.0 if expected is None else math.exp(expected), rel=1e-4)
    assert learner.grad is not None
    assert learner.grad.item() == moved.item()


def test_the_weight_of_the_divergence_follows_it() -> None:
    coef = 1.0
    for _ in range(20):
        coef = steer(coef, divergence=1.0, wanted=0.04)
    assert coef == pytest.approx(1.5**20)
    for _ in range(40):
        coef = steer(coef, divergence=0.0, wanted=0.04)
    assert coef < 1.0
