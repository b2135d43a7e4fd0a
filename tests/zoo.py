"""Environments and helpers that many tests share."""

from __future__ import annotations

import ctypes
import itertools
import os
import pathlib
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_LOOK_S = 0.01


def wait_until(condition: Callable[[], bool], limit_s: float, otherwise: Callable[[], str] | None = None) -> None:
    """Wait until `condition` holds; fail after `limit_s`."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(otherwise() if otherwise else f"not within {limit_s} s")
        time.sleep(_LOOK_S)


def shared_files() -> set[str]:
    """What lies in /dev/shm and may be ours. Other programs put files there whenever they like."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(("clusterenv", "psm_"))}


# Each process of the suite looks in another place first, and never twice in the same.
_PORTS = itertools.count(os.getpid() * 997)


def quiet_port() -> int:
    """A port of loopback that nobody has.

    The system gives it to nobody who asks for any port, nor to a connection: it stays free until it is used by name.
    """
    first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    lowest, highest = (10_000, first) if first > 20_000 else (20_000, 30_000)
    while True:
        port = lowest + next(_PORTS) % (highest - lowest)
        with socket.socket() as taken:
            try:
                taken.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("this has no words")


class Unpicklable:
    """Raises what cannot be printed when it is taken apart."""

    def __reduce__(self) -> str:
        raise Unprintable


class CountingEnv(gymnasium.Env[Any, Any]):
    """Observes (slot, steps since the reset); ends after `length` steps; misbehaves on a plan.

    Args:
        slot: told back in every observation, so that a row in the wrong place is seen.
        length: the episode terminates after this many steps.
        plan: step number -> "raise", "hang", "exit", "segfault" or "kill", counted over the life of the environment.
        infos: whether every step returns an info.
    """

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(
        self,
        slot: int = 0,
        length: int = 10,
        plan: Mapping[int, str] | None = None,
        *,
        infos: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.observation_space = spaces.Box(0.0, 1e6, (2,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.render_mode = render_mode
        self.slot, self.length, self.plan, self.infos = slot, length, dict(plan or {}), infos
        self.steps = 0
        self.life = 0
        self.last_seed: int | None = None
        self.last_options: dict[str, Any] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start counting anew."""
        super().reset(seed=seed)
        if seed is not None:
            self.last_seed = seed
        self.last_options = options
        self.steps = 0
        return self._observe(), {"started": True} if self.infos else {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count, or misbehave."""
        self.life += 1
        if self.life in self.plan:
            misbehave(self.plan[self.life])
        self.steps += 1
        info = {"action": int(action)} if self.infos else {}
        return self._observe(), float(action), self.steps >= self.length, False, info

    def render(self) -> Any:
        """A picture that tells the slot."""
        return np.full((2, 2, 3), self.slot, dtype=np.uint8)

    def double(self, value: float) -> float:
        """For tests of `call`."""
        return 2 * value

    def _observe(self) -> Any:
        return np.array([self.slot, self.steps], dtype=np.float32)


def misbehave(how: str) -> None:
    """Do what the plan says."""
    if how == "raise":
        raise ValueError("planned error")
    if how == "hang":
        while True:
            time.sleep(3600)
    if how == "exit":
        os._exit(3)
    if how == "segfault":
        ctypes.string_at(0)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


def counting(num_envs: int, plans: Mapping[int, Mapping[int, str]] | None = None, **kwargs: Any) -> list[Any]:
    """Factories of `CountingEnv`, one per slot; `plans` by slot. A replacement follows the same plan again."""
    return [_factory(slot, (plans or {}).get(slot), kwargs) for slot in range(num_envs)]


def _factory(slot: int, plan: Mapping[int, str] | None, kwargs: Mapping[str, Any]) -> Callable[[], CountingEnv]:
    return lambda: CountingEnv(slot, plan=plan, **kwargs)
