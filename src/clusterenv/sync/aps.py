"""Adaptive Policy Synchronization: weights move when a worker's policy has drifted, and a few guards.

The guards are not decoration. PPO's clip ties the learner to the policy that collected its data, so a learner whose
workers stand still soon stands still too: the divergence rises to about 0.02 nats and stays there. With a threshold
of 0.05 no worker would ever ask again, and learning would stop for good.
"""

from __future__ import annotations

import math
import numbers
import re
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from clusterenv.config import check_seconds
from clusterenv.errors import ConfigError, ConfigTypeError, unknown
from clusterenv.sync.estimate import DIVERGENCES
from clusterenv.sync.rules import Decider, Reason, check_whole
from clusterenv.sync.triggers import WORTH_A_SYNC, ForBytes, ForESS, Trigger

if TYPE_CHECKING:
    from clusterenv.sync.rules import Situation
    from clusterenv.sync.versions import Version

_DEFAULT_THRESHOLD = 0.05
_FIRST_LOOK = 4
# Half of what a free policy makes of twice as many batches.
_GROWTH = 1.5
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


@dataclass(frozen=True, slots=True)
class APS:
    """Move weights to a node when one of its workers has drifted away from the newest policy.

    Give one of `threshold`, `target_ess` and `bandwidth`; without any, the threshold is 0.05. For small divergences a
    threshold of 0.01, 0.05 or 0.1 nats means an effective sample size of 98 %, 91 % or 83 %.

    Nothing moves while no newer version exists. Then, in this order: not before `min_interval_s`; the drift; the lag;
    the age; the stall rule.

    Attributes:
        threshold: the divergence above which weights move, in the unit of the policy's distribution.
        divergence: "auto" compares the distributions themselves, "logp" only the log-probabilities of the actions.
        max_lag: move weights when a node is this many versions behind; None for no such limit. With `bandwidth` and
            many versions a second, this limit, not the budget, may set the pace.
        max_age_s: move weights when a newer version has existed for this long; None for no such limit.
        min_interval_s: never move them sooner than this after the last time, whatever the other limits say.
        stall_after: move them when the learner is held back: after this many of its batches, and whenever their number
            has doubled again, the divergence must have grown by half at least since half as many; None to wait for lag
            or age. A threshold above a quarter of the level where it stopped is then lowered to that, also if it was
            just reached, and rises again by 2 % with each batch. Batches count, not versions, because one batch may
            give many versions. Less than 0.0001 never counts as a stall: a policy that acts the same holds nobody back.
        target_ess: steer the threshold so that the effective sample size settles at this share, between 0 and 1. Above
            it where a policy takes dozens of batches to drift that far: 0.85 instead of 0.7, 0.95 instead of 0.9. Below
            it where a single batch costs more than that.
        bandwidth: spend this many bytes a second on each node: a number, or a text such as "2MB/s" or "500 KiB/s".
            Age and lag are kept at any price; what they cost is paid back.

    Example:
        >>> APS().threshold
        0.05
        >>> APS(bandwidth="2MB/s").bandwidth
        2000000.0
    """

    threshold: float | None = None
    _: KW_ONLY
    divergence: str = "auto"
    max_lag: int | None = 64
    max_age_s: float | None = 60.0
    min_interval_s: float = 0.0
    stall_after: int | None = 4
    target_ess: float | None = None
    bandwidth: float | str | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("threshold", "target_ess", "bandwidth") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"APS takes one of threshold, target_ess and bandwidth, not {' and '.join(given)}.")
        if not given:
            object.__setattr__(self, "threshold", _DEFAULT_THRESHOLD)
        if self.divergence not in DIVERGENCES:
            raise ConfigError(unknown("divergence", str(self.divergence), DIVERGENCES))
        self._check_aim()
        self._check_guards()
        # Plain floats, whatever kind of number they were.
        for name in ("threshold", "target_ess", "min_interval_s"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, float(getattr(self, name)))

    def start(self, workers: int) -> Decider:
        """The decider for one node with this many workers."""
        return APSDecider(self)

    def _check_aim(self) -> None:
        if self.threshold is not None and _number("threshold", self.threshold) < 0:
            raise ConfigError(f"threshold={self.threshold!r} must not be negative; 0.05 is a good start.")
        if self.target_ess is not None and not 0 < _number("target_ess", self.target_ess) < 1:
            raise ConfigError(f"target_ess={self.target_ess!r} must lie between 0 and 1; 0.98 is a good start.")
        if self.bandwidth is not None:
            object.__setattr__(self, "bandwidth", parse_bandwidth(self.bandwidth))

    def _check_guards(self) -> None:
        if self.max_lag is None and self.max_age_s is None:
            raise ConfigError(
                "max_lag and max_age_s must not both be None. A loss with a trust region, such as PPO's clip, ties the "
                "learner to the policy that collected its data: the divergence can stop growing below any threshold, "
                "and then no worker would ever ask for weights again. Keep one of the two."
            )
        for name in ("max_lag", "stall_after"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_whole(name, getattr(self, name)))
        object.__setattr__(self, "max_age_s", check_seconds("max_age_s", self.max_age_s, none="for no such limit"))
        if _number("min_interval_s", self.min_interval_s) < 0:
            raise ConfigError(f"min_interval_s={self.min_interval_s!r} must not be negative.")
        if self.max_age_s is not None and self.min_interval_s > self.max_age_s:
            raise ConfigError(
                f"min_interval_s={self.min_interval_s!r} is longer than max_age_s={self.max_age_s!r}, so that the age "
                "limit could not be kept. Raise max_age_s."
            )

    def _trigger(self) -> Trigger:
        if self.target_ess is not None:
            return ForESS(self.target_ess)
        if isinstance(self.bandwidth, float):
            return ForBytes(self.bandwidth)
        return Trigger(self.threshold or 0.0)


