"""A memory for a network: an LSTM that forgets where an episode begins."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from clusterenv.spaces import Leaf


class Remembered(NamedTuple):
    """What a core made of T steps of N slots.

    Attributes:
        output: [T, N, size].
        state: after every step, each [T, N, size].
    """

    output: Tensor
    state: tuple[Tensor, Tensor]


class LstmCore(nn.Module):
    """One layer of LSTM.

    Its state is (hidden, cell), zeros at the start of an episode; the hidden part is its output too.

    Args:
        inputs: how many features come in.
        size: how many go out.

    Example:
        >>> core = LstmCore(3, 8)
        >>> output, state = core(torch.zeros(2, 3), (torch.zeros(2, 8), torch.zeros(2, 8)))
        >>> output.shape, [leaf.shape for leaf in core.state]
        (torch.Size([2, 8]), [(8,), (8,)])
    """

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(inputs, size)
        self.state = (Leaf((size,), np.dtype(np.float32)),) * 2

    def forward(self, features: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """One step: features [n, inputs] and the state before -> output [n, size] and the state after."""
        hidden, cell = self.cell(features, state)
        return hidden, (hidden, cell)

    def unroll(self, features: Tensor, state: tuple[Tensor, ...], first: Tensor) -> Remembered:
        """T steps: features [T, N, inputs], the state before them each [N, size], and where episodes begin [T, N]."""
        states = []
        for now, begins in zip(features, first.unsqueeze(-1), strict=True):
            # Before the observation is seen: it belongs to the new episode already.
            state = tuple(part.masked_fill(begins, 0.0) for part in state)
            _, state = self(now, state)
            states.append(state)
        hidden, cell = (torch.stack(parts) for parts in zip(*states, strict=True))
        return Remembered(hidden, (hidden, cell))
