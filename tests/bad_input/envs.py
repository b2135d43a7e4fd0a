"""Environments for the bad-input tests. Light imports: workers load it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from gymnasium import Space

from tests.zoo import CountingEnv


class SpacedEnv(CountingEnv):
    """A CountingEnv with spaces of the test's choosing; its observations are samples."""

    def __init__(
        self, observation_space: Space[Any] | None = None, action_space: Space[Any] | None = None, shape: Any = None
    ) -> None:
        super().__init__()
        self._counts = observation_space is None
        if observation_space is not None:
            self.observation_space = observation_space
            observation_space.seed(3)
        if action_space is not None:
            self.action_space = action_space
        if shape is not None:  # a space that claims a shape which nobody could allocate
            self.observation_space._shape = shape

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count, whatever the action is."""
        self.steps += 1
        return self._observe(), 0.0, False, False, {}

    def _observe(self) -> Any:
        return super()._observe() if self._counts else self.observation_space.sample()


class Custom(Space[Any]):
    """A space of somebody's own."""

    def __init__(self) -> None:
        super().__init__(None, None)

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        """One of two words."""
        return "left" if self.np_random.random() < 0.5 else "right"

    def contains(self, x: Any) -> bool:
        """Whether it is one of the two."""
        return x in ("left", "right")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom)

    __hash__ = None  # type: ignore[assignment]


class OddResults(CountingEnv):
    """Methods whose results are hard to send."""

    def lock(self) -> Any:
        """Cannot be pickled."""
        return threading.Lock()

    def huge(self) -> Any:
        """Sixteen megabytes."""
        return np.full(2 * 2**20, self.slot, dtype=np.float64)

    def _private(self) -> str:
        return f"private {self.slot}"
