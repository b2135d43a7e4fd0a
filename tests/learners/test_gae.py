"""Advantages: against a slow twin, and by hand where episodes end."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterenv.learners.common.gae import advantages, next_values, normalized

GAMMA, LAMBDA = 0.9, 0.8


def column(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64).unsqueeze(1)


def flags(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.bool).unsqueeze(1)


def whole(
    reward: torch.Tensor,
    value: torch.Tensor,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    final_value: torch.Tensor,
    gamma: float = GAMMA,
    gae_lambda: float = LAMBDA,
) -> torch.Tensor:
    """Both functions, with the final values at the ends in order of time and slot."""
    ended = terminated | truncated
    t, n = ended.nonzero(as_tuple=True)
    following = next_values(value, terminated, truncated, final_value, (t, n))
    return advantages(reward, value[:-1], following, ended, gamma=gamma, gae_lambda=gae_lambda)


def by_hand(
    reward: list[float],
    value: list[float],
    terminated: list[bool],
    truncated: list[bool],
    final_value: dict[int, float],
    gamma: float,
    gae_lambda: float,
) -> list[float]:
    """The definition: a weighted sum of temporal differences, from each step to the end of its own episode."""
    result = []
    for start in range(len(reward)):
        total, weight = 0.0, 1.0
        for t in range(start, len(reward)):
            if terminated[t]:
                ahead = 0.0
            elif truncated[t]:
                ahead = final_value[t]
            else:
                ahead = value[t + 1]
            total += weight * (reward[t] + gamma * ahead - value[t])
            if terminated[t] or truncated[t]:
                break
            weight *= gamma * gae_lambda
        result.append(total)
    return result


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 12),
    slots=st.integers(1, 4),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
    gae_lambda=st.sampled_from([0.0, 0.7, 1.0]),
)
def test_agrees_with_the_definition(
    seed: int, steps: int, slots: int, share: float, gamma: float, gae_lambda: float
) -> None:
    source = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=source, dtype=torch.float64) * 4 - 2

    reward, value = random(steps, slots), random(steps + 1, slots)
    terminated = torch.rand(steps, slots, generator=source) < share
    truncated = torch.rand(steps, slots, generator=source) < share
    t, n = (terminated | truncated).nonzero(as_tuple=True)
    final_value = random(len(t))
    fast = whole(reward, value, terminated, truncated, final_value, gamma, gae_lambda)
    for slot in range(slots):
        finals = {int(a): float(v) for a, b, v in zip(t, n, final_value, strict=True) if b == slot}
        slow = by_hand(
            reward[:, slot].tolist(),
            value[:, slot].tolist(),
            terminated[:, slot].tolist(),
            truncated[:, slot].tolist(),
            finals,
            gamma,
            gae_lambda,
        )
        assert fast[:, slot].tolist() == pytest.approx(slow, abs=1e-12)


def test_a_termination_has_no_future() -> None:
    got = whole(column(1, 1), column(5, 7, 100), flags(0, 1), flags(0, 0), torch.tensor([1000.0]))
    last = 1 - 7
    assert got.flatten().tolist() == pytest.approx([1 + GAMMA * 7 - 5 + GAMMA * LAMBDA * last, last])


def test_a_truncation_counts_on_its_own_last_observation() -> None:
    got = whole(column(1, 1), column(5, 7, 100), flags(0, 0), flags(0, 1), torch.tensor([50.0]))
    last = 1 + GAMMA * 50 - 7
    assert got.flatten().tolist() == pytest.approx([1 + GAMMA * 7 - 5 + GAMMA * LAMBDA * last, last])


def test_a_rollout_that_goes_on_counts_on_the_next_observation() -> None:
    got = whole(column(1), column(5, 7), flags(0), flags(0), torch.zeros(0))
    assert got.item() == pytest.approx(1 + GAMMA * 7 - 5)


def test_a_step_that_is_both_has_terminated() -> None:
    got = whole(column(1), column(5, 7), flags(1), flags(1), torch.tensor([50.0]))
    assert got.item() == pytest.approx(1 - 5)


@pytest.mark.parametrize("kind", ["terminated", "truncated"])
def test_nothing_leaks_from_the_next_episode(kind: str) -> None:
    ends, none = flags(0, 1, 0, 0), flags(0, 0, 0, 0)
    terminated, truncated = (ends, none) if kind == "terminated" else (none, ends)
    final = torch.tensor([3.0])
    calm = whole(column(1, 2, 0, 0), column(1, 2, 0, 0, 0), terminated, truncated, final)
    wild = whole(column(1, 2, 1e6, -1e6), column(1, 2, math.pi * 1e6, 1e7, 1e8), terminated, truncated, final)
    assert calm[:2].tolist() == wild[:2].tolist()
    assert calm[2:].tolist() != wild[2:].tolist()


def test_an_end_without_a_last_observation_counts_on_nothing() -> None:
    nowhere = torch.zeros(0, dtype=torch.int64)
    got = next_values(column(5, 7), flags(0), flags(1), torch.zeros(0), (nowhere, nowhere))
    assert got.tolist() == [[0.0]]


def test_the_values_given_are_not_changed() -> None:
    value = column(5, 7)
    next_values(value, flags(0), flags(1), torch.tensor([50.0]), (torch.tensor([0]), torch.tensor([0])))
    assert value.flatten().tolist() == [5, 7]


def test_advantages_are_normalised_also_when_there_is_one() -> None:
    many = normalized(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert float(many.mean()) == pytest.approx(0, abs=1e-6)
    assert float(many.std(correction=0)) == pytest.approx(1, abs=1e-6)
    assert normalized(torch.tensor([5.0])).tolist() == [0]
