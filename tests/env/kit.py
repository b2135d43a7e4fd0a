"""Environments and comparisons for the conformance suite. Workers import this module, so it stays light."""

from __future__ import annotations

import copy
import pathlib
import time
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.spaces import GraphInstance

from tests.zoo import CountingEnv, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gymnasium.vector import VectorEnv

# Nothing in these tests takes longer than this, unless it hangs.
LIMIT_S = 30.0


class GateEnv(CountingEnv):
    """A counting environment that stands still in `step`, `reset` or `nap` until a file appears.

    Args:
        slot: as in CountingEnv.
        gate: the file; while it is missing, the methods in `closed` wait for it. Another, with "-inside" at the end of
            its name, is made when they begin to.
        closed: "step", "reset", "nap".
        reset_s: how long a reset takes in slot 0.
        **kwargs: as in CountingEnv.
    """

    def __init__(self, slot: int, gate: str, closed: str = "step", *, reset_s: float = 0.0, **kwargs: Any) -> None:
        super().__init__(slot, **kwargs)
        self.gate, self.closed, self.reset_s = gate, closed.split(), 0.0 if slot else reset_s

    def step(self, action: Any) -> Any:
        """Wait, then count."""
        self._wait("step")
        return super().step(action)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Wait, then start anew."""
        self._wait("reset")
        time.sleep(self.reset_s)
        return super().reset(seed=seed, options=options)

    def nap(self, value: int) -> int:
        """Wait, then answer."""
        self._wait("nap")
        return value

    @property
    def lazy(self) -> int:
        """Waits when it is set."""
        return self.slot

    @lazy.setter
    def lazy(self, value: int) -> None:
        self._wait("lazy")

    def _wait(self, name: str) -> None:
        if name in self.closed:
            pathlib.Path(f"{self.gate}-inside").touch()
            wait_until(pathlib.Path(self.gate).exists, limit_s=LIMIT_S)


def inside(gate: pathlib.Path) -> None:
    """Wait until somebody stands at the gate."""
    wait_until(gate.with_name(f"{gate.name}-inside").exists, LIMIT_S)


def gated(num_envs: int, gate: pathlib.Path, slots: Sequence[int], closed: str = "step", **kwargs: Any) -> list[Any]:
    """Factories of counting environments; those of `slots` wait for the gate."""
    return [_gated(slot, str(gate), closed if slot in slots else "", kwargs) for slot in range(num_envs)]


def _gated(slot: int, gate: str, closed: str, kwargs: dict[str, Any]) -> Callable[[], GateEnv]:
    return lambda: GateEnv(slot, gate, closed, **kwargs)


class WalkEnv(gymnasium.Env[Any, Any]):
    """A random walk: every observation depends on the seed, the actions and all steps before. Ends at random."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, size: int = 3, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (size,), np.float32)
        self.render_mode = render_mode
        self.size = size

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start somewhere."""
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=self.size)
        return self.place.astype(np.float32), {"start": float(self.place[0])}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Go on."""
        self.place = 0.9 * self.place + action + self.np_random.normal(size=self.size)
        ended, cut = self.np_random.random(2) < (0.1, 0.05)
        info = {"norm": float(np.linalg.norm(self.place))} if self.np_random.random() < 0.5 else {}
        return self.place.astype(np.float32), float(self.place.sum()), bool(ended), bool(cut), info

    def render(self) -> Any:
        """A grey picture."""
        return np.full((16, 16, 3), int(abs(self.place[0] * 40)) % 256, dtype=np.uint8)


class SpaceEnv(gymnasium.Env[Any, Any]):
    """Observes samples of a space and tells which action it got, as text.

    What it does is told by `options["script"][slot]`, a list of (reward, terminated, truncated, info) for the steps
    and an info for the reset at the front, so that one environment serves many examples. Without a script every
    episode has `length` steps.
    """

    def __init__(self, observation_space: Any, action_space: Any | None = None, slot: int = 0, length: int = 3) -> None:
        # Spaces carry their random state: those of two environments must not be one object.
        self.observation_space = copy.deepcopy(observation_space)
        self.action_space = copy.deepcopy(action_space if action_space is not None else spaces.Discrete(5))
        self.slot, self.length = slot, length
        self.script: list[Any] | None = None
        self.reset_info: dict[str, Any] = {}
        self.life = self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; a new script starts the life of the environment anew."""
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        if options and "script" in options:
            self.reset_info, *self.script = options["script"][self.slot]
            self.life = 0
        self.steps = 0
        return self.observation_space.sample(), copy.deepcopy(self.reset_info)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Follow the script."""
        self.steps += 1
        reward, terminated, truncated, info = 0.5, self.steps >= self.length, False, {}
        if self.script:
            reward, terminated, truncated, info = self.script[self.life % len(self.script)]
            self.life += 1
        return (
            self.observation_space.sample(),
            reward,
            terminated,
            truncated,
            {**copy.deepcopy(info), "got": describe(action)},
        )


