"""Random numbers per slot, so that the action of a slot depends on nobody beside it."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import numpy as np

from clusterenv.errors import ConfigError, unknown
from clusterenv.policy.base import whole_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterenv.policy.protocol import Array

NOISES = ("uniform", "normal")


class Streams:
    """One random stream per slot.

    The numbers of a slot follow from the seed and the slot alone: not from which other slots the block has, nor from
    how many steps are drawn at a time.

    Args:
        seed: a whole number of at least 0, or None for numbers that nobody can repeat.
        slots: the slots of the block.

    Example:
        >>> whole = Streams(7, range(4)).draw(3, 1, "uniform")
        >>> part = Streams(7, range(2, 4)).draw(3, 1, "uniform")
        >>> whole.shape, bool((whole[:, 2:] == part).all())
        ((3, 4, 1), True)
    """

    def __init__(self, seed: int | None, slots: range) -> None:
        # Without a seed the slots still need streams that differ: fresh entropy, once for all.
        root = secrets.randbits(128) if seed is None else whole_number("seed", seed, least=0)
        self.slots = slots
        self._generators = [np.random.default_rng(np.random.SeedSequence((root, slot))) for slot in slots]

    def draw(self, steps: int, count: int, noise: str, rows: Sequence[int] | None = None) -> Array:
        """The next numbers of every slot, [steps, slots, count] float32.

        Draw many steps at a time: a draw costs about a microsecond per slot, however short it is.

        Args:
            steps: for how many steps.
            count: how many numbers a step takes (`Distribution.draws`).
            noise: "uniform" (in [0, 1)) or "normal" (`Distribution.noise`).
            rows: only for these of the slots, counted from the first; the others stay where they are.
        """
        if noise not in NOISES:
            raise ConfigError(unknown("noise", str(noise), NOISES))
        # Each slot fills its own part in one go; then the parts are turned so that the rows of a step lie together.
        generators = self._generators if rows is None else [self._generators[row] for row in rows]
        drawn = np.empty((len(generators), steps, count), np.float32)
        for generator, part in zip(generators, drawn, strict=True):
            if noise == "uniform":
                generator.random(dtype=np.float32, out=part)
            else:
                generator.standard_normal(dtype=np.float32, out=part)
        return np.ascontiguousarray(drawn.swapaxes(0, 1))
