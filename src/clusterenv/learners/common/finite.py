"""Rewards that are not finite: refused before anything is learned from them. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from clusterenv.errors import ConfigError

if TYPE_CHECKING:
    from clusterenv.env.batch import Batch


def refuse_bad_rewards(batch: Batch) -> None:
    """Raise if a reward of a batch is not a finite float32.

    Raises:
        ConfigError: it names slot and step.
    """
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(batch.reward.astype(np.float32, copy=False))
    if bad.any():
        t, n = (int(index[0]) for index in bad.nonzero())
        raise ConfigError(
            f"the reward of slot {batch.slot[n]} is {batch.reward[t, n]} at step {t} of its fragment of {batch.T}, "
            "but must be a finite float32: one that is not would spoil the network for good. Look at the "
            "environment, which gave it, and at reward_scale."
        )
