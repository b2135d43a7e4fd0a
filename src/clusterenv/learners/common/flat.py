"""All parameters of a module in one tensor, so that an optimiser has one to go over and not a dozen."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def flatten(module: nn.Module) -> nn.Parameter:
    """Move the parameters of a module into one tensor, of which they are views from then on; their gradients too.

    Give the result to an optimiser, and zero its gradient in place: `zero_grad(set_to_none=False)`. Of small networks
    an optimiser takes more time to walk over the tensors than to compute. Move the module to its device before.

    Example:
        >>> module = nn.Linear(2, 1)
        >>> whole = flatten(module)
        >>> _ = whole.data.fill_(0.5)
        >>> module.weight.tolist(), module.bias.tolist()
        ([[0.5, 0.5]], [0.5])
        >>> module(torch.tensor([3.0, 4.0])).sum().backward()
        >>> whole.grad
        tensor([3., 4., 1.])
    """
    parts = list(module.parameters())
    whole = nn.Parameter(torch.cat([part.detach().reshape(-1) for part in parts]))
    whole.grad = torch.zeros_like(whole)
    sizes = [part.numel() for part in parts]
    views = zip(parts, torch.split(whole.data, sizes), torch.split(whole.grad, sizes), strict=True)
    for part, data, grad in views:
        part.data, part.grad = data.view_as(part), grad.view_as(part)
    return whole


@torch.no_grad()
def clip_gradient(whole: nn.Parameter, largest: float) -> Tensor:
    """Cut the gradient of one tensor to this norm; returns its norm before.

    Example:
        >>> whole = nn.Parameter(torch.zeros(2))
        >>> whole.grad = torch.tensor([3.0, 4.0])
        >>> clip_gradient(whole, 1.0), whole.grad
        (tensor(5.), tensor([0.6000, 0.8000]))
    """
    if whole.grad is None:
        return whole.new_zeros(())
    norm: Tensor = torch.linalg.vector_norm(whole.grad)
    # A multiplication in any case: to ask whether it is needed would wait for another device.
    whole.grad.mul_((largest / norm).clamp(max=1.0))
    return norm
