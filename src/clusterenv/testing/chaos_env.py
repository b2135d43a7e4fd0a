"""An environment that misbehaves on a seeded plan, to see what becomes of a training run when environments do."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import time
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from clusterenv.errors import ConfigError, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# What happens in place of a step or a reset: nothing comes back, or only late.
_DEEDS = ("raise", "sleep", "hang", "leak", "exit", "segfault", "kill")
# What comes back in place of the observation or the reward.
_NONSENSE = ("nan", "shape", "dtype", "reward")
FAULTS = (*_DEEDS, *_NONSENSE)

_MEGABYTE = 2**20
_leaked: list[bytearray] = []  # for the life of the process, as a leak is


class ChaosError(RuntimeError):
    """What a `ChaosEnv` raises when its plan says so."""


@dataclass(frozen=True, kw_only=True)
class Chaos:
    """When an environment misbehaves, and how.

    The faults are "raise", "sleep", "hang", "leak", "exit" (the process ends with code 3), "segfault", "kill",
    and nonsense in place of an answer: "nan", "shape" (one number too many), "dtype" (text) and "reward" (text).

    Attributes:
        chances: the chance of each fault, in every step.
        at: the steps, counted over the life of one environment, at which each fault happens. The replacement of an
            environment begins to count anew.
        reset_chances: the chance of each fault, in every reset.
        seed: of the chances, beside the seed of the last seeded reset. The same seeds, the same faults; an environment
            that takes the place of a lost one is reset with another seed, and so does not meet the same fate.
        sleep_s: how long a "sleep" takes.
        hang_s: how long a "hang" takes. It has an end, so that a test which goes wrong has one too.
        leak_mb: how many megabytes a "leak" takes.
        leak_limit_mb: how many all leaks of a process may take together.

    Example:
        >>> Chaos(chances={"raise": 0.005}, at={"hang": [812]}).at
        {'hang': [812]}
        >>> Chaos(chances={"raise": 2})
        Traceback (most recent call last):
        clusterenv.errors.ConfigError: chances['raise']=2 must be a chance from 0 to 1.
    """

    chances: Mapping[str, float] = field(default_factory=dict)
    at: Mapping[str, Sequence[int]] = field(default_factory=dict)
    reset_chances: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    sleep_s: float = 0.1
    hang_s: float = 3600.0
    leak_mb: float = 5.0
    leak_limit_mb: float = 1024.0

    def __post_init__(self) -> None:
        _check_chances("chances", self.chances)
        _check_chances("reset_chances", self.reset_chances)
        _check_steps(self.at)
        for name in ("sleep_s", "hang_s", "leak_mb", "leak_limit_mb"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise ConfigError(f"{name}={value!r} must be a positive, finite number: every fault has its end.")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ConfigError(f"seed={self.seed!r} must be a whole number of at least 0.")


class ChaosEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Any environment, with faults.

    Workers make it by id: `clusterenv.testing:Chaos-v0` wraps the environment `env_id` with `env_kwargs`, and takes the
    fields of `Chaos` as further arguments. `clusterenv.testing:CrashingCartPole-v0` is a CartPole that raises once in
    200 steps and sleeps once in 2,000, for commands that take nothing but an id.

    Args:
        env: the environment.
        chaos: when it misbehaves, and how.

    Example:
        >>> env = ChaosEnv(gymnasium.make("CartPole-v1"), Chaos(at={"raise": [2]}))
        >>> _ = env.reset(seed=1)
        >>> _ = env.step(0)
        >>> env.step(0)
        Traceback (most recent call last):
        clusterenv.testing.chaos_env.ChaosError: planned, at step 2 of this environment
        >>> import clusterenv
        >>> with clusterenv.make_vec(
        ...     "clusterenv.testing:Chaos-v0", 2, cluster="inproc", env_id="CartPole-v1", at={"raise": [2]}
        ... ) as envs:
        ...     _ = envs.reset(seed=1)
        ...     _ = envs.step([0, 0])
        ...     envs.step([0, 0])[3]
        array([ True,  True])
    """

    def __init__(self, env: gymnasium.Env[Any, Any], chaos: Chaos | None = None) -> None:
        super().__init__(env)
        self.chaos = Chaos() if chaos is None else chaos
        self.life = 0  # steps that were asked of this environment
        self._at = {step: fault for fault, steps in self.chaos.at.items() for step in steps}
        self._dice = np.random.default_rng(self.chaos.seed)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment, or misbehave."""
        if seed is not None:
            self._dice = np.random.default_rng([self.chaos.seed, seed])
        fault = self._thrown(self.chaos.reset_chances)
        if fault in _DEEDS:
            self._do(fault, "in a reset")
        observation, info = self.env.reset(seed=seed, options=options)
        return _spoiled(fault, observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, or misbehave."""
        self.life += 1
        fault = self._at.get(self.life) or self._thrown(self.chaos.chances)
        if fault in _DEEDS:
            self._do(fault, f"at step {self.life} of this environment")
        observation, reward, terminated, truncated, info = self.env.step(action)
        if fault == "reward":
            return observation, "nonsense", terminated, truncated, info
        return _spoiled(fault, observation), reward, terminated, truncated, info

    def _thrown(self, chances: Mapping[str, float]) -> str:
        """The fault that the dice choose, or ""."""
        if not chances:
            return ""
        number = self._dice.random()
        for fault, chance in chances.items():
            number -= chance
            if number < 0:
                return fault
        return ""

    def _do(self, fault: str, when: str) -> None:
        if fault == "raise":
            raise ChaosError(f"planned, {when}")
        if fault == "leak":
            size = int(self.chaos.leak_mb * _MEGABYTE)
            if sum(map(len, _leaked)) + size <= self.chaos.leak_limit_mb * _MEGABYTE:
                _leaked.append(bytearray(b"x") * size)  # written to, or the kernel would not give it
        elif fault in ("sleep", "hang"):
            time.sleep(self.chaos.sleep_s if fault == "sleep" else self.chaos.hang_s)
        else:
            _ENDS[fault]()


