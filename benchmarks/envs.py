"""Environments that cost next to nothing, so that what is measured is the way of their observations to the head."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Pixels(gymnasium.Env[Any, Any]):
    """Four stacked frames of 84 x 84, always the same noise, which no compression makes smaller."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (84, 84, 4), np.uint8)
        self.action_space = spaces.Discrete(2)
        self._frame = np.random.default_rng(0).integers(0, 256, (84, 84, 4), dtype=np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The frame."""
        super().reset(seed=seed)
        return self._frame, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The frame again."""
        return self._frame, 0.0, False, False, {}


gymnasium.register("Pixels-v0", entry_point=f"{__name__}:Pixels", disable_env_checker=True, order_enforce=False)
