"""A block bound to an arena of its own, and environments that do what a test tells them."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from clusterenv.spaces import leaves_of
from clusterenv.transport.arena import Arena, ArenaSpec, Word
from clusterenv.worker.block import EnvBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from clusterenv.worker.report import Report

MODES = list(AutoresetMode)
BOX = spaces.Box(0.0, 100.0, (2,), np.float32)


class ScriptedEnv(gymnasium.Env[Any, Any]):
    """Returns what it is told to. `on_step` and `on_reset` get the environment and may look at its counters."""

    def __init__(
        self,
        on_step: Callable[[ScriptedEnv], Any] | None = None,
        on_reset: Callable[[ScriptedEnv], Any] | None = None,
        on_close: Callable[[ScriptedEnv], Any] | None = None,
        observation_space: spaces.Space[Any] | None = None,
    ) -> None:
        self.observation_space = observation_space or BOX
        self.action_space = spaces.Discrete(3)
        self._on_step, self._on_reset, self._on_close = on_step, on_reset, on_close
        self.steps = self.resets = self.closes = 0
        self.seeds: list[int | None] = []
        self.options: list[dict[str, Any] | None] = []
        self.actions: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Count and do as told."""
        self.resets += 1
        self.steps = 0
        self.seeds.append(seed)
        self.options.append(options)
        return self._on_reset(self) if self._on_reset else (observed(0.0, self.resets), {})

    def step(self, action: Any) -> Any:
        """Count and do as told."""
        self.steps += 1
        self.actions.append(action)
        return self._on_step(self) if self._on_step else (observed(self.steps, self.resets), 1.0, False, False, {})

    def close(self) -> None:
        """Count and do as told."""
        self.closes += 1
        if self._on_close:
            self._on_close(self)


def observed(first: float, second: float) -> Any:
    return np.array([first, second], np.float32)


def ends_after(length: int, info: dict[str, Any] | None = None) -> Callable[[ScriptedEnv], Any]:
    """Episodes of `length` steps, with a reward that counts them."""

    def step(env: ScriptedEnv) -> Any:
        return observed(env.steps, env.resets), float(env.steps), env.steps >= length, False, dict(info or {})

    return step


class Bound:
    """A block with its arena; `made` lists every environment that its factories built, in order."""

    def __init__(self, block: EnvBlock, arena: Arena, made: list[ScriptedEnv]) -> None:
        self.block, self.arena, self.made = block, arena, made

    @property
    def observation(self) -> list[Any]:
        """The rows of the first leaf."""
        rows: list[Any] = self.arena.observation[0].tolist()
        return rows

    @property
    def flags(self) -> list[tuple[bool, bool]]:
        """(terminated, truncated) of each row."""
        return list(zip(self.arena.terminated.tolist(), self.arena.truncated.tolist(), strict=True))

    def step(self, rows: Sequence[int] | None = None) -> Report:
        """Step some rows, or all."""
        chosen = list(range(len(self.block.slots))) if rows is None else list(rows)
        return self.block.step(chosen, self.block.actions(chosen))

    def reset(self, seeds: Sequence[int | None] | None = None, options: dict[str, Any] | None = None) -> Report:
        """Reset all rows."""
        count = len(self.block.slots)
        return self.block.reset(range(count), seeds or [None] * count, options)

    def word(self, word: Word) -> int:
        """A control word of the worker."""
        return self.arena.words[self.arena.word(0, word)]


@contextmanager
def bound(
    make: Callable[[], ScriptedEnv],
    mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    *,
    count: int = 1,
    rebuild: bool = True,
) -> Iterator[Bound]:
    """A block of `count` environments on an arena of as many slots."""
    made: list[ScriptedEnv] = []

    def build() -> ScriptedEnv:
        made.append(make())
        return made[-1]

    block = EnvBlock([build] * count, range(count), mode, rebuild=rebuild)
    description = block.describe()
    observation, action = description.observation_space, description.action_space
    arena = Arena.create(ArenaSpec(count, 1, tuple(leaves_of(observation) or ()), tuple(leaves_of(action) or ())))
    try:
        block.bind(arena, 0, observation, action)
        yield Bound(block, arena, made)
    finally:
        arena.close()


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@contextmanager
def logged(name: str) -> Iterator[list[str]]:
    """What a logger says, as text. pytest's `caplog` keeps the frames of exceptions, and with them the arena."""
    logger, handler = logging.getLogger(name), _Lines()
    logger.addHandler(handler)
    propagate, logger.propagate = logger.propagate, False
    try:
        yield handler.lines
    finally:
        logger.propagate = propagate
        logger.removeHandler(handler)
