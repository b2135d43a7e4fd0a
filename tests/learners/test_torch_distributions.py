"""The distributions in torch agree with those that act, and gradients flow through them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from clusterenv.errors import ConfigError
from clusterenv.learners.common.torch_distributions import entropy, log_prob
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
