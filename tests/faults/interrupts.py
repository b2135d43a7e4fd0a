"""Ctrl-C at a chosen moment."""

from __future__ import annotations

import contextlib
import itertools
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

# How long the thread waits before it presses again, if it was too early.
_AGAIN_S = 0.02


# Where an interrupt would come too early: before the body, or while workers are being asked, since a worker that has
# half a message is ended. The tests are about interrupts while somebody waits.
_BEFORE = {"__enter__", "interrupted_when", "post"}


def _too_early(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name not in _BEFORE:
        frame = frame.f_back
    return frame is not None and (frame.f_code.co_name != "__enter__" or "contextlib" in frame.f_code.co_filename)


@contextlib.contextmanager
def interrupted_when(*moments: Callable[[], Any], then: Callable[[], Any] | None = None) -> Iterator[None]:
    """Ctrl-C comes, in the middle of the body, each time that one of `moments` has returned; then `then` is called."""
    taken = threading.Event()
    usual = signal.getsignal(signal.SIGINT)

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        if taken.is_set() or _too_early(frame):
            return
        taken.set()
        raise KeyboardInterrupt

    def interrupt() -> None:
        for moment in moments:
            moment()
            taken.clear()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            while not taken.wait(_AGAIN_S) and threading.main_thread().is_alive():
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        if then is not None:
            then()

    thread = threading.Thread(target=interrupt)
    signal.signal(signal.SIGINT, on_interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the body is the caller's
            thread.start()
            yield
        thread.join()
    finally:
        signal.signal(signal.SIGINT, usual)


@contextlib.contextmanager
def interrupted_at(owner: type, name: str, turn: int) -> Iterator[None]:
    """Ctrl-C comes before a method is called for the `turn`-th time."""
    usual, turns = getattr(owner, name), itertools.count(1)

    def method(*args: Any, **kwargs: Any) -> Any:
        if next(turns) == turn:
            raise KeyboardInterrupt
        return usual(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, method)
        with pytest.raises(KeyboardInterrupt):
            yield


def interrupted_everywhere(
    act: Callable[[], Any], *places: str, every: int = 1, opcodes: bool = False
) -> Iterator[str]:
    """Ctrl-C comes in `act` at every line, and every end of a function, of these places.

    A place is a part of "PATH:FUNCTION": "node/mail.py" for a file, "node/mail.py:post" for a function of it.

    Yields after each, and says where it came. Whoever takes them makes everything ready for the next `act`. Where that
    are too many, `every` leaves out those in between; where lines are too coarse, `opcodes` stops within them, too.
    A real signal comes, so that who holds it back for a moment is interrupted after that.
    """
    for number in itertools.count(1, every):
        where = _interrupted_once(act, places, number, opcodes=opcodes)
        if where is None:
            return
        yield where


def _interrupted_once(
    act: Callable[[], Any], places: tuple[str, ...], number: int, *, opcodes: bool = False
) -> str | None:
    """Act, with Ctrl-C at the moment with this number. Returns where that was, or None if there is none."""
    moments = itertools.count(1)
    where: str | None = None

    def on_call(frame: FrameType, event: str, argument: object) -> Any:
        frame.f_trace_opcodes = opcodes
        here = f"{frame.f_code.co_filename}:{frame.f_code.co_name}"
        return on_line if any(place in here for place in places) else None

    def on_line(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal where
        if event in ("line", "return", "opcode") and next(moments) == number:
            sys.settrace(usual)
            where = f"{event} {frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"
            signal.raise_signal(signal.SIGINT)
        return on_line

    usual = sys.gettrace()
    sys.settrace(on_call)
    try:
        act()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(usual)
    return where
