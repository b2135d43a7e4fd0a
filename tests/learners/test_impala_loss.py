"""The loss of IMPALA: against numbers worked out beforehand, gradients included."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from clusterenv.learners.common import torch_distributions
from clusterenv.learners.impala.loss import Loss, Reduction, loss
from clusterenv.policy.distributions import Categorical
from tests.learners.kit import tensor, vectors

TOLD = vectors("vtrace_losses")


def from_logits(logits: torch.Tensor, value: torch.Tensor, reduction: Reduction) -> Loss:
    actions, wanted = torch.tensor(TOLD["inputs"]["actions"]), TOLD["expected"]
    return loss(
        torch_distributions.log_prob(Categorical(3), logits, actions),
        torch_distributions.entropy(Categorical(3), logits),
        value,
        target=tensor(wanted["vs"]),
        advantage=tensor(wanted["pg_advantages"]),
        value_coef=TOLD["baseline_cost"],
        entropy_coef=TOLD["entropy_cost"],
        reduction=reduction,
    )


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    given = TOLD["inputs"]
    return tensor(given["target_policy_logits"]).requires_grad_(), tensor(given["values"]).requires_grad_()


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_agrees_with_numbers_worked_out_beforehand(reduction: Any) -> None:
    told, wanted = from_logits(*inputs(), reduction), TOLD["expected"][f"{reduction}_reduction"]
    assert told.policy.item() == pytest.approx(wanted["pg_loss"], rel=1e-9)
    assert told.value.item() == pytest.approx(wanted["baseline_loss_without_cost"], rel=1e-9)
    assert told.entropy.item() == pytest.approx(-wanted["entropy_loss_without_cost"], rel=1e-9)
    assert told.total.item() == pytest.approx(wanted["total"], rel=1e-9)


def test_gradients_flow_to_the_logits_and_the_values_alone() -> None:
    logits, value = inputs()
    from_logits(logits, value, "sum").total.backward()  # type: ignore[no-untyped-call]
    wanted = TOLD["expected"]
    assert logits.grad is not None
    assert value.grad is not None
    torch.testing.assert_close(logits.grad, tensor(wanted["grad_total_sum_wrt_target_logits"]), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(value.grad, tensor(wanted["grad_total_sum_wrt_values"]), rtol=1e-9, atol=1e-12)
