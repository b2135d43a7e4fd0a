"""Requests that are carried out at most once, however often they or their answers are lost. No I/O, no clock.

The asking side numbers its requests and keeps each until its answer has come. If the connection breaks, or an answer
does not come for a while, it sends what it has kept once more. The answering side carries out every number once, in
order, and keeps its answers until it hears that they have arrived; a request that comes again is answered from there.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

_MOST_PATIENCE = 16.0


@dataclass(slots=True)
class _Asked(Generic[T]):
    request: T
    sent_s: float
    patience: float = 1.0  # grows each time that it goes out again


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
        self._arrived: list[int] = []  # answers of which the other side does not know yet that they are here

    @property
    def settled(self) -> int:
        """Everything up to this number has been answered."""
        return next(iter(self._open)) - 1 if self._open else self._last

    def arrived(self) -> list[int]:
        """The answers that have come since this was last asked: the other side need not keep them any longer."""
        arrived, self._arrived = self._arrived, []
        return arrived

    def next(self) -> int:
        """The number of the next request. It is taken by `note`: one that was never noted leaves no gap behind."""
        return self._last + 1

    def note(self, number: int, request: T, now_s: float) -> None:
        """A request with this number goes out."""
        self._open[number] = _Asked(request, now_s)
        self._last = number

    def answered(self, number: int) -> bool:
        """An answer has come. False if it had come before, or nobody asked."""
        if self._open.pop(number, None) is None:
            return False
        self._arrived.append(number)
        return True

    def everything(self, now_s: float) -> list[T]:
        """All that is not answered, in order; it goes out again, over a new connection."""
        return self.overdue(now_s, -math.inf)  # whenever it is due

    def overdue(self, now_s: float, limit_s: float, seen: int = 0) -> list[T]:
        """The requests that have waited too long, in order; they go out again.

        Args:
            now_s: the time.
            limit_s: how long is too long. It doubles for a request each time that it goes out again.
            seen: the last number that the other side is known to have taken. Behind it everything goes out from the
                first late one on, since the other side takes requests in their order only.
        """
        late = False
        again = []
        for number, asked in self._open.items():
            own = now_s - asked.sent_s >= limit_s * asked.patience
            late = late or (own and number > seen)
            if own or late:
                asked.sent_s = now_s
                asked.patience = min(2 * asked.patience, _MOST_PATIENCE)
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

    def arrived(self, number: int, settled: int, others: Iterable[int] = ()) -> Turn:
        """A request has arrived.

        Args:
            number: its number.
            settled: all answers up to this number have arrived.
            others: answers behind that which have arrived too.
        """
        for old in [kept for kept in self._answers if kept <= settled]:
            del self._answers[old]
        for old in others:
            self._answers.pop(old, None)
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
