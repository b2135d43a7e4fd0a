"""What the fault tests share: batches on real processes, and ways to look at them. Light imports: workers load it."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import signal
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from gymnasium.vector import AutoresetMode

from clusterenv import ClusterEnv, Timeouts
from tests.zoo import CountingEnv, misbehave, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MODES = list(AutoresetMode)
LIMIT_S = 30.0
# How long somebody who hangs is waited for.
SHORT_S = 0.5


def patient() -> Timeouts:
    """Limits that nobody meets by chance, on however busy a machine; `hurried` makes them short for a moment."""
    return Timeouts(step_s=LIMIT_S, reset_s=LIMIT_S, call_s=LIMIT_S, start_s=LIMIT_S, close_s=5.0)


@contextlib.contextmanager
def hurried(envs: ClusterEnv, limit: str = "step_s", seconds: float = SHORT_S) -> Iterator[None]:
    """One of the limits is short. Whoever does not hang should have answered before: see `wait_for_answers`."""
    limits = envs._engine._timeouts
    usual = getattr(limits, limit)
    object.__setattr__(limits, limit, seconds)
    try:
        yield
    finally:
        object.__setattr__(limits, limit, usual)


def wait_for_answers(envs: ClusterEnv, *workers: int) -> None:
    """Wait until these workers have answered the step or the call that is under way."""
    assert envs._engine.node.wait(workers, LIMIT_S) == []


@contextlib.contextmanager
def batch(env_fns: Sequence[Callable[[], Any]], **kwargs: Any) -> Iterator[ClusterEnv]:
    """A batch on two workers that is closed afterwards, whatever happened."""
    kwargs.setdefault("cluster", "local:2")
    envs = ClusterEnv(env_fns, **kwargs)
    try:
        yield envs
    finally:
        envs.close()


def each(count: int, kind: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Callable[[], Any]]:
    """Factories of `kind(slot, ...)`, one per slot."""
    return [functools.partial(kind, slot, *args, **kwargs) for slot in range(count)]


def actions(envs: ClusterEnv, value: int = 1) -> Any:
    """The same action for every slot."""
    return np.full(envs.num_envs, value)


def mask(envs: ClusterEnv, *slots: int) -> dict[str, Any]:
    """Options that reset these slots."""
    chosen = np.zeros(envs.num_envs, dtype=np.bool_)
    chosen[list(slots)] = True
    return {"reset_mask": chosen}


def lost(infos: dict[str, Any], count: int) -> list[bool]:
    """Which rows tell that their worker was lost."""
    told: list[bool] = infos["_worker_lost"].tolist() if "_worker_lost" in infos else [False] * count
    return told


def kill(envs: ClusterEnv, worker: int, how: signal.Signals = signal.SIGKILL) -> int:
    """Send a signal to a worker; after a SIGKILL wait until it is gone."""
    pid = envs.worker_pids()[worker]
    assert pid is not None
    process = psutil.Process(pid)
    os.kill(pid, how)
    if how == signal.SIGKILL:
        wait_until(lambda: ended(process), LIMIT_S)
    return pid


def ended(process: psutil.Process) -> bool:
    """Whether a process has ended."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


class OnceEnv(CountingEnv):
    """A CountingEnv that misbehaves once in all its lives: the note that it leaves tells the next one not to.

    Args:
        note: a path; if it exists, nothing happens any more.
        at: "step", "reset" or "build": where.
        life: at which step, counted over the life of the environment.
    """

    def __init__(self, slot: int, how: str, note: str, *, at: str = "step", life: int = 1, **kwargs: Any) -> None:
        super().__init__(slot, **kwargs)
        self.how, self.note, self.at, self.when = how, note, at, life
        self._maybe("build")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Misbehave, or reset."""
        self._maybe("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Misbehave, or step."""
        if self.life + 1 == self.when:
            self._maybe("step")
        return super().step(action)

    def close(self) -> None:
        """Misbehave, or close."""
        self._maybe("close")

    def _maybe(self, where: str) -> None:
        if where == self.at and not os.path.exists(self.note):
            pathlib.Path(self.note).touch()
            misbehave(self.how)


class GatedEnv(CountingEnv):
    """A CountingEnv whose steps wait for a file, for tests that need a slot to be under way.

    Args:
        gate: a step waits until this path exists.
        inside: made when a step begins to wait.
        waits: at which step of its life.
        in_reset: whether resets wait too.
        in_build: a path; if it exists, the constructor waits too.
        patient: whether it waits at all.
    """

    def __init__(
        self,
        slot: int,
        gate: str,
        inside: str,
        *,
        waits: int = 1,
        in_reset: bool = False,
        in_build: str | None = None,
        patient: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(slot, **kwargs)
        self.gate, self.inside, self.waits, self.in_reset = gate, inside, waits, in_reset
        self.patient = patient
        if in_build and os.path.exists(in_build):
            self.wait_at_gate(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Wait at the gate, if told to, then reset."""
        if self.in_reset:
            self.wait_at_gate(0)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Wait at the gate, then step."""
        if self.life + 1 == self.waits:
            self.wait_at_gate(0)
        return super().step(action)

    def wait_at_gate(self, value: int) -> int:
        """Wait, then tell the value back."""
        if self.patient:
            pathlib.Path(self.inside).touch()
            while not os.path.exists(self.gate):
                time.sleep(0.001)
        return value

    @property
    def at_gate(self) -> int:
        """Setting it waits."""
        return 0

    @at_gate.setter
    def at_gate(self, value: int) -> None:
        self.wait_at_gate(value)


class Gate:
    """The paths of a GatedEnv, from the test's side."""

    def __init__(self, folder: pathlib.Path, name: str = "gate") -> None:
        self.gate, self.inside = os.fspath(folder / name), os.fspath(folder / f"{name}-inside")

    def env(self, slot: int, **kwargs: Any) -> Callable[[], GatedEnv]:
        """A factory of the environment that waits here."""
        gate, inside = self.gate, self.inside
        return lambda: GatedEnv(slot, gate, inside, **kwargs)

    def wait(self) -> None:
        """Until the environment is inside its step."""
        wait_until(lambda: os.path.exists(self.inside), LIMIT_S)

    def open(self) -> None:
        """Let it go on."""
        pathlib.Path(self.gate).touch()

    def close(self) -> None:
        """From here on it waits again."""
        for path in (self.gate, self.inside):
            pathlib.Path(path).unlink(missing_ok=True)
