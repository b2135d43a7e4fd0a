"""The arithmetic of Ape-X against a slow and obvious twin."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from clusterenv.learners.apex.loss import bootstrap, td_error, td_loss
from tests.learners.kit import Source, tensor


class Made:
    """A sample of transitions with random numbers everywhere."""

    def __init__(self, seed: int, batch: int = 6, choices: int = 4) -> None:
        source = Source(seed)
        self.q, self.online_q, self.target_q = (source.numbers(batch, choices) for _ in range(3))
        self.action = (source.numbers(batch, size=1.0).abs() * choices).long().clamp(max=choices - 1)
        self.reward = source.numbers(batch)
        self.discount = source.numbers(batch, size=1.0).abs() * ~source.flags(batch, share=0.4)
        self.weight = source.numbers(batch, size=1.0).abs()


def by_hand(made: Made, *, double: bool) -> tuple[list[float], float]:
    """Errors and loss, one transition after another."""
    errors = []
    for i in range(len(made.reward)):
        chooser = made.online_q[i] if double else made.target_q[i]
        chosen = max(range(len(chooser)), key=lambda a: float(chooser[a]))
        following = float(made.target_q[i][chosen]) if made.discount[i] else 0.0
        goal = float(made.reward[i]) + float(made.discount[i]) * following
        errors.append(goal - float(made.q[i][made.action[i]]))
    weighed = [0.5 * float(weight) * error**2 for weight, error in zip(made.weight, errors, strict=True)]
    return errors, sum(weighed) / len(weighed)


def fast(made: Made, *, double: bool) -> tuple[Any, Any]:
    following = bootstrap(made.target_q, made.online_q if double else None)
    error = td_error(made.q, made.action, made.reward, made.discount, following)
    return error, td_loss(error, made.weight)


@given(seed=st.integers(0, 10_000), double=st.booleans())
def test_it_is_what_the_twin_says(seed: int, double: bool) -> None:
    made = Made(seed)
    error, loss = fast(made, double=double)
    errors, total = by_hand(made, double=double)
    torch.testing.assert_close(error, tensor(errors))
    assert loss.item() == pytest.approx(total)


def test_who_chooses_does_not_value() -> None:
    target_q, online_q = tensor([[1.0, 9.0, 3.0]]), tensor([[0.0, 1.0, 2.0]])
    assert bootstrap(target_q).item() == 9.0
    assert bootstrap(target_q, online_q).item() == 3.0


@pytest.mark.parametrize("worth", [math.inf, -math.inf, math.nan, 1e30])
def test_nothing_follows_a_termination_whatever_it_is_worth(worth: float) -> None:
    zero, one = tensor([0.0]), tensor([1.0])
    error = td_error(tensor([[0.25, 0.5]]), torch.tensor([1]), one, zero, tensor([worth]))
    assert error.item() == 0.5


def test_the_gradient_is_the_weighed_error_of_the_action_that_was_taken() -> None:
    made = Made(3)
    made.q.requires_grad_()
    error, loss = fast(made, double=True)
    loss.backward()
    expected = torch.zeros_like(made.q)
    for i, action in enumerate(made.action.tolist()):
        expected[i, action] = -made.weight[i] * error[i].detach() / len(made.action)
    torch.testing.assert_close(made.q.grad, expected)
