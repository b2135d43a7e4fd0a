"""Which random numbers a run plays with, and which after it was resumed."""

from __future__ import annotations

import numpy as np


def playing_seed(seed: int, epoch: int) -> int:
    """The seed of environments and actions: another one each time that a run is resumed.

    With the same one it would play the episodes that it has learned from already once more.

    Args:
        seed: of the run.
        epoch: how often it was resumed.

    Example:
        >>> playing_seed(7, 0)
        7
        >>> len({playing_seed(7, epoch) for epoch in range(100)})
        100
    """
    return seed if epoch == 0 else int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])
