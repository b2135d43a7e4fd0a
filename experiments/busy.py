"""An environment that shows noise and takes as long as it is told."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Busy(gymnasium.Env[Any, Any]):
    """Keeps a core busy for `step_us` microseconds per step; an episode has 200 steps.

    It counts the processor's time, not the clock's, so it costs the same when others want the core too.

    Args:
        step_us: how long a step takes; what the environment needs for itself included.
        image: whether it shows four frames of 84 x 84, as Atari games do, or four numbers.
    """

    LENGTH = 200

    def __init__(self, step_us: float = 0.0, *, image: bool = False) -> None:
        shape, dtype, high = ((4, 84, 84), np.uint8, 255) if image else ((4,), np.float32, 1)
        self.observation_space = spaces.Box(0, high, shape, dtype)
        self.action_space = spaces.Discrete(6)
        self._shown = (np.random.default_rng(0).random((8, *shape)) * high).astype(dtype)
        self._step_s, self._steps = step_us / 1e6, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The first of eight pictures."""
        super().reset(seed=seed)
        self._steps = 0
        return self._shown[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The next picture, after a while."""
        end = time.thread_time() + self._step_s
        self._steps += 1
        while time.thread_time() < end:
            pass
        return self._shown[self._steps % 8], float(action), False, self._steps >= self.LENGTH, {}


gymnasium.register("Busy-v0", entry_point=f"{__name__}:Busy", disable_env_checker=True, order_enforce=False)