class HeldBack:
    """Sees that the learner is held back by the policy that its workers hold, counted in batches that it took.

    The policy of a learner that is free walks on with every batch: its divergence from the one that workers hold
    doubles at least when the number of batches since the last sync doubles. So that is when to look: one that has grown
    by less than half of that since the look before is no longer free. Between two looks it is only measured, because a
    single measurement may be off by a quarter.
    """

    def __init__(self, first_look: int) -> None:
        self._first_look = first_look
        self.clear()

    def clear(self) -> None:
        """The divergence starts again from zero."""
        self._began: int | None = None
        self._looked = 0
        self._then: tuple[float, Version] | None = None
        self.peak = 0.0

    def update(self, batches: int, largest: float, newest: Version) -> bool:
        """Whether the peak has hardly grown since the look before although versions were published meanwhile."""
        self.peak = max(self.peak, largest)
        if self._began is None:
            # The first measurement after a sync is the work of one batch.
            self._began = batches - 1
        passed = batches - self._began
        if self._then is None:
            if 2 * passed >= self._first_look:
                self._look(passed, newest)
            return False
        peak_then, newest_then = self._then
        if passed < 2 * self._looked or newest == newest_then:
            return False
        if WORTH_A_SYNC < self.peak < _GROWTH * peak_then:
            return True
        self._look(passed, newest)
        return False

    def _look(self, passed: int, newest: Version) -> None:
        self._looked, self._then = passed, (self.peak, newest)


class APSDecider(Decider):
    """Decides for one node by the divergence of its workers, and by the guards."""

    def __init__(self, rule: APS) -> None:
        super().__init__()
        self._rule = rule
        self._trigger = rule._trigger()
        # A threshold that is steered must not be driven above where the divergence saturates; one that the user gave
        # stays there if the stall rule is off.
        self._lowers_threshold = rule.stall_after is not None or rule.target_ess is not None
        self._held_back = HeldBack(rule.stall_after or _FIRST_LOOK)
        self._newest: Version | None = None
        self._behind_since_s: float | None = None
        self._synced_s = -math.inf

    @property
    def threshold(self) -> float | None:
        """The divergence above which weights move at present."""
        return self._trigger.threshold

    def decide(self, situation: Situation) -> Reason | None:
        """Drift first, then the guards."""
        self._trigger.update(situation)
        self._newest = situation.newest
        if not situation.newer:
            return None
        if self._behind_since_s is None:
            self._behind_since_s = situation.now_s
        drifted = self._trigger.fires(situation)
        stalled = self._held_back.update(situation.batches, situation.largest, situation.newest)
        if stalled and self._lowers_threshold:
            self._trigger.saturated(self._held_back.peak)
        if situation.now_s - self._synced_s < self._rule.min_interval_s:
            return None
        return drifted or self._overdue(situation) or self._stall(stalled)

    def synced(self, version: Version, reason: Reason, *, now_s: float, nbytes: int = 0) -> None:
        """Weights have moved: drift, age and stall begin anew."""
        super().synced(version, reason, now_s=now_s, nbytes=nbytes)
        self._trigger.synced(now_s, nbytes)
        self._synced_s = now_s
        self._behind_since_s = None
        self._held_back.clear()
        if self._newest is not None and self._newest > version:
            # A version came while these weights were under way.
            self._behind_since_s = now_s

    def _overdue(self, situation: Situation) -> Reason | None:
        rule, held = self._rule, situation.held
        if rule.max_lag is not None and held is not None and held.lag(situation.newest) >= rule.max_lag:
            return Reason.LAG
        since = self._behind_since_s
        if rule.max_age_s is not None and since is not None and situation.now_s - since >= rule.max_age_s:
            return Reason.AGE
        return None

    def _stall(self, stalled: bool) -> Reason | None:
        fires = stalled and self._rule.stall_after is not None and self._trigger.may_stall()
        return Reason.STALL if fires else None


def parse_bandwidth(value: float | str) -> float:
    """Bytes per second, from a number or a text.

    Example:
        >>> parse_bandwidth("500 KiB/s")
        512000.0
    """
    rate = value
    if isinstance(value, str):
        found = re.fullmatch(
            r"\s*([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*(|[kMG]|[KMG]i)B/s\s*", value.replace("KB/s", "kB/s")
        )
        if found is None:
            raise ConfigError(
                f"bandwidth={value[:80]!r} must be bytes per second, as in '2MB/s' or '500 KiB/s' (a capital B: bytes)."
            )
        rate = float(found[1]) * _UNITS[found[2]]
    if _number("bandwidth", rate) <= 0:
        raise ConfigError(f"bandwidth={value!r} must be more than 0 bytes per second.")
    return float(rate)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ConfigTypeError(f"{name}={value!r} must be a number.")
    try:
        number = float(value)
    except OverflowError:  # a whole number that is larger than any float
        number = math.inf
    if not math.isfinite(number):
        raise ConfigError(f"{name}={number!r} must be finite.")
    return number
