"""Rewards and observations that are not finite: refused before anything is learned from them. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from clusterenv.errors import ConfigError
from clusterenv.learners.common import trees

if TYPE_CHECKING:
    from clusterenv.env.batch import Batch


def refuse_bad_rewards(batch: Batch) -> None:
    """Raise if a reward of a batch is not a finite float32.

    Raises:
        ConfigError: it names slot and step.
    """
    bad = _not_finite(batch.reward)
    if bad.any():
        t, n = (int(index[0]) for index in bad.nonzero())
        raise ConfigError(
            f"the reward of slot {batch.slot[n]} is {batch.reward[t, n]} at step {t} of its fragment of {batch.T}, "
            "but must be a finite float32: one that is not would spoil the network for good. Look at the "
            "environment, which gave it, and at reward_scale."
        )


def refuse_bad_observations(batch: Batch) -> None:
    """Raise if an observation of a batch is not finite as float32.

    Raises:
        ConfigError: it names slot and step.
    """
    for leaf in cast("list[Any]", trees.leaves(batch.obs)):
        if (bad := _not_finite(leaf)).any():
            t, n = (int(index[0]) for index in bad.nonzero()[:2])
            raise _bad_observation(batch, t, n, leaf[bad][0])
    for leaf in cast("list[Any]", trees.leaves(batch.final_obs)):
        if (bad := _not_finite(leaf)).any():
            t, n = (int(index[bad.nonzero()[0][0]]) for index in batch.final_at)
            raise _bad_observation(batch, t + 1, n, leaf[bad][0])


def _not_finite(array: Any) -> Any:
    """Where it is not; whole numbers always are."""
    if array.dtype.kind != "f":
        return np.zeros((), np.bool_)
    with np.errstate(over="ignore"):
        return ~np.isfinite(array.astype(np.float32, copy=False))


def _bad_observation(batch: Batch, t: int, n: int, value: float) -> ConfigError:
    return ConfigError(
        f"the observation of slot {batch.slot[n]} holds {value} after {t} steps of its fragment of {batch.T}, but must "
        "be finite as float32: one that is not would spoil the network for good. Look at the environment."
    )
