"""Whose turn it is: one thread, one process, one call at a time, in an order that makes sense."""

from __future__ import annotations

import enum
import multiprocessing
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded

from clusterenv.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    from clusterenv.env.engine import Engine

# How long a call that another thread is in may take to come to its end when the batch is closed. Waits end at once.
_LAST_CALL_S = 5.0
_LOOK_S = 0.01


class Pending(enum.Enum):
    """The call whose second half is still to come."""

    NOTHING = "default"
    RESET = "reset"
    STEP = "step"
    CALL = "call"
    ROLLOUT = "rollout"
    STREAM = "stream"


class Turns:
    """Guards the batch. Use it as a context manager around everything that touches the engine.

    A call has its turn as long as it runs. The turn ends with `__exit__` or, where Ctrl-C has come just before that,
    when the function that took it is no longer on any stack.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine, self._name = engine, name
        self._turn: dict[str, tuple[FrameType]] = {}  # the call that has it; `setdefault` is one act for all threads
        self._taking_over = threading.Lock()
        self._process = os.getpid()
        self._later: list[Callable[[], None]] = []
        self.closed = False
        self.pending = Pending.NOTHING
        self.abandoned = False  # the second half timed out or was interrupted; the call is still under way

    def end_all(self) -> None:
        """Nobody uses the batch any more, or the interpreter ends: end everything at once."""
        self.take_last()
        self._engine.node.close(0.0)

    def __enter__(self) -> None:
        self.require_open()
        if not self.ours:
            raise ConfigError(
                f"this {self._name} belongs to process {self._process} and was used in its child {os.getpid()}. "
                "Make another one in the child."
            )
        if not self._take(sys._getframe(1)):
            raise ConfigError(
                f"this {self._name} is used by two threads at once. Use one thread, or a lock of your own."
            )
        if self.closed:  # by another thread, before it could see us
            self._turn.clear()
            self.require_open()

    def require_open(self) -> None:
        """Refuse a call after `close`."""
        if self.closed:
            raise ClosedEnvironmentError(f"Trying to operate on `{self._name}`, after a call to `close()`.")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not issubclass(kind, Exception):
            self._interrupted()
        self._catch_up()
        self._turn.clear()
        if self.closed and kind is not None and issubclass(kind, Exception):
            raise ClosedEnvironmentError(f"This `{self._name}` was closed while a call was under way.") from error

    def take_last(self) -> None:
        """The batch is closed from now on. Another thread may be in a call, which ends first."""
        self.closed = True
        end = time.monotonic() + _LAST_CALL_S
        try:
            while self._used_elsewhere() and time.monotonic() < end:
                self._engine.node.ending = True
                time.sleep(_LOOK_S)
        finally:
            self._engine.node.ending = False

    def _used_elsewhere(self) -> bool:
        """Whether another thread is in a call."""
        holder = self._turn.get("of")
        if holder is None:
            return False
        tops = [top for thread, top in sys._current_frames().items() if thread != threading.get_ident()]
        return any(_is_below(top, holder[0]) for top in tops)

    def _take(self, frame: FrameType) -> bool:
        """Take the turn for the function that runs in this frame, if nobody has it."""
        mine = (frame,)
        if self._turn.setdefault("of", mine) is mine:
            return True
        with self._taking_over:
            holder = self._turn.get("of")
            if holder is None or _runs(holder[0]):
                return False
            self._turn["of"] = mine
        # With its frame go the variables of the interrupted function: a stream that it had not handed over is closed.
        del holder
        self._interrupted()
        self._catch_up()
        return True

    def _interrupted(self) -> None:
        """A call was cut short, and what it had begun is still under way. A stream looks after itself."""
        if self.pending not in (Pending.NOTHING, Pending.STREAM):
            self.abandoned = True
        self._engine.count_again(single=self.pending is Pending.NOTHING)

    def _catch_up(self) -> None:
        """Do what had to wait for the end of a call."""
        while self._later:
            self._later[0]()
            del self._later[0]  # only now: what is interrupted is done with the next call

    @property
    def ours(self) -> bool:
        """Whether this process made the batch. In a fork of it, the workers are still the parent's."""
        return os.getpid() == self._process

    def when_free(self, act: Callable[[], None]) -> None:
        """Run `act` now or, if a call is under way, at its end: the garbage collector may strike inside any call."""
        self._later.append(act)
        if self._take(sys._getframe()):
            self.__exit__(None, None, None)

    def require_idle(self, name: str) -> None:
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
            stream = self.pending is Pending.STREAM
            return " Close the stream first." if stream else f" Call `{self.pending.value}_wait` first."
        unsplit = self.pending in (Pending.ROLLOUT, Pending.STREAM)
        wait = "" if unsplit else f"`{self.pending.value}_wait` or "
        return f" It is still under way: call {wait}`reset`."

    def stream_ended(self, *, cut_short: bool = False) -> None:
        """A stream was closed. If that was interrupted, workers may still play, and only a reset waits for them."""
        self.pending, self.abandoned = (Pending.STREAM, True) if cut_short else (Pending.NOTHING, False)

    def require_pending(self, call: Pending) -> None:
        """The second half of a call wants to start: the first must be there."""
        if self.pending is not call:
            raise NoAsyncCallError(
                f"Calling `{call.value}_wait` without any prior call to `{call.value}_async`.", call.value
            )

    def give_up(self) -> None:
        """Before a reset: what timed out, was interrupted, or is in flight is waited for and thrown away."""
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
        self._engine.first_half_done = False
        self.pending = call
        try:
            ask()
        except Exception:
            self.pending = Pending.NOTHING
            raise
        self._engine.first_half_done = True

    def run_unsplit(self, call: Pending, act: Callable[[], Any]) -> Any:
        """Run a call that has no halves."""

        def run() -> Any:
            self.pending = call
            return act()

        return self.finish(run)

    def finish(self, wait: Callable[[], Any]) -> Any:
        """Run the second half of a call, and remember if it was left half done; of interrupts `__exit__` knows."""
        try:
            result = wait()
        except multiprocessing.TimeoutError:
            self.abandoned = True
            raise
        except Exception:
            self.pending, self.abandoned = Pending.NOTHING, False
            raise
        self.pending, self.abandoned = Pending.NOTHING, False
        return result


def _runs(frame: FrameType) -> bool:
    """Whether a function has not ended yet, in whichever thread."""
    # No variable here may hold a frame of the running stack: it would be a ring, which keeps `frame` and all it knows.
    return any(_is_below(top, frame) for top in sys._current_frames().values())


def _is_below(top: FrameType | None, frame: FrameType) -> bool:
    while top is not None and top is not frame:
        top = top.f_back
    return top is not None
