"""Recall: a bit is shown, and asked for later."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from clusterenv.errors import ConfigError


class Recall(gymnasium.Env[Any, Any]):
    """A cue at the first step, some blank steps, then the question: which cue was it?

    Observation: [cue, question] float32. The cue is -1 or 1 in the first observation and 0 afterwards; the question is
    1 in the last one. Actions: 0 for the cue -1, 1 for the cue 1; only the one after the question counts. Reward: 1 if
    it is right, -1 if not, before that 0. Without memory the best mean return is 0.

    Args:
        delay: the number of blank steps. An episode has delay + 2 steps.

    Example:
        >>> env = Recall(delay=1)
        >>> cue = env.reset(seed=1)[0][0]
        >>> [env.step(int(cue > 0))[:3] for _ in range(3)][-1][1:]
        (1.0, True)
    """

    def __init__(self, delay: int = 8) -> None:
        if not isinstance(delay, int) or delay < 0:
            raise ConfigError(f"delay={delay!r} must be a whole number of at least 0.")
        self.delay = delay
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._cue = self._time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Show a new cue."""
        super().reset(seed=seed)
        self._cue, self._time = int(self.np_random.integers(2)), 0
        return np.array([2 * self._cue - 1, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Wait, or answer the question."""
        answered = self._time == self.delay + 1
        self._time += 1
        asked = self._time == self.delay + 1
        reward = 0.0 if not answered else 1.0 if int(action) == self._cue else -1.0
        return np.array([0, asked], np.float32), reward, answered, False, {}
