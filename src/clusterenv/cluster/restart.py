"""When to try again and when to give up, and which seed a fresh environment gets."""

from __future__ import annotations

import numpy as np


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


def fresh_seed(seed: int | None, slot: int, restarts: int) -> int | None:
    """The seed of the environment that replaces a lost one: new, but the same in every run with the same faults.

    Example:
        >>> fresh_seed(None, 0, 1) is None, fresh_seed(7, 0, 1) == fresh_seed(7, 0, 1) != fresh_seed(7, 0, 2)
        (True, True)
    """
    if seed is None:
        return None
    return int(np.random.SeedSequence([seed, slot, restarts]).generate_state(1)[0])
