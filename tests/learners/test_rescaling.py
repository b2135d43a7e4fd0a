"""The squashed scale of values: numbers worked out beforehand, and there and back again."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.learners.common.rescaling import squash, unsquash
from tests.learners.kit import tensor, vectors


def test_agrees_with_numbers_worked_out_beforehand() -> None:
    told = vectors("value_rescaling")
    for case in told["pairs"]:
        assert squash(tensor(case["x"]), case["epsilon"]).item() == pytest.approx(case["h"], rel=1e-12, abs=1e-15)
    for case in told["inverse"]:
        got = unsquash(tensor(case["y"]), case["epsilon"]).item()
        assert got == pytest.approx(case["h_inverse_by_bisection"], rel=1e-12, abs=1e-15)


@given(value=st.floats(-1e6, 1e6), epsilon=st.sampled_from([1e-3, 1e-2]))
def test_there_and_back_again(value: float, epsilon: float) -> None:
    assert unsquash(squash(tensor(value), epsilon), epsilon).item() == pytest.approx(value, rel=1e-11, abs=1e-300)


@given(value=st.floats(-1e4, 1e4, width=32))
def test_half_precision_would_not_do_but_float32_does(value: float) -> None:
    """The usual form of the inverse loses three digits near 0."""
    back = unsquash(squash(torch.tensor(value, dtype=torch.float32)))
    assert back.item() == pytest.approx(value, rel=2e-6, abs=1e-37)


def test_gradients_are_finite_at_zero() -> None:
    start = torch.zeros((), requires_grad=True)
    unsquash(squash(start)).backward()  # type: ignore[no-untyped-call]
    assert start.grad is not None
    assert start.grad.item() == pytest.approx(1.0)
