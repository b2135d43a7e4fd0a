"""Tiny environments that are learned in seconds."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.zoo import wait_until


class Lever(gymnasium.Env[Any, Any]):
    """Two lights, four pulls; a reward of 1 for the lever below the light that is on. Ends by truncation."""

    LENGTH = 4

    def __init__(self, kind: str = "discrete") -> None:
        self.observation_space = spaces.Box(0, 1, (2,), np.float32)
        self.kind = kind
        options: dict[str, Any] = {
            "discrete": spaces.Discrete(2),
            "multi-discrete": spaces.MultiDiscrete([2, 3]),
            "binary": spaces.MultiBinary(2),
            "box": spaces.Box(-1, 1, (1,), np.float32),
            "scalar": spaces.Box(-1, 1, (), np.float32),
        }
        self.action_space = options[kind]
        self.light, self.pulls = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.pulls = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        pulled = {
            "discrete": lambda: int(action),
            "multi-discrete": lambda: int(action[0]),
            "binary": lambda: int(action[0]),
            "box": lambda: int(action[0] > 0),
            "scalar": lambda: int(action > 0),
        }[self.kind]()
        reward = float(pulled == self.light)
        self.pulls += 1
        return self._look(), reward, False, self.pulls == self.LENGTH, {}

    def _look(self) -> Any:
        self.light = int(self.np_random.integers(2))
        return np.eye(2, dtype=np.float32)[self.light]


class Gated(Lever):
    """The one with the seed 3 waits in its third step until there is a file."""

    def __init__(self, gate: str) -> None:
        super().__init__()
        self.gate, self.steps, self.waits = pathlib.Path(gate), 0, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.waits = self.waits if seed is None else seed == 3
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.waits and self.steps == 3:
            wait_until(self.gate.exists, 60)
        return super().step(action)


class Mortal(Lever):
    """Takes its process with it at the second step, and leaves a mark in a file."""

    def __init__(self, marks: str) -> None:
        super().__init__()
        self.marks, self.steps = pathlib.Path(marks), 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == 2:
            with self.marks.open("a") as file:
                file.write("lost\n")
            os._exit(7)
        return super().step(action)


class Screen(gymnasium.Env[Any, Any]):
    """A picture with a bright square that the action moves; episodes of 3 to 9 steps, every second one truncated."""

    def __init__(self, size: int = 24) -> None:
        self.observation_space = spaces.Box(0, 255, (2, size, size), np.uint8)
        self.action_space = spaces.Discrete(3)
        self.size, self.episode = size, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode += 1
        self.left, self.at = int(self.np_random.integers(3, 10)), int(self.np_random.integers(self.size))
        return self._picture(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at = (self.at + int(action) - 1) % self.size
        self.left -= 1
        ends = self.left == 0
        truncates = self.episode % 2 == 0
        return self._picture(), float(self.at), ends and not truncates, ends and truncates, {}

    def _picture(self) -> Any:
        picture = self.np_random.integers(0, 100, (2, self.size, self.size), np.uint8)
        picture[:, self.at :, : self.at + 1] = 255
        return picture


KINDS = ("discrete", "multi-discrete", "binary", "box", "scalar")
for _kind in KINDS:
    if f"test/Lever-{_kind}-v0" not in gymnasium.registry:
        gymnasium.register(f"test/Lever-{_kind}-v0", entry_point="tests.learners.envs:Lever", kwargs={"kind": _kind})
for _name in ("Gated", "Mortal"):
    if f"test/{_name}-v0" not in gymnasium.registry:
        gymnasium.register(f"test/{_name}-v0", entry_point=f"tests.learners.envs:{_name}")
if "test/Screen-v0" not in gymnasium.registry:
    gymnasium.register("test/Screen-v0", entry_point="tests.learners.envs:Screen")