_ENDS: dict[str, Callable[[], Any]] = {
    "exit": lambda: os._exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


def _spoiled(fault: str, observation: Any) -> Any:
    """The observation, or nonsense in its place; of nested ones, in every part."""
    if fault not in _NONSENSE or fault == "reward":
        return observation
    if isinstance(observation, dict):
        return {key: _spoiled(fault, part) for key, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(_spoiled(fault, part) for part in observation)
    array = np.asarray(observation)
    if fault == "shape":
        return np.append(array, array.flat[0])
    if fault == "dtype":
        return np.full(array.shape, "nonsense")
    return np.full(array.shape, math.nan, array.dtype if array.dtype.kind == "f" else np.float64)


def _check_chances(name: str, chances: Mapping[str, float]) -> None:
    for fault, chance in chances.items():
        _check_fault(name, fault)
        if isinstance(chance, bool) or not isinstance(chance, (int, float)) or not 0 <= chance <= 1:
            raise ConfigError(f"{name}[{fault!r}]={chance!r} must be a chance from 0 to 1.")
    if sum(chances.values()) > 1:
        raise ConfigError(f"{name}={dict(chances)} add up to more than 1.")


def _check_steps(at: Mapping[str, Sequence[int]]) -> None:
    taken: dict[int, str] = {}
    for fault, steps in at.items():
        _check_fault("at", fault)
        for step in steps:
            if isinstance(step, bool) or not isinstance(step, int) or step < 1:
                raise ConfigError(f"at[{fault!r}] has {step!r}; steps are whole numbers from 1.")
            if step in taken:
                raise ConfigError(f"at has two faults for step {step}: {taken[step]!r} and {fault!r}.")
            taken[step] = fault


def _check_fault(where: str, fault: str) -> None:
    if fault not in FAULTS:
        raise ConfigError(unknown(f"fault in {where}:", str(fault), FAULTS))


def make(env_id: str = "CartPole-v1", env_kwargs: Mapping[str, Any] | None = None, **chaos: Any) -> ChaosEnv:
    """The entry point behind `Chaos-v0`.

    Args:
        env_id: of the environment inside.
        env_kwargs: for it.
        **chaos: the fields of `Chaos`.
    """
    names = [each.name for each in fields(Chaos)]
    for name in chaos:
        if name not in names:
            raise ConfigError(unknown("field of Chaos:", name, names))
    # The checker of Gymnasium would find what was planned.
    inner = gymnasium.make(env_id, disable_env_checker=True, **(env_kwargs or {}))
    return ChaosEnv(inner, Chaos(**chaos))


_ENTRY = f"{__name__}:make"
gymnasium.register("Chaos-v0", _ENTRY, disable_env_checker=True, order_enforce=False)
gymnasium.register(
    "CrashingCartPole-v0",
    _ENTRY,
    disable_env_checker=True,
    order_enforce=False,
    kwargs={"env_id": "CartPole-v1", "chances": {"raise": 1 / 200, "sleep": 1 / 2000}, "sleep_s": 0.05},
)
