"""What the tests of the learners share: numbers worked out beforehand, and random tensors."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import torch
from torch import Tensor


def vectors(name: str) -> Any:
    """Numbers worked out from the definitions in float64 by loops, without anything of this project."""
    return json.loads((pathlib.Path(__file__).parent / "vectors" / f"{name}.json").read_text())


def tensor(numbers: Any) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


class Source:
    """Random tensors in float64, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def numbers(self, *shape: int, size: float = 2.0) -> Tensor:
        return (torch.rand(*shape, generator=self._generator, dtype=torch.float64) * 2 - 1) * size

    def flags(self, *shape: int, share: float) -> Tensor:
        return torch.rand(*shape, generator=self._generator) < share
