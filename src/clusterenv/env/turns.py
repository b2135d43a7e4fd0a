"""Whose turn it is: one thread, one process, one call at a time, in an order that makes sense."""

from __future__ import annotations

import enum
import multiprocessing
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded

from clusterenv.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from clusterenv.env.engine import Engine


class Pending(enum.Enum):
    """The call whose second half is still to come."""

    NOTHING = "default"
    RESET = "reset"
    STEP = "step"
    CALL = "call"
    ROLLOUT = "rollout"
    STREAM = "stream"


class Turns:
    """Guards the batch. Use it as a context manager around everything that touches the engine."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine, self._name = engine, name
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._later: list[Callable[[], None]] = []
        self.closed = False
        self.pending = Pending.NOTHING
        self.abandoned = False  # the second half timed out or was interrupted; the call is still under way

    def __enter__(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(f"Trying to operate on `{self._name}`, after a call to `close()`.")
        if not self.ours:
            raise ConfigError(
                f"this {self._name} belongs to process {self._process} and was used in its child {os.getpid()}. "
                "Make another one in the child."
            )
        if not self._lock.acquire(blocking=False):
            raise ConfigError(
                f"this {self._name} is used by two threads at once. Use one thread, or a lock of your own."
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            while self._later:
                self._later.pop()()
        finally:
            self._lock.release()

    @property
    def ours(self) -> bool:
        """Whether this process made the batch. In a fork of it, the workers are still the parent's."""
        return os.getpid() == self._process

    def when_free(self, act: Callable[[], None]) -> None:
        """Run `act` now or, if a call is under way, at its end: the garbage collector may strike inside any call."""
        self._later.append(act)
        if self._lock.acquire(blocking=False):
            self.__exit__(None, None, None)

    def begin(self, call: Pending, name: str) -> None:
        """A call wants to start: nothing else may be under way."""
        if self.pending is not Pending.NOTHING:
            raise AlreadyPendingCallError(
                f"Calling `{name}` while waiting for a pending call to `{self.pending.value}` to complete."
                f"{self._way_out()}",
                self.pending.value,
            )
        in_flight = self._engine.gather.in_flight
        if in_flight:
            raise AlreadyPendingCallError(
                f"Calling `{name}` while waiting for a pending call to `send` to complete: {in_flight} "
                "slots are in flight. Take them with `recv`, or give them up with `reset`.",
                "send",
            )

    def _way_out(self) -> str:
        if not self.abandoned:
            return " Close the stream first." if self.pending is Pending.STREAM else ""
        whole = self.pending in (Pending.ROLLOUT, Pending.STREAM)
        wait = "" if whole else f"`{self.pending.value}_wait` or "
        return f" It is still under way: call {wait}`reset`."

    def stream_ended(self, *, cut_short: bool = False) -> None:
        """A stream was closed. If that was interrupted, workers may still play, and only a reset waits for them."""
        self.pending, self.abandoned = (Pending.STREAM, True) if cut_short else (Pending.NOTHING, False)

    def end(self, call: Pending) -> None:
        """The second half of a call wants to start: the first must be there."""
        if self.pending is not call:
            raise NoAsyncCallError(
                f"Calling `{call.value}_wait` without any prior call to `{call.value}_async`.", call.value
            )

    def give_up_abandoned(self, options: object) -> None:
        """Before a reset: what timed out, was interrupted, or is in flight is waited for and thrown away.

        Nothing is given up for a reset of some slots: the others would lose it, and nobody would be told.
        """
        mask = options.get("reset_mask") if isinstance(options, dict) else None
        if mask is not None and not np.all(mask):
            return
        sent = self.pending is Pending.NOTHING and self._engine.gather.in_flight > 0
        if self.abandoned or sent:
            self._engine.drain()
            self.pending, self.abandoned = Pending.NOTHING, False

    def need_reset(self) -> None:
        """Steps need a batch that was reset and is whole."""
        if not self._engine.recovery.was_reset:
            raise ResetNeeded("The batch was never reset. Call reset() before the first step.")
        if self._engine.recovery.must_reset:
            raise ResetNeeded("An earlier error has broken the batch. Call reset() before the next step.")

    def start(self, call: Pending, ask: Callable[[], None]) -> None:
        """Run the first half of a call. Interrupted, it counts as under way: some workers may have been asked."""
        self.pending = call
        try:
            ask()
        except KeyboardInterrupt:
            self.abandoned = self._engine.interrupted = True
            raise
        except BaseException:
            self.pending = Pending.NOTHING
            raise

    def whole(self, call: Pending, act: Callable[[], Any]) -> Any:
        """Run a call that has no halves."""

        def run() -> Any:
            self.pending = call
            return act()

        return self.finish(run)

    def finish(self, wait: Callable[[], Any]) -> Any:
        """Run the second half of a call, and remember if it was left half done."""
        try:
            result = wait()
        except (multiprocessing.TimeoutError, KeyboardInterrupt):
            self.abandoned = True
            raise
        except BaseException:
            self.pending, self.abandoned = Pending.NOTHING, False
            raise
        self.pending, self.abandoned = Pending.NOTHING, False
        return result
