"""What the tests of the learners share: numbers worked out beforehand, and random tensors."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clusterenv.env.batch import Batch, Episodes

T, N = 4, 2


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


def batch(**changes: Any) -> Batch:
    """T steps of N slots with observations of three numbers and a choice of two, in which no episode ends."""
    source = np.random.default_rng(0)
    nothing = np.zeros((T, N), bool)
    fields: dict[str, Any] = {
        "obs": source.normal(size=(T + 1, N, 3)).astype(np.float32),
        "action": source.integers(2, size=(T, N)),
        "reward": source.normal(size=(T, N)),
        "terminated": nothing,
        "truncated": nothing,
        "first": np.zeros((T + 1, N), bool),
        "final_obs": np.zeros((0, 3), np.float32),
        "final_at": (np.zeros(0, np.int64), np.zeros(0, np.int64)),
        "logp": np.full((T, N), np.log(0.5), np.float32),
        "params": np.zeros((T, N, 2), np.float32),
        "value": np.full((T, N), 1e6, np.float32),  # of a worker's critic: it must play no part
        "version": np.zeros((T, N), np.int64),
        "epoch": 0,
        "lag": np.zeros((T, N), np.int64),
        "divergence": np.zeros(N),
        "slot": np.arange(N),
        "state": (),
        "worker_lost": np.zeros(N, bool),
        "episodes": Episodes(np.zeros(0), np.zeros(0), np.zeros(0)),
    }
    return Batch(**{**fields, **changes}).to(torch)
