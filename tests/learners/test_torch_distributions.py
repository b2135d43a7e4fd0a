"""The distributions in torch agree with those that act, and gradients flow through them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from clusterenv.errors import ConfigError
from clusterenv.learners.common.torch_distributions import draw, entropy, log_prob
from clusterenv.policy.distributions import (
    Bernoulli,
    Categorical,
    Deterministic,
    DiagGaussian,
    EpsilonGreedy,
    MultiCategorical,
    TanhGaussian,
)

KINDS = [
    Categorical(5),
    Categorical(3, start=7),
    MultiCategorical((2, 5, 3)),
    MultiCategorical((2, 2, 2, 2), shape=(2, 2)),
    Bernoulli(4),
    Bernoulli(4, shape=(2, 2)),
    DiagGaussian(3),
    DiagGaussian(4, low=-1, high=1, shape=(2, 2)),
    TanhGaussian(low=[-2.0, 0.0], high=[2.0, 5.0]),
]


def drawn(distribution: Any, *shape: int, seed: int = 0) -> tuple[Any, Any]:
    """Random parameters and actions, [*shape, P] and [*shape, ...]."""
    source = np.random.default_rng(seed)
    params = source.normal(size=(*shape, distribution.size)).astype(np.float32)
    noise_shape = (*shape, distribution.draws)
    noise = source.random(noise_shape) if distribution.noise == "uniform" else source.normal(size=noise_shape)
    return params, distribution.sample(params, noise.astype(np.float32))


@pytest.mark.parametrize("distribution", KINDS, ids=repr)
@pytest.mark.parametrize("shape", [(6,), (4, 3)])
def test_agrees_with_the_one_that_acts(distribution: Any, shape: tuple[int, ...]) -> None:
    params, actions = drawn(distribution, *shape)
    tensor = torch.from_numpy(params)
    ours = log_prob(distribution, tensor, torch.from_numpy(actions))
    assert ours.shape == entropy(distribution, tensor).shape == shape
    np.testing.assert_allclose(ours.numpy(), distribution.log_prob(params, actions), rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(
        entropy(distribution, tensor).numpy(), distribution.entropy(params), rtol=2e-4, atol=2e-4
    )


@pytest.mark.parametrize("distribution", KINDS, ids=repr)
def test_gradients_are_those_of_finite_differences(distribution: Any) -> None:
    params, actions = drawn(distribution, 2)
    start = torch.from_numpy(params).double().requires_grad_()
    given = torch.from_numpy(actions)
    assert torch.autograd.gradcheck(lambda p: log_prob(distribution, p, given), (start,))
    assert torch.autograd.gradcheck(lambda p: entropy(distribution, p), (start,))


@pytest.mark.parametrize("size", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("shape", [(200,), (4, 3)])
def test_what_is_drawn_is_what_the_one_that_acts_draws(shape: tuple[int, ...], size: float) -> None:
    distribution = TanhGaussian(low=[-2.0, 0.0], high=[2.0, 5.0])
    source = np.random.default_rng(0)
    params = (size * source.normal(size=(*shape, 4))).astype(np.float32)
    noise = source.normal(size=(*shape, 2)).astype(np.float32)
    actions, logp = draw(distribution, torch.from_numpy(params), torch.from_numpy(noise))
    expected = distribution.sample(params, noise)
    expected_logp = distribution.log_prob(params, expected)
    np.testing.assert_allclose(actions, expected, rtol=1e-6, atol=1e-6)
    # An action next to its bound has lost digits, from which nobody can say how near it was.
    inside = (np.minimum(expected - distribution.low, distribution.high - expected) > 1e-2).all(-1)
    assert inside.mean() > 0.2
    np.testing.assert_allclose(logp.numpy()[inside], expected_logp[inside], rtol=2e-4, atol=2e-4)


def test_gradients_flow_through_what_is_drawn() -> None:
    distribution = TanhGaussian(low=[-2.0, 0.0], high=[2.0, 5.0])
    noise = torch.tensor([[0.3, -1.0], [2.0, 0.0]], dtype=torch.float64)
    params = torch.tensor([[0.1, 0.2, -0.5, 0.4], [1.0, -2.0, 0.0, 0.3]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda p: draw(distribution, p, noise), (params,))


def test_what_is_drawn_far_outside_still_has_a_finite_density_and_gradient() -> None:
    params = torch.tensor([[60.0, 0.0]], requires_grad=True)
    actions, logp = draw(TanhGaussian(-1, 1), params, torch.zeros(1, 1))
    assert actions.item() == 1.0
    assert logp.item() == pytest.approx(120.0 - 0.5 * np.log(2 * np.pi) - 2 * np.log(2), rel=1e-5)
    (actions + logp).sum().backward()  # type: ignore[no-untyped-call]
    assert params.grad is not None
    assert torch.isfinite(params.grad).all()


@pytest.mark.parametrize("mask", [-np.inf, -1e9])
def test_a_masked_choice_gives_no_nan_and_gets_no_gradient(mask: float) -> None:
    params = np.array([[0.5, mask, -0.5]], np.float32)
    start = torch.from_numpy(params).requires_grad_()
    distribution, actions = Categorical(3), torch.tensor([2])
    logp, bits = log_prob(distribution, start, actions), entropy(distribution, start)
    np.testing.assert_allclose(logp.detach(), distribution.log_prob(params, actions.numpy()), rtol=1e-5)
    np.testing.assert_allclose(bits.detach(), distribution.entropy(params), rtol=1e-5)
    (logp + bits).sum().backward()  # type: ignore[no-untyped-call]
    assert start.grad is not None
    assert torch.isfinite(start.grad).all()
    assert start.grad[0, 1] == 0
    assert start.grad[0, 0] != 0


def test_a_masked_switch_gives_no_nan() -> None:
    params = np.array([[0.5, -np.inf, np.inf]], np.float32)
    start = torch.from_numpy(params).requires_grad_()
    distribution, actions = Bernoulli(3), np.array([[1, 0, 1]], np.int8)
    logp, bits = log_prob(distribution, start, torch.from_numpy(actions)), entropy(distribution, start)
    np.testing.assert_allclose(logp.detach(), distribution.log_prob(params, actions), rtol=1e-5)
    np.testing.assert_allclose(bits.detach(), distribution.entropy(params), rtol=1e-5)
    (logp + bits).sum().backward()  # type: ignore[no-untyped-call]
    assert start.grad is not None
    assert torch.isfinite(start.grad).all()


@pytest.mark.parametrize("distribution", [EpsilonGreedy(2, 0.1), Deterministic(-1, 1)], ids=repr)
def test_what_has_no_policy_gradient_is_refused(distribution: Any) -> None:
    with pytest.raises(ConfigError, match=r"cannot be learned by a policy gradient\. Use Categorical"):
        log_prob(distribution, torch.zeros(1, 2), torch.zeros(1))
    with pytest.raises(ConfigError, match=type(distribution).__name__):
        entropy(distribution, torch.zeros(1, 2))
