"""Fragments that nobody played, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from clusterenv.policy.distributions import Categorical
from clusterenv.spaces import Leaf
from clusterenv.transport.fragments import Columns

CHOICES = 5


class Leaky:
    """Recurrent: its state is a running sum of what it sees, its logits are linear in that."""

    distribution = Categorical(CHOICES)
    state = (Leaf((2,), np.dtype(np.float32)),)

    def __init__(self, seed: int = 0) -> None:
        self.matrix = np.random.default_rng(seed).normal(0.0, 0.5, (2, CHOICES)).astype(np.float32)

    def weights(self) -> dict[str, Any]:
        """A matrix."""
        return {"matrix": self.matrix}

    def forward(self, weights: Any, obs: Any, state: Any) -> Any:
        """Half of what was, and what is."""
        after = (np.float32(0.5) * state[0] + obs).astype(np.float32)
        return after @ weights["matrix"], None, (after,)


def columns(
    policy: Any,
    steps: int,
    slots: int,
    *,
    seed: int = 0,
    version: int = 0,
    state: bool = False,
    every_state: bool = False,
) -> Columns:
    """What this policy would leave after `steps` steps of random observations; no episode ends."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(0, 1, (steps + 1, slots, 2)).astype(np.float32)
    carried: tuple[Any, ...] = (rng.normal(0, 1, (slots, 2)).astype(np.float32),) if state else ()
    before = [part.copy() for part in carried]
    distribution = policy.distribution
    params = np.zeros((steps, slots, distribution.size), np.float32)
    states = [np.zeros((steps, *part.shape), part.dtype) for part in carried]
    for t in range(steps):
        for kept, part in zip(states, carried, strict=True):
            kept[t] = part
        params[t], _, carried = policy.forward(policy.weights(), obs[t], carried)
    noise = rng.random((steps * slots, 1), dtype=np.float32)
    action = distribution.sample(params.reshape(-1, distribution.size), noise).reshape(steps, slots)
    return Columns(
        obs=[obs],
        state=before,
        final=[np.zeros((steps, slots, 2), np.float32)],
        episode_return=np.zeros((steps, slots)),
        episode_length=np.zeros((steps, slots), np.int64),
        action=action,
        reward=rng.normal(size=(steps, slots)),
        terminated=np.zeros((steps, slots), np.bool_),
        truncated=np.zeros((steps, slots), np.bool_),
        first=np.zeros((steps + 1, slots), np.bool_),
        logp=distribution.log_prob(params, action),
        params=params,
        version=np.full((steps, slots), version),
        value=np.full((steps, slots), 0.5, np.float32),
        states=states if every_state else None,
    )


def beside(*parts: Columns) -> Columns:
    """Fragments of the same length as one with more slots."""

    def join(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        if isinstance(values[0], list):
            return [np.concatenate(leaves, axis=0 if name == "state" else 1) for leaves in zip(*values, strict=True)]
        return None if values[0] is None else np.concatenate(values, axis=1)

    return Columns(**{name: join(name) for name in Columns._fields})


def ends(made: Columns, t: int, n: int, *, length: int, total: float, last: float, truncated: bool = False) -> None:
    """Let an episode end there."""
    (made.truncated if truncated else made.terminated)[t, n] = True
    made.first[t + 1, n] = True
    made.final[0][t, n] = last
    made.episode_length[t, n], made.episode_return[t, n] = length, total
