"""How far apart two policies are, guessed from their weights: for the time between two measurements.

Near a policy its divergence grows with the square of the distance of the weights. The factor depends on the network and
on where it is; it is learnt from measurements. The guess is never used instead of a measurement, only to say when the
next one is worth its time: in asynchronous learning thousands of versions are published between two batches.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from clusterenv.sync.weights import Flat

# Ratios below this are rounding, not drift.
_LEAST_MEASURED = 1e-9
# Measure every so many publishes, whatever the guess: the guess may be wrong, and the stall rule needs fresh numbers.
MEASURE_EVERY = 16
# And every so many when the guess is near the threshold: more often would cost a forward pass with each version for as
# long as the divergence sits just below it. A decision that comes three versions late is well within the error.
MEASURE_EVERY_NEAR = 4


class Distance:
    """Turns a squared distance of weights into a guess of the divergence.

    Args:
        unit: of the divergence. In "nats" it grows with the square of the distance; a "share" of states, or a
            "distance" of actions, grows with the distance itself.
        window: how many measurements the factor is the median of.

    Example:
        >>> distance = Distance()
        >>> distance.predict(4.0) is None
        True
        >>> distance.learn(measured=0.02, distance_squared=2.0)
        >>> distance.predict(4.0)
        0.04
    """

    def __init__(self, unit: str = "nats", window: int = 31) -> None:
        self._power = 1.0 if unit == "nats" else 0.5
        self._factors: deque[float] = deque(maxlen=window)

    def learn(self, measured: float, distance_squared: float) -> None:
        """A divergence was measured at this squared distance. Nothing is learnt from rounding errors."""
        if math.isfinite(measured) and measured > _LEAST_MEASURED and distance_squared > 0.0:
            self._factors.append(measured / distance_squared**self._power)

    def predict(self, distance_squared: float) -> float | None:
        """The divergence to expect at this squared distance, or None before anything was learnt."""
        if not self._factors:
            return None
        return float(median(self._factors) * distance_squared**self._power)


def distance_squared(left: Flat, right: Flat) -> float:
    """The squared distance of two sets of weights. The tail of other dtypes does not count."""
    difference: npt.NDArray[Any] = left.vector - right.vector
    return float(np.dot(difference, difference))


def should_measure(predicted: float | None, threshold: float, publishes_since: int, *, fresh: bool) -> bool:
    """Whether a measurement is worth its time now.

    Yes if data has come in since the last one: one measurement for each batch is cheap beside the batch itself, and in
    lock step that is every publish. Otherwise, with many versions from one batch, only each fourth version when the
    guess is near the threshold or there is no guess, and each sixteenth when it is not.

    Args:
        predicted: the guess of the divergence, if there is one.
        threshold: the divergence above which weights move.
        publishes_since: how many versions were published since the last measurement, this one included.
        fresh: whether data has come in since.

    Example:
        >>> should_measure(0.001, threshold=0.05, publishes_since=5, fresh=False)
        False
        >>> should_measure(0.03, threshold=0.05, publishes_since=5, fresh=False)
        True
    """
    if fresh:
        return True
    near = predicted is None or predicted >= threshold / 2.0
    return publishes_since >= (MEASURE_EVERY_NEAR if near else MEASURE_EVERY)
