"""The arithmetic of the report: medians, spreads, and ratios within a round."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the lowest and highest value around it."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread | None:
    """Return the spread of `values`, or None when there are none."""
    if not values:
        return None
    return Spread(statistics.median(values), min(values), max(values))


def ratio(above: Mapping[int, float], below: Mapping[int, float]) -> Spread | None:
    """Divide two contenders round by round, over the rounds that both completed.

    The slices of one round lie within a minute, so that both saw about the same machine. A ratio of two
    medians would compare one contender's quiet minute with another one's busy minute.

    Example:
        >>> ratio({0: 30.0, 1: 10.0}, {0: 10.0, 1: 5.0, 2: 7.0})
        Spread(median=2.5, low=2.0, high=3.0)
    """
    return spread([above[i] / below[i] for i in sorted(above.keys() & below.keys())])
