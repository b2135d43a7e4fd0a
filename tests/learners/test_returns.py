"""Returns: against numbers worked out beforehand, and against slow twins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterenv.learners.common.returns import n_step_returns, returns_to_end
from tests.learners.kit import Source, tensor, vectors


@pytest.mark.parametrize("case", vectors("vmpo_returns")["cases"], ids=lambda case: case["name"])
def test_returns_to_the_end_of_the_fragment(case: dict[str, Any]) -> None:
    value, discount = tensor(case["values"]).unsqueeze(1), tensor(case["discounts"]).unsqueeze(1)
    ended = discount == 0
    next_value = torch.cat([value[1:], tensor([[case["bootstrap_value"]]])]).masked_fill(ended, 0.0)
    got = returns_to_end(tensor(case["rewards"]).unsqueeze(1), next_value, ended, gamma=0.9)
    torch.testing.assert_close(got.flatten(), tensor(case["returns"]), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close((got - value).flatten(), tensor(case["advantages"]), rtol=1e-12, atol=1e-12)
    assert 0.5 * (got - value).square().mean().item() == pytest.approx(case["value_loss_half_mse"], rel=1e-12)


@pytest.mark.parametrize("case", vectors("nstep_sequence")["results"], ids=lambda case: f"{case['n']}-{case['gamma']}")
def test_n_steps_ahead(case: dict[str, Any]) -> None:
    told = vectors("nstep_sequence")
    ended = torch.tensor(told["done_after_step"]).unsqueeze(1)
    next_value = tensor(told["q_next"]).unsqueeze(1).masked_fill(ended, 0.0)
    got = n_step_returns(tensor(told["rewards"]).unsqueeze(1), next_value, ended, gamma=case["gamma"], n=case["n"])
    torch.testing.assert_close(got.flatten(), tensor(case["targets"]), rtol=1e-12, atol=1e-12)


def by_hand(
    reward: list[float], next_value: list[float], ended: list[bool], *, start: int, gamma: float, n: int
) -> float:
    """The definition, one slot and one step: at most n rewards, then what the last of them may count on."""
    total, weight = 0.0, 1.0
    last = min(start + n, len(reward)) - 1
    for t in range(start, last + 1):
        total += weight * reward[t]
        weight *= gamma
        if ended[t] or t == last:
            return total + weight * next_value[t]
    raise AssertionError("there is always a last step")


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 10),
    slots=st.integers(1, 3),
    share=st.sampled_from([0.0, 0.2, 1.0]),
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
    n=st.integers(1, 12),
)
def test_agrees_with_the_definition(seed: int, steps: int, slots: int, share: float, gamma: float, n: int) -> None:
    source = Source(seed)
    reward, next_value = source.numbers(steps, slots), source.numbers(steps, slots)
    ended = source.flags(steps, slots, share=share)
    ahead = n_step_returns(reward, next_value, ended, gamma=gamma, n=n)
    whole = returns_to_end(reward, next_value, ended, gamma=gamma)
    for slot in range(slots):
        columns = [column[:, slot].tolist() for column in (reward, next_value, ended)]
        for t in range(steps):
            assert ahead[t, slot].item() == pytest.approx(by_hand(*columns, start=t, gamma=gamma, n=n), abs=1e-11)
            assert whole[t, slot].item() == pytest.approx(by_hand(*columns, start=t, gamma=gamma, n=steps), abs=1e-11)
