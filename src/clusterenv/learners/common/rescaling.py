"""The scale on which value-based learners predict: large returns are squashed like a square root, not clipped.

h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x, from Pohlen et al. 2018, "Observe and Look Further". The forms here are
equal to the usual ones, without their differences of nearly equal numbers, so that float32 keeps its digits near 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-3


def squash(returns: Tensor, epsilon: float = EPSILON) -> Tensor:
    """h: returns on the scale that the network predicts.

    Example:
        >>> import torch
        >>> squash(torch.tensor([-3.0, 0.0, 3.0]))
        tensor([-1.0030,  0.0000,  1.0030])
    """
    return returns / ((returns.abs() + 1).sqrt() + 1) + epsilon * returns


def unsquash(values: Tensor, epsilon: float = EPSILON) -> Tensor:
    """The inverse of `squash`: predictions as returns. `epsilon` must be the same, and above 0.

    Example:
        >>> import torch
        >>> unsquash(torch.tensor([-1.003, 0.0, 1.003]))
        tensor([-3.,  0.,  3.])
    """
    # With y the value, s = sqrt(1 + 4 epsilon (|y| + 1 + epsilon)) and q = (s - 1) / (2 epsilon): |x| = q^2 - 1.
    start = 1 + 2 * epsilon  # s at 0
    root = (start**2 + 4 * epsilon * values.abs()).sqrt()
    excess = (2 - 4 * epsilon / (root + start)) / (1 + root)  # (q - 1) / |y|
    return values * excess * (excess * values.abs() + 2)
