"""Requests that are carried out at most once, however often they or their answers are lost. No I/O, no clock.

The asking side numbers its requests and keeps each until its answer has come. If the connection breaks, or an answer
does not come for a while, it sends what it has kept once more. The answering side carries out every number once, in
order, and keeps its answers until it hears that they have arrived (`settled`); a request that comes again is answered
from there.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Asked(Generic[T]):
    request: T
    sent_s: float


class Asking(Generic[T]):
    """The asking side: numbers, and what is not answered yet.

    Example:
        >>> asking = Asking()
        >>> number = asking.next()
        >>> asking.note(number, "step", now_s=0.0)
        >>> asking.overdue(now_s=9.0, limit_s=5.0)
        ['step']
        >>> asking.answered(number), asking.answered(number)
        (True, False)
    """

    def __init__(self) -> None:
        self._last = 0
        self._open: dict[int, _Asked[T]] = {}  # in the order of their numbers

    @property
    def settled(self) -> int:
        """Everything up to this number has been answered."""
        return next(iter(self._open)) - 1 if self._open else self._last

    def next(self) -> int:
        """The number of the next request."""
        self._last += 1
        return self._last

    def note(self, number: int, request: T, now_s: float) -> None:
        """A request with this number goes out."""
        self._open[number] = _Asked(request, now_s)

    def waits_for(self, number: int) -> bool:
        """Whether this request is not answered yet."""
        return number in self._open

    def answered(self, number: int) -> bool:
        """An answer has come. False if it had come before, or nobody asked."""
        return self._open.pop(number, None) is not None

    def everything(self, now_s: float) -> list[T]:
        """All that is not answered, in order; it goes out again, over a new connection."""
        return self.overdue(now_s, -math.inf)  # whenever it is due

    def overdue(self, now_s: float, limit_s: float) -> list[T]:
        """All requests from the first on that has waited this long, in order; they go out again.

        Those behind it too: the other side takes requests in their order only.
        """
        late = False
        again = []
        for asked in self._open.values():
            late = late or now_s - asked.sent_s >= limit_s
            if late:
                asked.sent_s = now_s
                again.append(asked.request)
        return again

    def forget(self) -> None:
        """The other side is gone for good."""
        self._open.clear()


class Turn(enum.Enum):
    """What to do with a request that has arrived."""

    NEW = enum.auto()  # carry it out
    DONE = enum.auto()  # it was carried out before: send the answer again
    BUSY = enum.auto()  # it is being carried out, or one before it is missing: do nothing


@dataclass(slots=True)
class Answering(Generic[T]):
    """The answering side.

    Example:
        >>> answering = Answering()
        >>> answering.arrived(1, settled=0)
        <Turn.NEW: 1>
        >>> answering.arrived(1, settled=0)
        <Turn.BUSY: 3>
        >>> answering.done(1, "answer")
        >>> answering.arrived(1, settled=0), answering.answer(1)
        (<Turn.DONE: 2>, 'answer')
    """

    seen: int = 0  # the last number that was taken
    _answers: dict[int, T] = field(default_factory=dict)

    def arrived(self, number: int, settled: int) -> Turn:
        """A request has arrived."""
        for old in [kept for kept in self._answers if kept <= settled]:
            del self._answers[old]
        if number == self.seen + 1:
            self.seen = number
            return Turn.NEW
        return Turn.DONE if number in self._answers else Turn.BUSY

    def done(self, number: int, answer: T) -> None:
        """A request was carried out; keep the answer until it is settled."""
        self._answers[number] = answer

    def answer(self, number: int) -> T:
        """The answer that is kept for this number."""
        return self._answers[number]

    def kept(self) -> list[T]:
        """All answers of which it is not known whether they have arrived, in the order of their making."""
        return list(self._answers.values())