class ReusingEnv(gymnasium.Env[Any, Any]):
    """Returns the same array, and the same info, every time, as fast environments do. Keeps its actions."""

    def __init__(self, length: int = 2) -> None:
        self.observation_space = spaces.Box(-1e6, 1e6, (2,), np.float64)
        self.action_space = spaces.Box(-1e6, 1e6, (2,), np.float64)
        self.length = length
        self.buffer = np.zeros(2)
        self.info: dict[str, Any] = {"inner": {"step": 0}}
        self.kept: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Zeros."""
        self.buffer[:] = 0
        self.info["inner"]["step"] = 0
        return self.buffer, self.info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Add the action in place."""
        self.kept.append(action)
        self.buffer += action
        self.info["inner"]["step"] += 1
        return self.buffer, 1.0, self.info["inner"]["step"] >= self.length, False, self.info


class BadEnv(CountingEnv):
    """Returns, from the second step on, something that is not what Gymnasium expects."""

    def __init__(self, returns: Any) -> None:
        super().__init__()
        self.returns = returns

    def step(self, action: Any) -> Any:
        """Right once, then wrong."""
        result = super().step(action)
        return result if self.steps < 2 else self.returns


class SleepyEnv(CountingEnv):
    """Steps that take a while."""

    def __init__(self, slot: int, seconds: float, **kwargs: Any) -> None:
        super().__init__(slot, **kwargs)
        self.seconds = seconds

    def step(self, action: Any) -> Any:
        """Sleep, then count."""
        time.sleep(self.seconds)
        return super().step(action)


class TextSpace(spaces.Space[Any]):
    """A space that Gymnasium knows nothing about."""

    def __init__(self) -> None:
        super().__init__()
        self._shape = None

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A word."""
        return "word" * int(self.np_random.integers(1, 4))

    def contains(self, x: Any) -> bool:
        """Any text."""
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace)

    def __hash__(self) -> int:
        return hash(TextSpace)


def describe(value: Any) -> str:
    """The value with the types and dtypes of all its parts, as text: two values with one description are the same."""
    if isinstance(value, np.ndarray):
        return f"array[{value.dtype}{value.shape}]{value.tolist()}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {describe(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}(" + ", ".join(describe(item) for item in value) + ")"
    return f"{type(value).__name__}:{value!r}"


def assert_same(one: Any, other: Any, where: str = "value") -> None:
    """Fail unless both have the same structure, types, dtypes, shapes and values. NaN equals NaN."""
    kinds = (type(one), type(other))
    assert kinds[0] is kinds[1], f"{where}: {kinds[0].__name__} and {kinds[1].__name__}: {one!r} and {other!r}"
    if isinstance(one, dict):
        assert one.keys() == other.keys(), f"{where}: keys {list(one)} and {list(other)}"
        for key in one:
            assert_same(one[key], other[key], f"{where}[{key!r}]")
    elif isinstance(one, (tuple, list, GraphInstance)):
        assert len(one) == len(other), f"{where}: {len(one)} and {len(other)} items"
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_same(left, right, f"{where}[{index}]")
    elif isinstance(one, np.ndarray):
        _assert_same_array(one, other, where)
    else:
        assert one == other or (one != one and other != other), f"{where}: {one!r} and {other!r}"


def _assert_same_array(one: Any, other: Any, where: str) -> None:
    assert one.dtype == other.dtype, f"{where}: dtype {one.dtype} and {other.dtype}"
    assert one.shape == other.shape, f"{where}: shape {one.shape} and {other.shape}"
    if one.dtype == object:
        for index in np.ndindex(one.shape):
            assert_same(one[index], other[index], f"{where}{list(index)}")
    else:
        np.testing.assert_array_equal(one, other, err_msg=where)


def trajectory(envs: VectorEnv[Any, Any, Any], steps: int, seed: int) -> list[Any]:
    """Everything that a batch answers to a seeded reset and seeded actions."""
    envs.action_space.seed(seed)
    answers: list[Any] = [envs.reset(seed=seed)]
    answers += [envs.step(envs.action_space.sample()) for _ in range(steps)]
    return answers
