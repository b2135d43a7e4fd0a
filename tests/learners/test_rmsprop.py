"""RMSProp as TensorFlow 1 did it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterenv.errors import ConfigError
from clusterenv.learners.common import checkpoint
from clusterenv.learners.common.rmsprop import TensorFlowRMSprop
from tests.learners.kit import vectors

TOLD = vectors("rmsprop")


def walked(gradients: list[float], **settings: float) -> list[float]:
    weight = torch.nn.Parameter(torch.ones((), dtype=torch.float64))
    optimizer = TensorFlowRMSprop([weight], **settings)
    path = []
    for gradient in gradients:
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
        path.append(weight.item())
    return path


def test_agrees_with_numbers_worked_out_beforehand() -> None:
    got = walked(TOLD["gradients"], lr=TOLD["lr"], alpha=TOLD["alpha"], eps=TOLD["epsilon"])
    assert got == pytest.approx(TOLD["tf1"], rel=1e-12)
    assert got != pytest.approx(TOLD["torch"], rel=1e-4)


@settings(max_examples=30)
@given(
    gradients=st.lists(st.floats(-5, 5), min_size=1, max_size=8),
    alpha=st.sampled_from([0.0, 0.9, 0.99]),
    momentum=st.sampled_from([0.0, 0.5]),
)
def test_agrees_with_the_definition(gradients: list[float], alpha: float, momentum: float) -> None:
    weight, square, last, expected = 1.0, 1.0, 0.0, []
    for gradient in gradients:
        square = alpha * square + (1 - alpha) * gradient**2
        last = momentum * last + 0.1 * gradient / (square + 0.01) ** 0.5
        weight -= last
        expected.append(weight)
    got = walked(gradients, lr=0.1, alpha=alpha, eps=0.01, momentum=momentum)
    assert got == pytest.approx(expected, rel=1e-10, abs=1e-10)


def test_a_parameter_without_a_gradient_stays_as_it_is() -> None:
    one, other = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = TensorFlowRMSprop([one, other], lr=0.1)
    one.grad = torch.ones(2)
    optimizer.step()
    assert other.tolist() == [1.0, 1.0]
    assert one.tolist() != [1.0, 1.0]


def test_its_memory_can_be_saved() -> None:
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    one, other = (TensorFlowRMSprop([weight], lr=0.1, momentum=0.5) for weight in weights)
    weights[0].grad = torch.tensor([1.0, 3.0])
    one.step()
    weights[1].data.copy_(weights[0])
    checkpoint.restore_optimizer(other, checkpoint.optimizer_tensors(one))
    for weight, optimizer in zip(weights, (one, other), strict=True):
        weight.grad = torch.tensor([2.0, -1.0])
        optimizer.step()
    assert torch.equal(*weights)


def test_a_closure_tells_the_loss() -> None:
    weight = torch.nn.Parameter(torch.tensor(2.0))
    optimizer = TensorFlowRMSprop([weight], lr=0.1)

    def closure() -> float:
        loss = weight.square()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    assert optimizer.step(closure) == 4.0
    assert weight.item() < 2.0


@pytest.mark.parametrize("wrong", [{"lr": -1.0}, {"eps": -1.0}, {"alpha": 1.5}, {"momentum": 1.0}])
def test_settings_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        TensorFlowRMSprop([torch.nn.Parameter(torch.ones(1))], **{"lr": 0.1, **wrong})
