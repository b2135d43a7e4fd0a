"""Odd but legal environments for the fault tests. Light imports: workers load it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import locale
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from tests.zoo import CountingEnv, misbehave

if TYPE_CHECKING:
    from collections.abc import Callable


class TextEnv(gymnasium.Env[Any, Any]):
    """Observations and actions are texts, which fit no array.

    Args:
        slot: told in every observation.
        gate: two paths: the first step makes the second and waits for the first.
        fails_on: an action that makes it raise.
    """

    def __init__(self, slot: int, gate: tuple[str, str] | None = None, fails_on: str | None = None) -> None:
        self.gate, self.fails_on = gate, fails_on
        self.observation_space = spaces.Text(100)
        self.action_space = spaces.Text(5)
        self.slot, self.steps, self.said = slot, 0, ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Forget what was said."""
        super().reset(seed=seed)
        self.steps, self.said = 0, ""
        return self._observe(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Remember what is said."""
        if self.gate and self.steps == 0:
            pathlib.Path(self.gate[1]).touch()
            while not os.path.exists(self.gate[0]):
                time.sleep(0.001)
        if action == self.fails_on:
            raise ValueError(f"did not want to hear {action!r}")
        self.steps += 1
        self.said += action
        return self._observe(), 0.0, False, False, {}

    def die(self) -> None:
        """End the process."""
        os._exit(3)

    def _observe(self) -> str:
        return f"slot {self.slot} step {self.steps} {self.said}"


def vectorised(count: int) -> SyncVectorEnv:
    """A block of counting environments as one vectorised environment; rows count from 0 within it."""
    return SyncVectorEnv([functools.partial(CountingEnv, slot) for slot in range(count)])


class _Deadly:
    """An array of one number; whoever looks at it ends, if he can take the note away."""

    def __init__(self, count: int, value: int, note: str) -> None:
        self._array, self._note = np.full(count, value, np.float32), note

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._note)
            os._exit(3)
        return self._array


class TornEnvs(VectorEnv[Any, Any, Any]):
    """Counts its steps twice, and dies between the two parts of an observation once there is a note."""

    def __init__(self, count: int, note: str) -> None:
        self.num_envs, self._note, self._steps = count, note, 0
        number = spaces.Box(0.0, 1e6, (), np.float32)
        self.single_observation_space = spaces.Dict(first=number, second=number)
        self.single_action_space = spaces.Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, count)
        self.action_space = batch_space(self.single_action_space, count)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Start counting anew."""
        self._steps = 0
        return self._observe(), {}

    def step(self, actions: Any) -> Any:
        """Count."""
        self._steps += 1
        no = np.zeros(self.num_envs, np.bool_)
        return self._observe(), np.zeros(self.num_envs), no, no, {}

    def _observe(self) -> dict[str, Any]:
        count, steps = self.num_envs, self._steps
        return {"first": np.full(count, steps, np.float32), "second": _Deadly(count, steps, self._note)}


class LockedInfos(SyncVectorEnv):
    """Infos that cannot be pickled."""

    def step(self, actions: Any) -> Any:
        """A step with a lock in its infos."""
        *result, _ = super().step(actions)
        return (*result, {"lock": [threading.Lock()] * self.num_envs})


def vectorised_with_a_lock(count: int) -> SyncVectorEnv:
    """A vectorised block whose infos do not travel."""
    return LockedInfos([functools.partial(CountingEnv, slot) for slot in range(count)])


class RewardEnv(CountingEnv):
    """Always the same reward."""

    def __init__(self, slot: int, reward: float) -> None:
        super().__init__(slot)
        self.reward = reward

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """A step with that reward."""
        observation, _, terminated, truncated, info = super().step(action)
        return observation, self.reward, terminated, truncated, info


class Mute(Exception):
    """Cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class MuteEnv(CountingEnv):
    """Raises an exception that cannot be printed, in its first step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Raise, or step."""
        if self.life == 0:
            self.life += 1
            raise Mute
        return super().step(action)


class Poison:
    """Can be pickled, but not loaded."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return _refuse, ("poison",)


def _refuse(text: str) -> None:
    raise RuntimeError(f"this {text} cannot be loaded")


class BadInfoEnv(CountingEnv):
    """The first step of its life has an info that does not travel: a lock, or a Poison."""

    def __init__(self, slot: int, key: str, **kwargs: Any) -> None:
        super().__init__(slot, **kwargs)
        self.key = key

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """A step with a bad info."""
        observation, reward, terminated, truncated, info = super().step(action)
        if self.life == 1:
            info = {**info, self.key: threading.Lock() if self.key == "lock" else Poison()}
        return observation, reward, terminated, truncated, info

    def poison(self) -> Any:
        """A result that cannot be loaded."""
        return Poison() if self.slot == 0 else None


class SwitchedEnv(CountingEnv):
    """Misbehaves at "build", "reset" or "step" for as long as a file exists, and makes another just before."""

    def __init__(self, slot: int, how: str, at: str, switch: str, **kwargs: Any) -> None:
        super().__init__(slot, **kwargs)
        self.how, self.at, self.switch = how, at, switch
        self._maybe("build")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Misbehave, or reset."""
        self._maybe("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Misbehave, or step."""
        self._maybe("step")
        return super().step(action)

    def _maybe(self, where: str) -> None:
        if where == self.at and os.path.exists(self.switch):
            pathlib.Path(f"{self.switch}-met").touch()
            misbehave(self.how)


class CallableEnv(CountingEnv):
    """Misbehaves when called to."""

    def misbehave(self, how: str, slot: int) -> int:
        """Do it, if this is the slot."""
        if slot == self.slot:
            misbehave(how)
        return self.slot


class SlowCloseEnv(CountingEnv):
    """Takes a while to close, as a recorder that writes its file does."""

    def __init__(self, slot: int, folder: str, **kwargs: Any) -> None:
        super().__init__(slot, **kwargs)
        self.folder = folder

    def close(self) -> None:
        """Work, then leave a note."""
        time.sleep(0.05)
        pathlib.Path(self.folder, f"closed-{self.slot}").touch()


HABITS = [
    "changes the folder",
    "changes the umask",
    "changes the environment variables",
    "installs signal handlers",
    "starts threads that hold locks",
    "seeds the global generators",
    "prints control characters",
    "prints megabytes",
    "closes the standard streams",
    "changes the locale",
    "leaves children behind",
    "ignores the end of its parent",
    "changes its own priority",
    "disables the garbage collector",
    "sets an alarm",
]


class RudeEnv(CountingEnv):
    """Does something to its process in its first step that it should rather not."""

    def __init__(self, slot: int, habit: str) -> None:
        super().__init__(slot)
        self.habit = habit

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, with the global generators if that is the habit."""
        if seed is not None and self.habit == "seeds the global generators":
            random.seed(seed)
            np.random.seed(seed)
        self.drawn = random.random()
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """A step, with the habit in the first."""
        info: dict[str, Any] = {}
        if self.life == 0 and self.habit in _DEEDS:
            _DEEDS[self.habit]()
        if self.habit == "returns an info with a cycle":
            cycle: list[Any] = []
            cycle.append(cycle)
            info["cycle"] = cycle
        if self.habit == "returns a huge info":
            info["huge"] = bytes(64 * 2**20)
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, info

    def cwd(self) -> str:
        """Where it thinks it is."""
        return os.getcwd()

    def draw(self) -> float:
        """A number drawn from the global generator right after the reset."""
        return self.drawn


def _install_handlers() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


def _start_threads() -> None:
    lock = threading.Lock()
    lock.acquire()
    for _ in range(4):
        threading.Thread(target=lock.acquire, daemon=False).start()


def _print_control_characters() -> None:
    for stream in (sys.stdout, sys.stderr):
        print("\x1b[31m\x1b]0;owned\x07\x00from the environment", file=stream, flush=True)


def _print_megabytes() -> None:
    for _ in range(10):
        print("x" * 2**18, flush=True)  # noqa: T201


def _close_streams() -> None:
    for fd in (0, 1, 2):
        os.close(fd)


def _leave_children() -> None:
    for _ in range(2):
        subprocess.Popen(["sleep", "1000"])


def _ignore_parent() -> None:
    ctypes.CDLL(None).prctl(1, 0)


def _set_alarm() -> None:
    signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)


_DEEDS: dict[str, Callable[[], Any]] = {
    "changes the folder": lambda: os.chdir("/"),
    "changes the umask": lambda: os.umask(0o777),
    "changes the environment variables": lambda: os.environ.clear(),
    "installs signal handlers": _install_handlers,
    "starts threads that hold locks": _start_threads,
    "prints control characters": _print_control_characters,
    "prints megabytes": _print_megabytes,
    "closes the standard streams": _close_streams,
    "changes the locale": lambda: locale.setlocale(locale.LC_ALL, "C"),
    "leaves children behind": _leave_children,
    "ignores the end of its parent": _ignore_parent,
    "changes its own priority": lambda: os.nice(5),
    "disables the garbage collector": gc.disable,
    "sets an alarm": _set_alarm,
}
