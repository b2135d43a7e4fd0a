"""Catch: a ball falls, and a paddle below shall be where it lands."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from clusterenv.errors import ConfigError


class Catch(gymnasium.Env[Any, Any]):
    """A board on which a ball falls one row per step.

    Observation: [rows, columns] float32, 1 where the ball is and where the paddle is (in the last row), 0 elsewhere.
    Actions: 0 left, 1 stay, 2 right. Reward: 1 if the paddle is under the ball when it lands, -1 if not; before that 0.
    An episode has rows - 1 steps. On the board of 10 by 5 a random policy gets about -0.6.

    Args:
        rows: of the board, at least 2.
        columns: of the board.

    Example:
        >>> env = Catch()
        >>> obs, _ = env.reset(seed=1)
        >>> obs.shape, obs.sum()
        ((10, 5), np.float32(2.0))
    """

    def __init__(self, rows: int = 10, columns: int = 5) -> None:
        if rows < 2 or columns < 1:
            raise ConfigError(f"rows={rows}, columns={columns}: a board needs at least 2 rows and 1 column.")
        self.rows, self.columns = rows, columns
        self.observation_space = spaces.Box(0.0, 1.0, (rows, columns), np.float32)
        self.action_space = spaces.Discrete(3)
        self._row = self._ball = self._paddle = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The ball at the top, anywhere; the paddle in the middle."""
        super().reset(seed=seed)
        self._row, self._ball, self._paddle = 0, int(self.np_random.integers(self.columns)), self.columns // 2
        return self._board(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The paddle moves, the ball falls."""
        self._paddle = min(max(self._paddle + int(action) - 1, 0), self.columns - 1)
        self._row += 1
        landed = self._row == self.rows - 1
        reward = 0.0 if not landed else 1.0 if self._paddle == self._ball else -1.0
        return self._board(), reward, landed, False, {}

    def _board(self) -> Any:
        board = np.zeros((self.rows, self.columns), np.float32)
        board[self._row, self._ball] = board[-1, self._paddle] = 1.0
        return board
