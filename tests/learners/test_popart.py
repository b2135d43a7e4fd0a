"""PopArt: statistics per task, and a head that says the same in the units of the rewards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from clusterenv.errors import ConfigError
from clusterenv.learners.common.popart import PopArtHead, install
from tests.learners.kit import Source, tensor, vectors

TOLD = vectors("popart_multitask")
FEATURES, TASK, RETURNS = tensor(TOLD["features"]), torch.tensor(TOLD["task_index"]), tensor(TOLD["returns"])


def head(beta: float) -> PopArtHead:
    """The head of the numbers worked out beforehand, in float64."""
    made = PopArtHead(2, 3, beta=beta, scale=(TOLD["scale_lower_bound"], TOLD["scale_upper_bound"])).double()
    with torch.no_grad():
        made.weight.copy_(tensor(TOLD["W"]).T)
        made.bias.copy_(tensor(TOLD["b"]))
        made.mean.copy_(tensor(TOLD["mu"]))
        made.var.copy_(tensor(TOLD["nu"]) - tensor(TOLD["mu"]).square())
    return made


def own(values: torch.Tensor) -> torch.Tensor:
    """Of each row, the output of its task."""
    return values.gather(1, TASK.unsqueeze(1)).squeeze(1)


@pytest.mark.parametrize("name", ["mean_beta_0.1", "mean_beta_0.0001"])
def test_agrees_with_numbers_worked_out_beforehand(name: str) -> None:
    expected = TOLD["updates"][name]
    subject = head(expected["beta"])

    def same(got: torch.Tensor, numbers: Any) -> None:
        torch.testing.assert_close(got, tensor(numbers), rtol=1e-10, atol=1e-12)

    same(subject.std, TOLD["sigma"])
    same(own(subject.normalized(FEATURES)), TOLD["v_norm_before"])
    same(own(subject(FEATURES)), TOLD["v_unnorm_before"])
    subject.learn(RETURNS, TASK)
    same(subject.mean, expected["mu_new"])
    same(subject.var + subject.mean.square(), expected["nu_new"])
    same(subject.std, expected["sigma_new"])
    same(subject.weight.T, expected["W_new"])
    same(subject.bias, expected["b_new"])
    same(own(subject.normalized(FEATURES)), expected["v_norm_after"])
    same(own(subject(FEATURES)), expected["v_unnorm_after"])
    target = subject.normalize(RETURNS, TASK)
    same(target, expected["normalised_targets"])
    same(target - own(subject.normalized(FEATURES)), expected["normalised_advantage"])


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    tasks=st.integers(1, 4),
    rows=st.integers(1, 20),
    beta=st.sampled_from([1e-4, 0.05, 1.0]),
    size=st.sampled_from([1e-3, 1.0, 1e5]),
)
def test_values_stay_and_moments_are_those_of_the_definition(
    seed: int, tasks: int, rows: int, beta: float, size: float
) -> None:
    source, subject = Source(seed), PopArtHead(3, tasks, beta=beta).double()
    features = source.numbers(5, 3)
    first, second = np.zeros(tasks), np.ones(tasks)
    for _ in range(3):
        before = subject(features)
        returns, task = source.numbers(rows, size=size), (source.numbers(rows) > 0).long() * (tasks - 1)
        subject.learn(returns, task)
        torch.testing.assert_close(subject(features), before, rtol=1e-8, atol=1e-8 * size)
        for k in range(tasks):
            mine = returns[task == k].numpy()
            if len(mine):
                first[k] += beta * (mine.mean() - first[k])
                second[k] += beta * ((mine**2).mean() - second[k])
        spread = np.sqrt(np.clip(second - first**2, 1e-4, 1e12))
        assert subject.mean.tolist() == pytest.approx(first.tolist(), rel=1e-9, abs=1e-12)
        assert subject.std.tolist() == pytest.approx(spread.tolist(), rel=1e-6)


def test_a_small_spread_around_a_large_mean_is_seen() -> None:
    """By first and second moments in float64, nothing would be left of a deviation of 1 at 1e9."""
    subject = PopArtHead(1, beta=1.0)
    subject.learn(torch.tensor([1e9 - 1, 1e9 + 1], dtype=torch.float64))
    assert subject.std.item() == pytest.approx(1.0)


def test_one_task_needs_no_index_and_float32_stays_float32() -> None:
    subject = PopArtHead(2, beta=0.5)
    subject.learn(torch.tensor([1.0, 5.0]))
    assert subject(torch.zeros(4, 2)).dtype == torch.float32
    assert subject(torch.zeros(4, 2)).shape == (4, 1)
    normal = subject.normalize(torch.tensor([1.5]))
    assert normal.dtype == torch.float32
    assert normal.item() == pytest.approx(0.0)  # the mean is halfway from 0 to 3


def test_statistics_are_part_of_the_state_and_no_gradient_reaches_them() -> None:
    subject = PopArtHead(2)
    assert set(subject.state_dict()) == {"weight", "bias", "mean", "var"}
    assert subject.state_dict()["mean"].dtype == torch.float64
    assert {name for name, _ in subject.named_parameters()} == {"weight", "bias"}


@pytest.mark.parametrize("wrong", [{"beta": 0.0}, {"beta": 2.0}, {"scale": (0.0, 1.0)}, {"scale": (2.0, 1.0)}])
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        PopArtHead(2, **wrong)


@pytest.mark.parametrize("critic", [nn.Linear(3, 1), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))])
def test_a_critic_with_popart_says_what_it_said(critic: nn.Module) -> None:
    features = torch.randn(5, 3)
    changed, head = install(critic, beta=0.5)
    torch.testing.assert_close(changed(features), critic(features))
    head.learn(torch.tensor([-30.0, 10.0]))
    torch.testing.assert_close(changed(features), critic(features), atol=1e-5, rtol=1e-5)
    assert head.mean.dtype == torch.float64


def test_a_critic_that_does_not_end_with_a_linear_layer_is_refused() -> None:
    with pytest.raises(ConfigError, match="ends with Tanh"):
        install(nn.Sequential(nn.Linear(3, 1), nn.Tanh()), beta=0.5)
