"""When to try again and when to give up, and which seed a fresh environment gets."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping


class Fault(enum.Enum):
    """What went wrong. Each has a budget of its own, since none says anything about the others."""

    CRASH = "crash"  # a worker or a node died, hung or was cut off
    PREEMPTION = "preemption"  # a node had to give its host back, and said so
    ENVIRONMENT = "environment"  # an environment raised
    MEMORY = "memory"  # a worker has outgrown its memory, and ended by itself


# How many in a row are tolerated. A scheduler may take hosts back all day long; that is no fault of ours. But a node
# that is told to leave as soon as it has come would otherwise be started for ever.
LIMITS: Mapping[Fault, int] = {Fault.CRASH: 3, Fault.PREEMPTION: 30, Fault.ENVIRONMENT: 3, Fault.MEMORY: 3}


class CrashLoops:
    """Tells a fault from a crash loop: something that fails again and again without getting anywhere.

    Progress is counted in steps, not seconds, so a fast environment that fails once in a while may go on for days,
    and a slow one that fails on every reset is stopped after a few.

    Args:
        limit: how many failures in a row are tolerated.
        progress: how many steps between two failures make the second one a new story.

    Example:
        >>> loops = CrashLoops(limit=2, progress=10)
        >>> [loops.tolerates("slot 3", steps) for steps in (0, 1, 2)]
        [True, True, False]
        >>> loops.tolerates("slot 3", 50)
        True
    """

    def __init__(self, limit: int = 3, progress: int = 10) -> None:
        self.limit, self.progress = limit, progress
        self._seen: dict[str, tuple[int, int]] = {}

    def tolerates(self, thing: str, steps: int) -> bool:
        """Record a failure of `thing` after `steps` steps in all; return whether to try again."""
        failures, before = self._seen.get(thing, (0, steps))
        if steps - before >= self.progress:
            failures = 0
        self._seen[thing] = (failures + 1, steps)
        return failures + 1 <= self.limit

    def forgive(self) -> None:
        """Start anew for everything."""
        self._seen.clear()


class Budgets:
    """A budget for each kind of fault: what was spent on one is not missing for another.

    Args:
        limits: how many of each are tolerated in a row.
        progress: how many steps between two faults make the second one a new story.

    Example:
        >>> budgets = Budgets({Fault.CRASH: 1, Fault.PREEMPTION: 2})
        >>> [budgets.tolerates(Fault.PREEMPTION, "worker 0", steps=0) for _ in range(3)]
        [True, True, False]
        >>> budgets.tolerates(Fault.CRASH, "worker 0", steps=0)
        True
    """

    def __init__(self, limits: Mapping[Fault, int] = LIMITS, progress: int = 10) -> None:
        self._loops = {fault: CrashLoops(limit, progress) for fault, limit in limits.items()}

    def tolerates(self, fault: Fault, thing: str, steps: int) -> bool:
        """Record a fault of `thing` after `steps` steps in all; return whether to try again."""
        return self._loops[fault].tolerates(thing, steps)

    def forgive(self) -> None:
        """Start anew for everything."""
        for loops in self._loops.values():
            loops.forgive()


class Tries(NamedTuple):
    """How often something was started that never came to work, by what ended it.

    Example:
        >>> Tries().after(Fault.CRASH).after(Fault.PREEMPTION)
        Tries(crashes=1, preemptions=1)
        >>> Tries(crashes=3).left, Tries(preemptions=3).left
        (False, True)
    """

    crashes: int = 0
    preemptions: int = 0

    def after(self, fault: Fault) -> Tries:
        """One more."""
        if fault is Fault.PREEMPTION:
            return self._replace(preemptions=self.preemptions + 1)
        return self._replace(crashes=self.crashes + 1)

    @property
    def left(self) -> bool:
        """Whether it may be started once more."""
        return self.crashes < LIMITS[Fault.CRASH] and self.preemptions < LIMITS[Fault.PREEMPTION]


def fresh_seed(seed: int | None, slot: int, restarts: int) -> int | None:
    """The seed of the environment that replaces a lost one: new, but the same in every run with the same faults.

    Example:
        >>> fresh_seed(None, 0, 1) is None, fresh_seed(7, 0, 1) == fresh_seed(7, 0, 1) != fresh_seed(7, 0, 2)
        (True, True)
    """
    if seed is None:
        return None
    return int(np.random.SeedSequence([seed, slot, restarts]).generate_state(1)[0])
