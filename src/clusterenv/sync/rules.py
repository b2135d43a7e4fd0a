"""When do weights move to a node? The rules that look at versions only, and what all rules have in common.

A rule is a frozen value that a user makes. `rule.start(workers)` gives the `Decider` of one node, whose workers share
one copy of the weights. Whoever moves weights asks it with every publish and with every batch, and tells it when they
have moved:

    reason = decider.consider(situation)
    if reason is not None:
        ...                                  # weights move
        decider.synced(version, reason, now_s=now_s, nbytes=nbytes)

While weights are under way, the version under way counts as held, so that nothing is sent twice.
"""

from __future__ import annotations

import abc
import enum
import numbers
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from clusterenv.errors import ConfigError, ConfigTypeError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import numpy.typing as npt

    from clusterenv.sync.versions import Version

    Array = npt.NDArray[Any]


class Reason(enum.Enum):
    """Why weights moved."""

    FIRST = "first"
    DIVERGENCE = "divergence"
    LAG = "lag"
    AGE = "age"
    STALL = "stall"
    INTERVAL = "interval"
    CHANGE = "change"
    ALWAYS = "always"
    BUDGET = "budget"
    RECONNECT = "reconnect"
    FORCED = "forced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is known about a node when its rule is asked.

    Attributes:
        held: the version that the node holds or that is under way to it; None if it holds none.
        newest: the newest published version.
        divergence: [workers] estimates of how far each worker's policy is from the newest; 0 where nothing is known.
        ess: [workers] effective sample size over sample size, NaN where nothing is known; None if not measured.
        now_s: the time, from any clock that never goes back.
        batches: how many batches the learner has taken so far.
        sync_bytes: what moving the weights would cost now, or cost last; 0 if unknown.
        request: whether steps are about to be asked of the node, as opposed to a version just published.
    """

    held: Version | None
    newest: Version
    divergence: Array
    now_s: float
    ess: Array | None = None
    batches: int = 0
    sync_bytes: int = 0
    request: bool = True

    @property
    def newer(self) -> bool:
        """Whether a newer version than the held one exists."""
        return self.held is None or self.newest > self.held

    @property
    def largest(self) -> float:
        """The largest divergence of a worker; what is not a number counts as unknown."""
        return max((value for value in self.divergence.tolist() if value > 0.0), default=0.0)


@runtime_checkable
class Rule(Protocol):
    """When weights move. A frozen value, good for any number of nodes."""

    def start(self, workers: int) -> Decider:
        """The decider for one node with this many workers, none of which holds weights."""


class Decider(abc.ABC):
    """Decides for one node. Subclasses say what happens after the first sync.

    A node that holds nothing gets weights, whatever the rule: first, or again after it came back. So does a node whose
    weights come from an earlier epoch, because nobody here knows that policy any more.
    """

    def __init__(self) -> None:
        self._ever_synced = False
        self._forced = False

    @property
    def threshold(self) -> float | None:
        """The divergence above which weights move, or None if the rule does not look at divergences."""
        return None

    def consider(self, situation: Situation) -> Reason | None:
        """Why weights should move to the node now, or None."""
        held, newest = situation.held, situation.newest
        if held is None:
            return Reason.RECONNECT if self._ever_synced else Reason.FIRST
        if held.epoch < newest.epoch:
            return Reason.RECONNECT
        # A demand for what the node already holds is met.
        self._forced = self._forced and situation.newer
        return Reason.FORCED if self._forced else self.decide(situation)

    @abc.abstractmethod
    def decide(self, situation: Situation) -> Reason | None:
        """What the rule says for a node that holds a version of this epoch."""

    def force(self) -> None:
        """Ask for the newest weights at the next chance, whatever the rule says."""
        self._forced = True

    def synced(self, version: Version, reason: Reason, *, now_s: float, nbytes: int = 0) -> None:
        """Weights have moved to the node: this version, for this reason, at this time, in this many bytes."""
        self._ever_synced = True
        self._forced = False


class _Stateless(Decider):
    """A decider that needs to remember nothing."""

    def __init__(self, decide: Callable[[Situation], Reason | None]) -> None:
        super().__init__()
        self._decide = decide

    def decide(self, situation: Situation) -> Reason | None:
        return self._decide(situation)


@dataclass(frozen=True, slots=True)
class Always:
    """Move weights with every request for steps, changed or not: the naive way, to compare with.

    Example:
        >>> Always().start(workers=4).threshold is None
        True
    """

    def start(self, workers: int) -> Decider:
        """The decider for one node."""
        return _Stateless(lambda situation: Reason.ALWAYS if situation.request else None)


@dataclass(frozen=True, slots=True)
class OnChange:
    """Move weights whenever a newer version exists.

    Example:
        >>> OnChange() == OnChange()
        True
    """

    def start(self, workers: int) -> Decider:
        """The decider for one node."""
        return _Stateless(lambda situation: Reason.CHANGE if situation.newer else None)


@dataclass(frozen=True, slots=True)
class Every:
    """Move weights when a node is `versions` behind.

    Example:
        >>> Every(4).versions
        4
    """

    versions: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "versions", check_whole("versions", self.versions))

    def start(self, workers: int) -> Decider:
        """The decider for one node."""
        return _Stateless(self._decide)

    def _decide(self, situation: Situation) -> Reason | None:
        due = situation.held is not None and situation.held.lag(situation.newest) >= self.versions
        return Reason.INTERVAL if due else None


@dataclass(frozen=True, slots=True)
class Never:
    """Move weights once, at the start, and never again: what standing still looks like, to compare with.

    Example:
        >>> Never() == Never()
        True
    """

    def start(self, workers: int) -> Decider:
        """The decider for one node."""
        return _Stateless(lambda situation: None)


def check_whole(name: str, value: object, *, least: int = 1) -> int:
    """`value` as an int if it is a whole number of at least `least`; ConfigError if not."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ConfigTypeError(f"{name}={value!r} must be a whole number of at least {least}.")
    if value < least:
        raise ConfigError(f"{name}={value!r} must be at least {least}.")
    return int(value)
