"""What makes APS fire: a fixed divergence, one that is steered towards an effective sample size, or a byte budget.

Each of the three can be wrong in the same way: a bar that lies above the level where the divergence saturates is never
reached. The guards in `aps` see that, and tell the trigger the level; then the bar comes down below it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from clusterenv.sync.rules import Reason

if TYPE_CHECKING:
    from clusterenv.sync.rules import Situation

# Less than this is worth no sync, and holds no learner back: an effective sample size of 0.9998.
WORTH_A_SYNC = 1e-4

# How fast the threshold follows the effective sample size: 0.02 too low shrinks it by a tenth with each batch.
_ETA = 5.0
_LOWEST_THRESHOLD = 1e-5
_HIGHEST_THRESHOLD = 1.0
# How fast the memory of a saturation level fades, per batch. Without it, an early level (a warm-up with tiny steps)
# would hold the threshold down for ever, because below it no other level is ever seen.
_FADE = 1.02


class Trigger:
    """Fires when the largest divergence of a worker exceeds a threshold.

    The threshold stays below a quarter of the level at which the divergence was last seen to saturate: above it nothing
    would ever fire, and just below it the learner has long been held back when it does. PPO on LunarLander ended at 106
    and 169 with half of it (two seeds, a threshold of 0.05), at 100 and 234 with a quarter.
    """

    def __init__(self, threshold: float) -> None:
        self._wanted = threshold
        self._cap = math.inf
        self._batches: int | None = None

    @property
    def threshold(self) -> float:
        """The divergence above which weights move at present."""
        return min(self._wanted, self._cap)

    def update(self, situation: Situation) -> None:
        """Time has passed, batches may have been taken."""
        if self._batches is not None and situation.batches > self._batches:
            self._batch_taken(situation)
        self._batches = situation.batches

    def fires(self, situation: Situation) -> Reason | None:
        """The reason to move weights now, or None."""
        return Reason.DIVERGENCE if situation.largest > self.threshold else None

    def saturated(self, level: float) -> None:
        """The divergence has stopped growing at this level."""
        self._cap = max(level / 4.0, _LOWEST_THRESHOLD)

    def may_stall(self) -> bool:
        """Whether weights may move because the learner is held back."""
        return True

    def synced(self, now_s: float, nbytes: int) -> None:
        """Weights have moved, for whatever reason."""

    def _batch_taken(self, situation: Situation) -> None:
        self._cap *= _FADE


class ForESS(Trigger):
    """Steers the threshold so that the mean effective sample size settles at a target.

    With each batch, log(threshold) moves by a step in proportion to how far the sample size is from the target; while
    nothing is known, as after a sync until the first measurement, it stays where it is. It starts from where the
    threshold is, not from where it was wanted: a target that is never missed would otherwise drive it up without end.
    """

    def __init__(self, target: float) -> None:
        # For small divergences the importance weights have a variance of about twice the divergence.
        super().__init__((1.0 / target - 1.0) / 2.0)
        self._target = target

    def _batch_taken(self, situation: Situation) -> None:
        """One step of the controller."""
        ess = _mean_ess(situation)
        step = 0.0 if ess is None else _ETA * (ess - self._target)
        self._wanted = max(_LOWEST_THRESHOLD, min(self.threshold * math.exp(step), _HIGHEST_THRESHOLD))
        super()._batch_taken(situation)


class ForBytes(Trigger):
    """A token bucket: bytes come in at a fixed rate, and a sync takes what it costs.

    There is no threshold that could run away. The bucket holds two syncs at most, so that a quiet hour is not followed
    by a flood, and owes one at most, so that a sync that a guard forced is paid back and then forgotten.
    """

    def __init__(self, bytes_per_s: float) -> None:
        super().__init__(WORTH_A_SYNC)
        self._rate = bytes_per_s
        self._tokens = 0.0
        self._cost = 0
        self._at_s: float | None = None

    def update(self, situation: Situation) -> None:
        """Fill the bucket for the time that has passed."""
        self._cost = situation.sync_bytes or self._cost
        self._fill(situation.now_s)

    def fires(self, situation: Situation) -> Reason | None:
        """Spend as soon as a sync can be paid and is worth anything."""
        return Reason.BUDGET if self._tokens >= self._cost and situation.largest > self.threshold else None

    def saturated(self, level: float) -> None:
        """Nothing to lower: here the threshold says what a sync is worth, and time decides the rest."""

    def may_stall(self) -> bool:
        """A stalled learner may borrow one sync ahead, not more: over time the stall rule keeps to the budget too."""
        return self._tokens >= 0.0

    def synced(self, now_s: float, nbytes: int) -> None:
        """Pay, or owe."""
        self._cost = nbytes or self._cost
        self._fill(now_s)
        self._tokens = max(self._tokens - nbytes, -float(self._cost))

    def _fill(self, now_s: float) -> None:
        passed = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        self._at_s = now_s
        self._tokens = max(-float(self._cost), min(self._tokens + self._rate * passed, 2.0 * self._cost))


def _mean_ess(situation: Situation) -> float | None:
    """The mean over workers of what was measured; where nothing was, what the divergences say; None if nothing."""
    measured = [] if situation.ess is None else [value for value in situation.ess.tolist() if not math.isnan(value)]
    values = measured or [1.0 / (1.0 + 2.0 * value) for value in situation.divergence.tolist() if value > 0.0]
    return sum(values) / len(values) if values else None
