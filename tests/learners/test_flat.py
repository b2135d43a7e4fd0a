"""The parameters of a module in one tensor: nothing but the time it takes to walk over them is different."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from clusterenv.learners.common.flat import clip_gradient, flatten


def made() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def loss(module: nn.Module, seed: int) -> torch.Tensor:
    rows = torch.randn(7, 3, generator=torch.Generator().manual_seed(seed))
    told: torch.Tensor = module(rows).square().mean()
    return told


@pytest.mark.parametrize("largest", [1e9, 0.01])
def test_an_optimiser_does_the_same_with_one_tensor(largest: float) -> None:
    plain, flat = made(), made()
    whole = flatten(flat)
    each, once = torch.optim.Adam(plain.parameters(), lr=0.1), torch.optim.Adam([whole], lr=0.1, fused=True)
    for step in range(5):
        each.zero_grad()
        once.zero_grad(set_to_none=False)
        for module in (plain, flat):
            loss(module, step).backward()  # type: ignore[no-untyped-call]
        expected = nn.utils.clip_grad_norm_(plain.parameters(), largest)
        torch.testing.assert_close(clip_gradient(whole, largest), expected)
        each.step()
        once.step()
    for one, other in zip(plain.parameters(), flat.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_what_is_loaded_reaches_the_one_tensor() -> None:
    module = made()
    whole = flatten(module)
    module.load_state_dict({name: torch.full_like(value, 0.25) for name, value in module.state_dict().items()})
    assert (whole == 0.25).all()


def test_a_copy_is_a_thing_of_its_own() -> None:
    module = made()
    whole = flatten(module)
    other = copy.deepcopy(module)
    before = [parameter.clone() for parameter in other.parameters()]
    with torch.no_grad():
        whole.add_(1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, other.parameters(), strict=True))


def test_no_gradient_has_no_length() -> None:
    whole = nn.Parameter(torch.ones(3))
    assert clip_gradient(whole, 1.0) == 0
    whole.grad = torch.zeros(3)
    assert clip_gradient(whole, 1.0) == 0
    assert torch.equal(whole.grad, torch.zeros(3))
