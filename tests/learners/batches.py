"""A batch that nobody played, to learn from."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from clusterenv.env.batch import Batch, Episodes

T, N = 4, 2
SPACES = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)


def made_up(**changes: Any) -> Batch:
    """T steps of N slots as tensors; two actions, of equal probability to the policy that acted."""
    return made_up_arrays(**changes).to(torch)


def made_up_arrays(**changes: Any) -> Batch:
    """The same as arrays."""
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
    return Batch(**{**fields, **changes})
