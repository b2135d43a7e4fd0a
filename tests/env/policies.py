"""Small NumPy policies for tests, and environments for them. Workers import this module, so it stays light."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from clusterenv.policy.distributions import Categorical, DiagGaussian
from clusterenv.spaces import Leaf
from tests.zoo import CountingEnv

CHOICES = 64


class WideEnv(CountingEnv):
    """A counting environment with many actions; the reward tells which one was taken."""

    def __init__(self, slot: int = 0, length: int = 10, **kwargs: Any) -> None:
        super().__init__(slot, length, **kwargs)
        self.action_space = spaces.Discrete(CHOICES)


def wide(count: int, length: int = 10) -> list[Any]:
    """Factories of WideEnv, one per slot."""
    return [lambda slot=slot: WideEnv(slot, length) for slot in range(count)]


class Echo:
    """Its action is the number in its weights: the version, if the test counts along."""

    distribution = Categorical(CHOICES)

    def __init__(self) -> None:
        self.number = 0

    def weights(self) -> dict[str, Any]:
        """One number."""
        return {"number": np.full(1, self.number, np.float32)}

    def forward(self, weights: Any, obs: Any, state: Any) -> Any:
        """All the probability on that number."""
        params = np.full((len(obs), CHOICES), -1e9, np.float32)
        params[:, int(weights["number"][0]) % CHOICES] = 0.0
        return params, None, state


class Linear:
    """Logits and a value that are linear in the observation."""

    def __init__(self, inputs: int = 2, choices: int = CHOICES, scale: float = 0.3, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.distribution = Categorical(choices)
        self.matrix = rng.normal(0.0, scale, (inputs, choices)).astype(np.float32)
        self.slope = rng.normal(0.0, scale, inputs).astype(np.float32)

    def weights(self) -> dict[str, Any]:
        """A matrix and a vector."""
        return {"matrix": self.matrix, "slope": self.slope}

    def forward(self, weights: Any, obs: Any, state: Any) -> Any:
        """Two products."""
        flat = np.asarray(obs, np.float32)
        return np.tanh(flat) @ weights["matrix"], flat @ weights["slope"], state

    def nudge(self, size: float = 0.05) -> None:
        """Change the weights a little."""
        self.matrix = self.matrix + np.float32(size)  # the same for all logits: the distribution stays
        self.matrix[:, 0] += np.float32(size)


class Memory:
    """Recurrent: its state counts the steps of the episode, its action is that count."""

    distribution = Categorical(CHOICES)
    state = (Leaf((1,), np.dtype(np.float32)),)

    def weights(self) -> dict[str, Any]:
        """Nothing much."""
        return {"one": np.ones(1, np.float32)}

    def forward(self, weights: Any, obs: Any, state: Any) -> Any:
        """Count."""
        count = state[0] + weights["one"]
        params = np.full((len(obs), CHOICES), -1e9, np.float32)
        params[np.arange(len(obs)), count[:, 0].astype(int) % CHOICES] = 0.0
        return params, None, (count,)


class Gaussian:
    """Continuous actions around the mean of the observation."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.distribution = DiagGaussian(int(np.prod(shape)), low=-1.0, high=1.0, shape=shape)
        self.gain = np.float32(0.1)

    def weights(self) -> dict[str, Any]:
        """A gain."""
        return {"gain": np.full(1, self.gain, np.float32)}

    def forward(self, weights: Any, obs: Any, state: Any) -> Any:
        """The same mean for every dimension."""
        mean = np.mean(np.asarray(obs, np.float32).reshape(len(obs), -1), axis=1, keepdims=True) * weights["gain"]
        size = self.distribution.size // 2
        return (
            np.concatenate([np.repeat(mean, size, 1), np.full((len(obs), size), -1.0)], 1).astype(np.float32),
            None,
            state,
        )


class Failing(Linear):
    """Raises on the workers when its weights say so."""

    def forward(self, weights: Any, obs: Any, state: Any) -> Any:
        """Raise, or act."""
        if weights["slope"][0] > 100.0:
            raise ZeroDivisionError("the policy is broken")
        return super().forward(weights, obs, state)
