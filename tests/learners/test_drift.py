"""What the metrics say about the distance between learner and actor, and about the critic."""

from __future__ import annotations

import math

import pytest
import torch

from clusterenv.learners.common.drift import drift, explained_variance
from clusterenv.learners.common.measured import measured, numbers
from clusterenv.metrics import keys


def drift_metrics(log_ratio: torch.Tensor, rho_bar: float) -> dict[str, float]:
    return numbers(measured(drift(log_ratio, rho_bar)))


def test_equal_policies_have_not_drifted_even_with_rounding() -> None:
    told = drift_metrics(torch.full((100,), 1e-6), rho_bar=1.0)
    assert told[keys.APPROX_KL.name] == pytest.approx(0, abs=1e-6)
    assert told[keys.RHO_CLIPPED.name] == 0


def test_ratios_above_the_limit_are_counted() -> None:
    told = drift_metrics(torch.tensor([0.5, 2.0, 2.5, 4.0]).log(), rho_bar=2.0)
    assert told[keys.RHO_CLIPPED.name] == 0.5
    assert told[keys.LOG_RATIO.name] == pytest.approx(np_mean_abs_log([0.5, 2.0, 2.5, 4.0]))


def np_mean_abs_log(ratios: list[float]) -> float:
    return sum(abs(math.log(ratio)) for ratio in ratios) / len(ratios)


@pytest.mark.parametrize("shift", [-0.3, 0.2])
def test_the_estimate_of_the_divergence_is_never_negative(shift: float) -> None:
    assert drift_metrics(torch.full((3,), shift), 1.0)[keys.APPROX_KL.name] > 0


def test_explained_variance() -> None:
    target = torch.tensor([1.0, 2.0, 3.0])
    assert explained_variance(target + 5, target).item() == pytest.approx(1)
    assert explained_variance(torch.zeros(3), target).item() == pytest.approx(0)
    assert explained_variance(-target, target).item() == pytest.approx(-3)
    assert explained_variance(target, torch.ones(3)).isnan()
