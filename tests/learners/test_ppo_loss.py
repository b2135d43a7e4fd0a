"""The loss of PPO, by hand and by its gradients."""

from __future__ import annotations

import math

import pytest
import torch

from clusterenv.learners.ppo.loss import (
    Samples,
    drift,
    loss,
    policy_loss,
    value_loss,
)

CLIP = 0.2


def gradient(ratio: float, advantage: float) -> float:
    """The gradient of the loss with respect to the new log-probability."""
    logp = torch.tensor([math.log(ratio)], requires_grad=True)
    policy_loss(logp, torch.zeros(1), torch.tensor([advantage]), CLIP).backward()  # type: ignore[no-untyped-call]
    assert logp.grad is not None
    return float(logp.grad)


@pytest.mark.parametrize(("ratio", "advantage", "expected"), [(1.0, 2.0, -2.0), (1.1, 2.0, -2.2), (0.9, -2.0, 1.8)])
def test_inside_the_clip_it_is_the_weighted_advantage(ratio: float, advantage: float, expected: float) -> None:
    got = policy_loss(torch.tensor([math.log(ratio)]), torch.zeros(1), torch.tensor([advantage]), CLIP)
    assert float(got) == pytest.approx(expected)
    assert gradient(ratio, advantage) == pytest.approx(expected)


@pytest.mark.parametrize(("ratio", "advantage"), [(1.3, 1.0), (0.7, -1.0)])
def test_what_went_far_enough_in_the_good_direction_gets_no_gradient(ratio: float, advantage: float) -> None:
    assert gradient(ratio, advantage) == 0


@pytest.mark.parametrize(("ratio", "advantage"), [(0.7, 1.0), (1.3, -1.0)])
def test_what_went_the_wrong_way_is_pulled_back(ratio: float, advantage: float) -> None:
    assert gradient(ratio, advantage) == pytest.approx(-ratio * advantage)


def test_the_ratio_is_to_the_policy_that_acted() -> None:
    """The same network, data of two workers: what an old policy found unlikely weighs more, up to the clip."""
    logp = torch.log(torch.tensor([0.5, 0.5]))
    behaviour = torch.log(torch.tensor([0.5, 0.25]))
    assert float(policy_loss(logp, behaviour, torch.tensor([1.0, 1.0]), CLIP)) == pytest.approx(-(1.0 + 1.2) / 2)


def test_the_value_loss_is_half_the_squared_error() -> None:
    assert float(value_loss(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 2.0]))) == pytest.approx(1.0)


def test_drift_is_nothing_for_the_same_policy_and_counts_what_left_the_clip() -> None:
    logp = torch.log(torch.tensor([0.5, 0.3, 0.2]))
    assert [float(part) for part in drift(logp, logp, CLIP)] == [0, 0]
    kl, share = drift(torch.log(torch.tensor([0.5, 0.45, 0.2])), logp, CLIP)
    assert float(kl) == pytest.approx((0.5 - math.log(1.5)) / 3, rel=1e-5)
    assert float(share) == pytest.approx(1 / 3)


def test_the_parts_are_put_together_with_their_weights() -> None:
    samples = Samples(
        torch.zeros(2, 1), torch.zeros(2), torch.zeros(2), torch.tensor([1.0, 3.0]), torch.tensor([2.0, 2.0])
    )
    told = loss(
        samples,
        torch.zeros(2),
        torch.tensor([0.5, 0.7]),
        torch.zeros(2),
        clip=CLIP,
        value_coef=0.5,
        entropy_coef=0.1,
        normalize_advantage=False,
    )
    assert float(told.policy) == pytest.approx(-2)
    assert float(told.value) == pytest.approx(2)
    assert float(told.entropy) == pytest.approx(0.6)
    assert float(told.total) == pytest.approx(-2 + 0.5 * 2 - 0.1 * 0.6)


def test_picking_keeps_rows_together() -> None:
    rows = torch.arange(4.0)
    samples = Samples({"a": rows, "b": (rows * 10,)}, rows, rows + 1, rows + 2, rows + 3)
    picked = samples.pick(torch.tensor([2, 0]))
    assert len(picked.logp) == 2
    assert picked.obs["a"].tolist() == [2, 0]
    assert picked.obs["b"][0].tolist() == [20, 0]
    assert (picked.action.tolist(), picked.logp.tolist()) == ([2, 0], [3, 1])
    assert (picked.advantage.tolist(), picked.target.tolist()) == ([4, 2], [5, 3])
