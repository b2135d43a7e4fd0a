"""The losses of SAC, against loops over transitions, finite differences and cases that can be worked out by hand."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.learners.sac.loss import actor_loss, critic_loss, soft_target, temperature_loss
from tests.learners.kit import Source, tensor

if TYPE_CHECKING:
    from torch import Tensor

SEEDS = st.integers(0, 10_000)
N = 7


def numbers(seed: int) -> dict[str, Tensor]:
    source = Source(seed)
    made = {name: source.numbers(N) for name in ("reward", "next_logp", "logp", "target")}
    made["discount"] = 0.99 * (~source.flags(N, share=0.3)).double()
    made |= {name: source.numbers(2, N, size=5.0) for name in ("q", "next_q")}
    made["weights"] = source.numbers(N, size=0.5) + 1.0
    made["temperature"] = source.numbers(1, size=0.5)[0] + 1.0
    return made


@given(SEEDS)
def test_targets_are_those_of_a_loop(seed: int) -> None:
    x = numbers(seed)
    found = soft_target(x["reward"], x["discount"], x["next_q"], x["next_logp"], x["temperature"])
    for i in range(N):
        lesser = min(x["next_q"][0, i].item(), x["next_q"][1, i].item())
        worth = lesser - x["temperature"].item() * x["next_logp"][i].item()
        assert found[i].item() == pytest.approx(x["reward"][i].item() + x["discount"][i].item() * worth)


def test_nothing_is_counted_on_after_a_termination() -> None:
    huge = tensor([[1e9], [1e9]])
    assert soft_target(tensor([2.0]), tensor([0.0]), huge, tensor([3.0]), tensor(1.0)).item() == 2.0


@given(SEEDS)
def test_the_loss_of_the_q_functions_is_that_of_a_loop(seed: int) -> None:
    x = numbers(seed)
    q = x["q"].requires_grad_()
    found = critic_loss(q, x["target"], x["weights"])
    errors = [(q[twin, i] - x["target"][i]).item() for twin in range(2) for i in range(N)]
    slow = sum(weight * error**2 for weight, error in zip([*x["weights"].tolist()] * 2, errors, strict=True))
    assert found.item() == pytest.approx(slow / 2 / N)
    (gradient,) = torch.autograd.grad(found, q)
    by_hand = x["weights"] * (q - x["target"]) / N
    torch.testing.assert_close(gradient, by_hand.detach())


@given(SEEDS)
def test_the_loss_of_the_policy_is_that_of_a_loop(seed: int) -> None:
    x = numbers(seed)
    q, logp = x["q"].requires_grad_(), x["logp"].requires_grad_()
    found = actor_loss(q, logp, x["temperature"])
    lesser_q = [min(q[0, i].item(), q[1, i].item()) for i in range(N)]
    slow = sum(x["temperature"].item() * logp[i].item() - lesser_q[i] for i in range(N)) / N
    assert found.item() == pytest.approx(slow)
    of_q, of_logp = torch.autograd.grad(found, (q, logp))
    torch.testing.assert_close(of_logp, torch.full_like(logp, x["temperature"].item() / N))
    lesser = (q == q.amin(0)).double()
    torch.testing.assert_close(of_q, -lesser / N)


def test_gradients_are_those_of_finite_differences() -> None:
    x = numbers(3)
    assert torch.autograd.gradcheck(lambda q: critic_loss(q, x["target"], x["weights"]), (x["q"].requires_grad_(),))
    logp = x["logp"].requires_grad_()
    assert torch.autograd.gradcheck(lambda q, log: actor_loss(q, log, x["temperature"]), (x["q"], logp))
    log_temperature = tensor(0.3).requires_grad_()
    assert torch.autograd.gradcheck(lambda log: temperature_loss(log, logp, -1.0), (log_temperature,))


@given(st.floats(-5, 5), st.floats(-5, 5), st.floats(-3, 3))
def test_the_temperature_rises_while_the_entropy_is_too_small(logp: float, wanted: float, log: float) -> None:
    log_temperature = tensor(log).requires_grad_()
    drawn = tensor([logp, logp]).requires_grad_()
    temperature_loss(log_temperature, drawn, wanted).backward()  # type: ignore[no-untyped-call]
    assert log_temperature.grad is not None
    # A step goes against the gradient, and the entropy is -logp.
    assert log_temperature.grad.item() == pytest.approx(-logp - wanted, abs=1e-9)
    assert drawn.grad is None


def test_the_best_policy_of_a_quadratic_worth_is_known() -> None:
    """Of Q(a) = -a^2 the best Gaussian has the variance temperature / 2."""
    temperature, noise = tensor(0.5), Source(0).numbers(200_000, size=3**0.5)  # of variance 1
    noise = noise - noise.mean()
    noise = noise / noise.square().mean().sqrt()

    def loss(log_std: Tensor) -> Tensor:
        actions = log_std.exp() * noise
        logp = (-log_std - 0.5 - 0.5 * math.log(2 * math.pi)).expand(len(noise))
        return actor_loss(-actions.square().expand(2, -1), logp, temperature)

    best = tensor(0.5 * math.log(0.25)).requires_grad_()
    (gradient,) = torch.autograd.grad(loss(best), best)
    assert gradient.item() == pytest.approx(0.0, abs=1e-9)
    assert loss(best + 0.1) > loss(best) < loss(best - 0.1)
