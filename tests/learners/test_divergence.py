"""Divergences in torch: they agree with those of the distributions that act, and gradients flow through them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterenv.errors import ConfigError
from clusterenv.learners.common.divergence import gaussian_kl, kl
from clusterenv.policy.distributions import (
    Bernoulli,
    Categorical,
    Deterministic,
    DiagGaussian,
    EpsilonGreedy,
    MultiCategorical,
    TanhGaussian,
)
from tests.learners.kit import Source, tensor, vectors

KINDS = [
    Categorical(5),
    MultiCategorical((2, 5, 3)),
    Bernoulli(4),
    DiagGaussian(3),
    TanhGaussian(low=[-2.0, 0.0], high=[2.0, 5.0]),
]


@pytest.mark.parametrize("distribution", KINDS, ids=repr)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), shape=st.sampled_from([(), (6,), (4, 3)]))
def test_agrees_with_the_one_that_measures_drift(distribution: Any, seed: int, shape: tuple[int, ...]) -> None:
    source = Source(seed)
    old, new = source.numbers(*shape, distribution.size), source.numbers(*shape, distribution.size)
    got = kl(distribution, old, new)
    assert got.shape == shape
    np.testing.assert_allclose(got.numpy(), distribution.divergence(old.numpy(), new.numpy()), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(kl(distribution, old, old).numpy(), 0, atol=1e-12)


@pytest.mark.parametrize("distribution", KINDS, ids=repr)
def test_gradients_are_those_of_finite_differences(distribution: Any) -> None:
    source = Source(0)
    old, new = source.numbers(2, distribution.size), source.numbers(2, distribution.size)
    assert torch.autograd.gradcheck(lambda a, b: kl(distribution, a, b), (old.requires_grad_(), new.requires_grad_()))


def test_categorical_agrees_with_numbers_worked_out_beforehand() -> None:
    told = vectors("vmpo_mstep_categorical")
    target, online = tensor(told["logits_target"]), tensor(told["logits_online"])
    torch.testing.assert_close(kl(Categorical(3), target, online), tensor(told["kl_target_online"]))
    torch.testing.assert_close(kl(Categorical(3), online, target), tensor(told["kl_online_target_WRONG_direction"]))


def test_gaussian_agrees_with_numbers_worked_out_beforehand() -> None:
    told = vectors("vmpo_mstep_gaussian")["diag"]
    old = torch.cat([tensor(told["mean_target"]), tensor(told["std_target"]).log()], -1)
    new = torch.cat([tensor(told["mean_online"]), tensor(told["std_online"]).log()], -1)
    mean, spread = gaussian_kl(old, new)
    torch.testing.assert_close(mean, tensor(told["kl_mu"]), rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(spread, tensor(told["kl_sigma"]), rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(kl(DiagGaussian(2), old, new), tensor(told["exact_kl"]), rtol=1e-10, atol=1e-14)


@given(seed=st.integers(0, 2**32))
def test_the_two_parts_are_divergences_from_half_changed_gaussians(seed: int) -> None:
    source = Source(seed)
    old, new = source.numbers(3, 4), source.numbers(3, 4)
    (mean, log_std), (new_mean, new_log_std) = old.chunk(2, -1), new.chunk(2, -1)
    parts = gaussian_kl(old, new)
    whole = DiagGaussian(2)
    moved, wider = torch.cat([new_mean, log_std], -1), torch.cat([mean, new_log_std], -1)
    torch.testing.assert_close(parts.mean, kl(whole, old, moved))
    torch.testing.assert_close(parts.spread, kl(whole, old, wider))


@pytest.mark.parametrize("mask", [-np.inf, -1e9])
def test_a_choice_that_both_mask_plays_no_part(mask: float) -> None:
    old = torch.tensor([[0.5, mask, -0.5]])
    new = torch.tensor([[0.1, mask, 0.3]]).requires_grad_()
    got = kl(Categorical(3), old, new)
    assert got.item() == pytest.approx(kl(Categorical(2), old[:, [0, 2]], new[:, [0, 2]]).item())
    got.sum().backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    assert torch.isfinite(new.grad).all()
    assert new.grad[0, 1] == 0
    assert new.grad[0, 0] != 0


@pytest.mark.parametrize("distribution", [EpsilonGreedy(2, 0.1), Deterministic(-1, 1)], ids=repr)
def test_what_has_no_gradient_is_refused(distribution: Any) -> None:
    with pytest.raises(ConfigError, match=type(distribution).__name__):
        kl(distribution, torch.zeros(1, 2), torch.zeros(1, 2))
