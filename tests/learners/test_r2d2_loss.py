"""The loss of R2D2: numbers worked out beforehand, slow twins, and padding that plays no part."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clusterenv.learners.r2d2.loss import ends, priority, sequence_loss, taken, targets
from tests.learners.kit import Source, tensor, vectors

EPSILON = 1e-3


def test_agrees_with_numbers_worked_out_beforehand() -> None:
    told = vectors("r2d2_loss")
    q, expected = tensor(told["q_online"]), told["expected"]
    done = torch.tensor(told["done"])[1:]  # of the steps: it arrives with the frame after
    aim = targets(
        q,
        tensor(told["q_target"]),
        tensor(told["reward"])[1:],
        done,
        done,
        gamma=told["gamma"],
        n=told["n_steps"],
        epsilon=told["epsilon"],
    )
    torch.testing.assert_close(aim, tensor(expected["targets"]), rtol=1e-9, atol=1e-9)
    error = aim - taken(q[:-1], torch.tensor(told["action"])[:-1])
    torch.testing.assert_close(error, tensor(expected["td_errors"]), rtol=1e-9, atol=1e-9)
    mask = torch.ones_like(done)
    torch.testing.assert_close(priority(error, mask, told["eta"]), tensor(expected["priorities"]), rtol=1e-9, atol=1e-9)
    loss = sequence_loss(error, mask)
    torch.testing.assert_close(loss, tensor(expected["loss_per_sequence"]), rtol=1e-9, atol=1e-9)
    weighted = (tensor(expected["importance_weights_used"]) * loss).mean()
    assert weighted.item() == pytest.approx(expected["batch_loss"], rel=1e-9)


# The slow twin: one sequence, one step at a time, and the usual forms of the squashed scale.


def h(x: float) -> float:
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + EPSILON * x


def h_inverse(y: float) -> float:
    root = (math.sqrt(1 + 4 * EPSILON * (abs(y) + 1 + EPSILON)) - 1) / (2 * EPSILON)
    return math.copysign(root * root - 1, y)


def by_hand(case: Case, b: int, *, gamma: float, n: int) -> list[float]:
    """The errors of the steps of sequence b that are there."""
    length = int(case.mask[:, b].sum())
    errors = []
    for start in range(length):
        total, weight = 0.0, 1.0
        for t in range(start, min(start + n, length)):
            total += weight * case.reward[t, b].item()
            weight *= gamma
            if case.terminated[t, b]:
                break
            if case.truncated[t, b] or t == min(start + n, length) - 1:
                best = int(case.q[t + 1, b].argmax())
                total += weight * h_inverse(case.target_q[t + 1, b, best].item())
                break
        errors.append(h(total) - case.q[start, b, case.action[start, b]].item())
    return errors


class Case:
    """Some sequences, each of its own length; half of the short ones ended, and the others were cut."""

    def __init__(self, seed: int, steps: int, sequences: int, choices: int = 3) -> None:
        source = Source(seed)
        self.q = source.numbers(steps + 1, sequences, choices)
        self.target_q = source.numbers(steps + 1, sequences, choices)
        self.reward = source.numbers(steps, sequences)
        self.action = (source.numbers(steps, sequences, size=0.5) + 0.5).mul(choices).long()
        lengths = 1 + (source.numbers(sequences, size=0.5) + 0.5).mul(steps).long()
        self.mask = torch.arange(steps).unsqueeze(1) < lengths
        last = torch.arange(steps).unsqueeze(1) == lengths - 1
        kind = source.numbers(sequences, size=1.0)
        self.terminated, self.truncated = last & (kind > 0.3), last & (kind < -0.3)

    def errors(self, *, gamma: float, n: int) -> Tensor:
        ended = ends(self.terminated, self.truncated, self.mask)
        aim = targets(self.q, self.target_q, self.reward, self.terminated, ended, gamma=gamma, n=n, epsilon=EPSILON)
        return aim - taken(self.q[:-1], self.action)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 9),
    sequences=st.integers(1, 4),
    gamma=st.sampled_from([0.0, 0.9, 0.997]),
    n=st.integers(1, 10),
    eta=st.sampled_from([0.0, 0.9, 1.0]),
)
def test_agrees_with_the_definition(seed: int, steps: int, sequences: int, gamma: float, n: int, eta: float) -> None:
    case = Case(seed, steps, sequences)
    error = case.errors(gamma=gamma, n=n)
    told, loss = priority(error, case.mask, eta), sequence_loss(error, case.mask)
    for b in range(sequences):
        expected = by_hand(case, b, gamma=gamma, n=n)
        assert error[: len(expected), b].tolist() == pytest.approx(expected, abs=1e-8)
        sizes = [abs(each) for each in expected]
        assert told[b].item() == pytest.approx(eta * max(sizes) + (1 - eta) * sum(sizes) / len(sizes), abs=1e-8)
        assert loss[b].item() == pytest.approx(0.5 * sum(each**2 for each in expected), abs=1e-7)


@given(seed=st.integers(0, 2**32), n=st.integers(1, 6))
def test_padding_plays_no_part(seed: int, n: int) -> None:
    case, other = Case(seed, 6, 4), Case(seed, 6, 4)
    padding = ~case.mask
    for array in (other.reward, other.action):
        array[padding] = 1
    after = torch.cat([torch.zeros_like(padding[:1]), padding])  # not the observation after the last step
    other.q[after], other.target_q[after] = 50.0, -70.0
    for made in (case, other):
        made.q.requires_grad_()
    told = []
    for made in (case, other):
        error = made.errors(gamma=0.9, n=n)
        loss = sequence_loss(error, made.mask)
        loss.sum().backward()  # type: ignore[no-untyped-call]
        told.append((loss.detach(), priority(error, made.mask, 0.9)))
        assert made.q.grad is not None
        assert not made.q.grad[:-1][padding].any()
    for one, same in zip(*told, strict=True):
        torch.testing.assert_close(one, same)


def test_gradients_flow_through_what_was_predicted_alone() -> None:
    case = Case(3, 5, 4)
    case.q.requires_grad_()
    case.target_q.requires_grad_()
    sequence_loss(case.errors(gamma=0.9, n=2), case.mask).sum().backward()  # type: ignore[no-untyped-call]
    assert case.target_q.grad is None
    assert case.q.grad is not None
    picked = torch.nn.functional.one_hot(case.action, 3).bool() & case.mask.unsqueeze(-1)
    assert case.q.grad[:-1][picked].all()
    assert not case.q.grad[:-1][~picked].any()
    assert not case.q.grad[-1].any()


def one_step(choices: Any, target: Any, *, terminated: bool = False) -> float:
    """The target of a single step without a reward."""
    q, flag = tensor([[[0.0, 0.0]], [choices]]), torch.tensor([[terminated]])
    zero = tensor([[0.0]])
    return targets(q, tensor([[[0.0, 0.0]], [target]]), zero, flag, flag, gamma=1.0, n=1, epsilon=EPSILON).item()


def test_the_network_chooses_and_the_target_network_judges() -> None:
    assert one_step([1.0, 2.0], [5.0, 0.5]) == pytest.approx(0.5)
    assert one_step([2.0, 1.0], [5.0, 0.5]) == pytest.approx(5.0)
    assert one_step([2.0, 1.0], [5.0, 0.5], terminated=True) == 0.0
