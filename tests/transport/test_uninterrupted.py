"""Acts of a moment: Ctrl-C comes before them or after them, and is never lost."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from clusterenv.transport.uninterrupted import uninterrupted
from tests.faults.interrupts import interrupted_everywhere

if TYPE_CHECKING:
    from collections.abc import Iterator

PLACES = ("transport/uninterrupted.py", "transport/test_uninterrupted.py")


@contextlib.contextmanager
def handled(handler: Any) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def both(one: list[int], other: list[int]) -> int:
    one.append(1)
    other.append(1)
    return len(one)


def test_what_it_returns_and_what_it_raises() -> None:
    assert uninterrupted(both, [5], []) == 2
    with pytest.raises(ZeroDivisionError):
        uninterrupted(divmod, 1, 0)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("inside", [1, 2, 3], ids=["alone", "one in the other", "three in each other"])
def test_an_interrupt_comes_before_or_after_and_is_never_lost(inside: int) -> None:
    one: list[int] = []
    other: list[int] = []
    heard: list[int] = []

    def act() -> None:
        calls: tuple[Any, ...] = (uninterrupted,) * inside
        try:
            uninterrupted(*calls[1:], both, one, other)
        except KeyboardInterrupt:
            heard.append(1)
            raise

    moments = 0
    for where in interrupted_everywhere(act, *PLACES, opcodes=True):
        moments += 1
        assert len(one) == len(other), where
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, where
    assert len(heard) > 20 * inside, "most came while something was done"
    assert moments >= len(heard)


def test_every_handler_is_asked_once_and_put_back() -> None:
    came: list[int] = []

    def act() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert not came

    def note(number: int, frame: object) -> None:
        came.append(number)

    with handled(note):
        uninterrupted(act)
        assert came == [signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) is note


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_where_nobody_is_interrupted_nothing_is_changed(handler: Any) -> None:
    with handled(handler):
        assert uninterrupted(signal.getsignal, signal.SIGINT) is handler


def test_in_another_thread() -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(uninterrupted(signal.getsignal, signal.SIGINT)))
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]
