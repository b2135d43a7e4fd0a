"""Wrappers that a node could have been told to import."""

from __future__ import annotations

import functools
import os
from typing import Any

import gymnasium
from gymnasium.wrappers import TimeLimit

__all__ = ["TimeLimit", "os"]

NOT_A_WRAPPER = 3


class Scale(gymnasium.RewardWrapper[Any, Any]):
    """Multiplies the reward."""

    class Inner(gymnasium.Wrapper[Any, Any, Any, Any]):
        """A class in a class."""

    def __init__(self, env: Any, factor: float = 2.0) -> None:
        super().__init__(env)
        self.factor = factor

    def reward(self, reward: Any) -> float:
        """The reward, multiplied."""
        return float(reward) * self.factor


def shorten(env: Any, steps: int = 3) -> Any:
    """End episodes early."""
    return TimeLimit(env, steps)


@functools.wraps(shorten)
def _other(env: Any) -> Any:
    return env


renamed = _other


def local() -> Any:
    """A function that is found nowhere by its name."""

    def inner(env: Any) -> Any:
        return env

    return inner


anonymous = lambda env: env  # noqa: E731
