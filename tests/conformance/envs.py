"""Environments that the nodes of every cluster know by name, wrappers for them, and spaces of every kind.

Nodes import this module because the ids of the suite name it, so it stays light.
"""

from __future__ import annotations

import os
import pathlib
import signal
import threading
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.env.kit import SpaceEnv

ACTIONS = 5

FIXED: dict[str, spaces.Space[Any]] = {
    "box": spaces.Box(-1.0, 1.0, (2, 3), np.float64),
    "picture": spaces.Box(0, 255, (2, 2, 3), np.uint8),
    "one": spaces.Discrete(4, start=-1),
    "many": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "bits": spaces.MultiBinary((2, 2)),
    "deep": spaces.Dict(
        pair=spaces.Tuple((spaces.Discrete(3), spaces.Box(-2.0, 2.0, (), np.float32))), bit=spaces.MultiBinary(1)
    ),
}
FREE: dict[str, spaces.Space[Any]] = {
    "text": spaces.Text(8, charset="aäß€😀"),
    "several": spaces.Sequence(spaces.Box(-1.0, 1.0, (2,), np.float32)),
    "stacked": spaces.Sequence(spaces.Discrete(5), stack=True),
    "graph": spaces.Graph(spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(3)),
    "either": spaces.OneOf((spaces.Discrete(3), spaces.Box(0.0, 1.0, (2,), np.float32))),
    "fixed": spaces.MultiDiscrete([2, 3]),
}
SPACES = {
    **FIXED,
    **FREE,
    "all fixed": spaces.Dict(FIXED),
    "a tuple": spaces.Tuple(tuple(FIXED.values())),
    "all free": spaces.Dict(FREE),
}


class Thing:
    """Something that can be pickled, but is no plain data: it gets from a worker to its node, and no further."""


def _within_itself() -> dict[str, Any]:
    found: dict[str, Any] = {"plain": 1}
    found["again"] = {"inner": found}
    return found


_BAD: dict[str, Any] = {"lock": threading.Lock, "thing": Thing, "itself": _within_itself}


class TrialEnv(gymnasium.Env[Any, Any]):
    """A random walk that tells many kinds of infos, and misbehaves when told to.

    Args:
        slot: told back in every observation.
        length: an episode is truncated after this many steps; before that it ends at random.
        misbehave: what the next step does: "raise", "kill", "lock" or "thing" (an info that cannot travel), "itself"
            (one that contains itself), or "wait PATH": make PATH-inside and wait until PATH is there. It does so once.
        render_mode: as in Gymnasium.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(
        self, slot: int = 0, length: int = 15, misbehave: str | None = None, render_mode: str | None = None
    ) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = spaces.Discrete(ACTIONS)
        self.slot, self.length, self.misbehave, self.render_mode = slot, length, misbehave, render_mode
        self.steps = self.life = 0
        self.dies_in_reset = False
        self.place = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start somewhere, or die."""
        if self.dies_in_reset:
            os.kill(os.getpid(), signal.SIGKILL)
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=2)
        self.steps = 0
        told = {"options": repr(sorted(options))} | options if options else {}
        return self._observe(), {"start": float(self.place[0]), **told}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Go on."""
        info: dict[str, Any] = {}
        if self.misbehave is not None:
            how, self.misbehave = self.misbehave, None
            info = self._misbehave(*how.split())
        self.steps, self.life = self.steps + 1, self.life + 1
        self.place = 0.9 * self.place + (int(action) - 2) / 4 + self.np_random.normal(size=2)
        ended = bool(self.np_random.random() < 0.1)
        return self._observe(), float(self.place.sum()), ended, self.steps >= self.length, info | self._tell(action)

    def _tell(self, action: Any) -> dict[str, Any]:
        """Infos of all kinds: one with every step, the others now and then."""
        drawn = float(self.np_random.random())
        infos: dict[str, Any] = {
            "float": drawn,
            "int": int(action),
            "big": 2**40 + self.steps,
            "flag": drawn < 0.5,
            "text": f"step {self.steps} äß",
            "array": self.place.copy(),
            "row": np.arange(self.steps, self.steps + 2, dtype=np.int16),
            "numpy": np.float32(drawn),
            "none": None,
            "list": [1, (2, "three"), {"four": {5.0}}],
            "deep": {"place": self.place[:1].copy(), "more": {"slot": self.slot}},
        }
        told = {name: value for name, value in infos.items() if self.np_random.random() < 0.4}
        return {**told, "step": self.steps}

    def say(self, words: str) -> None:
        """Write a line to standard output, as environments do that are looked into."""
        print(f"{words} {self.slot}")  # noqa: T201

    def _misbehave(self, how: str, path: str = "") -> dict[str, Any]:
        if how == "raise":
            raise ValueError("planned error")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "wait":
            pathlib.Path(f"{path}-inside").touch()
            while not os.path.exists(path):
                time.sleep(0.001)
        return {how: _BAD[how]()} if how in _BAD else {}

    def render(self) -> Any:
        """A picture that tells the slot."""
        return np.full((2, 2, 3), self.slot, dtype=np.uint8)

    def scaled(self, value: float, *, by: float = 1.0) -> float:
        """For tests of `call`."""
        return value * by + self.slot

    def secret(self, kind: str) -> Any:
        """A result that cannot travel, in slot 1."""
        return {"plain": 1, "key": _BAD[kind]() if self.slot == 1 else None}

    def fail(self) -> None:
        """Raise, in slot 2."""
        if self.slot == 2:
            raise LookupError("nothing in slot 2")

    def _observe(self) -> Any:
        return np.array([self.slot, self.steps, *self.place], dtype=np.float32)


class SampleEnv(SpaceEnv):
    """Observes samples of a space of `SPACES` and tells which action it got, as text."""

    def __init__(self, observes: str, acts: str) -> None:
        super().__init__(SPACES[observes], SPACES[acts], length=4)


class Shifted(gymnasium.RewardWrapper[Any, Any]):
    """Adds to the reward."""

    def __init__(self, env: gymnasium.Env[Any, Any], by: float = 100.0) -> None:
        super().__init__(env)
        self.by = by

    def reward(self, reward: Any) -> Any:
        """More of it."""
        return reward + self.by


def halved(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """A wrapper that is a function."""
    return Shifted(env, by=-0.5)


for _name, _kind in (("Trial", TrialEnv), ("Sample", SampleEnv)):
    gymnasium.register(f"Conformance/{_name}-v0", f"{__name__}:{_kind.__name__}", disable_env_checker=True)
