"""V-trace: against numbers worked out beforehand, against a slow twin, and by hand where episodes end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clusterenv.learners.common import torch_distributions
from clusterenv.learners.common.gae import next_values
from clusterenv.learners.common.vtrace import VTrace, vtrace
from clusterenv.policy.distributions import Categorical
from tests.learners.kit import Source, tensor, vectors

CASES = vectors("vtrace")["cases"]
NOWHERE = (torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))


def following(value: Tensor, bootstrap: Tensor, terminated: Tensor) -> Tensor:
    """What each step may count on, when no episode was truncated: values [T, N] and [N]."""
    every = torch.cat([value, bootstrap.unsqueeze(0)])
    return next_values(every, terminated, torch.zeros_like(terminated), torch.zeros(0), NOWHERE)


def by_discount(inputs: dict[str, Any], **params: Any) -> VTrace:
    """The function on numbers that tell the end of an episode by a discount of 0."""
    discount, value = tensor(inputs["discounts"]), tensor(inputs["values"])
    terminated = discount == 0
    return vtrace(
        log_ratio=tensor(inputs["log_rhos"]),
        reward=tensor(inputs["rewards"]),
        value=value,
        next_value=following(value, tensor(inputs["bootstrap_value"]), terminated),
        ended=terminated,
        gamma=discount.max().item(),
        **params,
    )


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_agrees_with_numbers_worked_out_beforehand(case: dict[str, Any]) -> None:
    told = by_discount(case["inputs"], **case["params"])
    torch.testing.assert_close(told.target, tensor(case["expected"]["vs"]), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(told.advantage, tensor(case["expected"]["pg_advantages"]), rtol=1e-12, atol=1e-12)


def test_there_are_eight_of_them() -> None:
    assert len(CASES) == 8


def test_a_truncation_counts_on_its_own_last_observation_in_target_and_advantage() -> None:
    told = vectors("vtrace_truncation")
    columns = {name: tensor(told[name]).unsqueeze(1) for name in ("log_rhos", "rewards", "values")}
    truncated = torch.tensor(told["truncated"]).unsqueeze(1)
    terminated = torch.tensor(told["terminated"]).unsqueeze(1)
    final = told["value_of_final_obs_at_truncation"]
    every = torch.cat([columns["values"], tensor([[told["bootstrap_value"]]])])
    at = (torch.tensor([final["index"]]), torch.tensor([0]))
    given = {
        "log_ratio": columns["log_rhos"],
        "reward": columns["rewards"],
        "value": columns["values"],
        "ended": terminated | truncated,
        "gamma": told["gamma"],
    }
    for flags, expected in (
        ((terminated, truncated), told["expected_correct"]),
        ((terminated | truncated, truncated), told["expected_treat_as_terminal"]),
    ):
        got = vtrace(**given, next_value=next_values(every, *flags, tensor([final["value"]]), at))
        torch.testing.assert_close(got.target.flatten(), tensor(expected["vs"]), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(got.advantage.flatten(), tensor(expected["pg_advantages"]), rtol=1e-12, atol=1e-12)


def test_a_stored_rollout_lies_as_in_a_batch() -> None:
    """In a batch, obs[t] and the action chosen from it share an index; reward and end are those of that action."""
    told = vectors("t_plus_1_alignment")
    raw, expected = told["raw"], told["expected"]
    value = tensor(told["learner_values_at_frames"]).unsqueeze(1)  # [T + 1, N]
    reward = tensor(raw["reward"][1:]).unsqueeze(1)
    terminated = torch.tensor(raw["done"][1:]).unsqueeze(1)
    behaviour = tensor(told["same_data_in_seed_convention"]["behavior_logprob_of_chosen"][: told["T"]]).unsqueeze(1)
    log_ratio = tensor(told["learner_logprob_of_next_action"]).unsqueeze(1) - behaviour
    got = vtrace(
        log_ratio=log_ratio,
        reward=reward,
        value=value[:-1],
        next_value=following(value[:-1], value[-1], terminated),
        ended=terminated,
        gamma=told["gamma"],
    )
    torch.testing.assert_close(got.target.flatten(), tensor(expected["vs"]), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got.advantage.flatten(), tensor(expected["pg_advantages"]), rtol=1e-12, atol=1e-12)


def test_losses_and_their_gradients_from_logits() -> None:
    told = vectors("vtrace_losses")
    inputs, expected, kind = told["inputs"], told["expected"], Categorical(3)
    logits = tensor(inputs["target_policy_logits"]).requires_grad_()
    value = tensor(inputs["values"]).requires_grad_()
    action, terminated = torch.tensor(inputs["actions"]), torch.tensor(inputs["done_after_step"])
    logp = torch_distributions.log_prob(kind, logits, action)
    behaviour = torch_distributions.log_prob(kind, tensor(inputs["behavior_policy_logits"]), action)
    got = vtrace(
        log_ratio=logp - behaviour,
        reward=tensor(inputs["rewards"]),
        value=value,
        next_value=following(value, tensor(inputs["bootstrap_value"]), terminated),
        ended=terminated,
        gamma=told["gamma"],
    )
    torch.testing.assert_close(got.target, tensor(expected["vs"]), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got.advantage, tensor(expected["pg_advantages"]), rtol=1e-12, atol=1e-12)
    policy = -(logp * got.advantage).sum()
    critic = 0.5 * (got.target - value).square().sum()
    negative_entropy = -torch_distributions.entropy(kind, logits).sum()
    sums = expected["sum_reduction"]
    assert policy.item() == pytest.approx(sums["pg_loss"], rel=1e-12)
    assert critic.item() == pytest.approx(sums["baseline_loss_without_cost"], rel=1e-12)
    assert negative_entropy.item() == pytest.approx(sums["entropy_loss_without_cost"], rel=1e-12)
    total = policy + told["baseline_cost"] * critic + told["entropy_cost"] * negative_entropy
    total.backward()
    assert total.item() == pytest.approx(sums["total"], rel=1e-12)
    torch.testing.assert_close(logits.grad, tensor(expected["grad_total_sum_wrt_target_logits"]), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(value.grad, tensor(expected["grad_total_sum_wrt_values"]), rtol=1e-9, atol=1e-12)


def by_hand(
    ratio: list[float],
    reward: list[float],
    value: list[float],
    next_value: list[float],
    ended: list[bool],
    *,
    gamma: float,
    rho_bar: float | None,
    c_bar: float,
    pg_rho_bar: float | None,
    lam: float,
) -> tuple[list[float], list[float]]:
    """The definition, one slot: a sum of temporal differences from each step to the end of its own episode."""
    steps, infinity = len(reward), float("inf")
    target = []
    for start in range(steps):
        total, weight = value[start], 1.0
        for t in range(start, steps):
            rho = min(infinity if rho_bar is None else rho_bar, ratio[t])
            total += weight * rho * (reward[t] + gamma * next_value[t] - value[t])
            if ended[t]:
                break
            weight *= gamma * lam * min(c_bar, ratio[t])
        target.append(total)
    advantage = []
    for t in range(steps):
        after = next_value[t] if ended[t] or t == steps - 1 else target[t + 1]
        rho = min(infinity if pg_rho_bar is None else pg_rho_bar, ratio[t])
        advantage.append(rho * (reward[t] + gamma * after - value[t]))
    return target, advantage


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 12),
    slots=st.integers(1, 4),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
    bars=st.sampled_from([(1.0, 1.0, 1.0), (None, 1.0, None), (2.0, 0.5, 1.3), (1.5, 1.5, None)]),
    lam=st.sampled_from([0.0, 0.7, 1.0]),
)
def test_agrees_with_the_definition(
    seed: int, steps: int, slots: int, share: float, gamma: float, bars: tuple[Any, Any, Any], lam: float
) -> None:
    source = Source(seed)
    log_ratio, reward, every = (
        source.numbers(steps, slots),
        source.numbers(steps, slots),
        source.numbers(steps + 1, slots),
    )
    terminated, truncated = source.flags(steps, slots, share=share), source.flags(steps, slots, share=share)
    ended = terminated | truncated
    at = ended.nonzero(as_tuple=True)
    following = next_values(every, terminated, truncated, source.numbers(len(at[0])), (at[0], at[1]))
    params = dict(zip(("rho_bar", "c_bar", "pg_rho_bar"), bars, strict=True)) | {"gamma": gamma, "lam": lam}
    fast = vtrace(log_ratio=log_ratio, reward=reward, value=every[:-1], next_value=following, ended=ended, **params)
    for n in range(slots):
        columns = (log_ratio.exp(), reward, every[:-1], following, ended)
        target, advantage = by_hand(*(column[:, n].tolist() for column in columns), **params)
        assert fast.target[:, n].tolist() == pytest.approx(target, abs=1e-11)
        assert fast.advantage[:, n].tolist() == pytest.approx(advantage, abs=1e-11)


def test_nothing_leaks_from_the_next_episode() -> None:
    told = []
    ended = torch.tensor([[False], [True], [False]])
    for wild in (0.0, 1e6):
        reward, value = tensor([[1.0], [2.0], [wild]]), tensor([[1.0], [2.0], [-3 * wild]])
        next_value = tensor([[2.0], [5.0], [7 * wild]])
        ratio = tensor([[0.1], [0.2], [0.3]])
        told.append(vtrace(log_ratio=ratio, reward=reward, value=value, next_value=next_value, ended=ended, gamma=0.9))
    assert told[0].target[:2].tolist() == told[1].target[:2].tolist()
    assert told[0].advantage[:2].tolist() == told[1].advantage[:2].tolist()
    assert told[0].target[2:].tolist() != told[1].target[2:].tolist()


def test_no_gradient_flows_through_it_and_nothing_given_is_changed() -> None:
    given: dict[str, Any] = {
        name: torch.ones(2, 1, requires_grad=True) for name in ("log_ratio", "reward", "value", "next_value")
    }
    got = vtrace(**given, ended=torch.zeros(2, 1, dtype=torch.bool), gamma=0.9)
    assert not got.target.requires_grad
    assert not got.advantage.requires_grad
    assert all(torch.equal(value, torch.ones(2, 1)) for value in given.values())
