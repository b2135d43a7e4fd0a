"""CartPole without velocities: what moves where must be remembered."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

_POSITIONS = [0, 2]  # of the cart, and the angle of the pole


class CartPoleNoVelocity(CartPoleEnv):
    """Gymnasium's CartPole that shows the position of the cart and the angle of the pole, and no velocities.

    Args:
        **kwargs: for Gymnasium's.

    Example:
        >>> CartPoleNoVelocity().reset(seed=1)[0].shape
        (2,)
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        whole: Any = self.observation_space
        self.observation_space = spaces.Box(whole.low[_POSITIONS], whole.high[_POSITIONS], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As Gymnasium's."""
        obs, info = super().reset(seed=seed, options=options)
        return obs[_POSITIONS], info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """As Gymnasium's."""
        obs, reward, terminated, truncated, info = super().step(action)  # type: ignore[no-untyped-call]
        return obs[_POSITIONS], reward, terminated, truncated, info
