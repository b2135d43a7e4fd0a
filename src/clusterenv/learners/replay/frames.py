"""Observations that are stacks of frames, the newest last: each frame is kept once, and stacks are built again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from clusterenv.spaces import Leaf

    Array = npt.NDArray[Any]

_IMAGE_AXES = 3  # frames, rows, columns; colours may come after them


def depths(leaves: Sequence[Leaf], stacked: bool) -> list[int]:
    """How many frames each leaf of an observation is a stack of; 1 for what is kept as it is.

    Example:
        >>> from clusterenv.spaces import Leaf
        >>> depths([Leaf((4, 84, 84), np.dtype(np.uint8)), Leaf((), np.dtype(np.float32))], stacked=True)
        [4, 1]
    """
    found = [leaf.shape[0] if stacked and _is_image(leaf) else 1 for leaf in leaves]
    if stacked and max(found) == 1:
        raise ConfigError(
            f"stacked=True, but no part of the observation is a stack of frames, which is uint8 and has {_IMAGE_AXES} "
            f"axes or more: {[(leaf.shape, leaf.dtype.name) for leaf in leaves]}. Use stacked=False."
        )
    return found


def _is_image(leaf: Leaf) -> bool:
    return leaf.dtype == np.uint8 and len(leaf.shape) >= _IMAGE_AXES


def sources(k: Array, begins: Array) -> tuple[Array, Array]:
    """Of which steps the frames of stacks are the newest ones.

    Before the first step of an episode that step's own frame stands for all.

    Args:
        k: [...], the steps whose stacks are wanted.
        begins: [..., S], whether an episode begins with the step k - S + 1, ... k.

    Returns:
        The steps, [..., S], oldest frame first; and how many steps before k its episode begins, [...], S if not among
        these.

    Example:
        >>> steps, since = sources(np.array([7]), np.array([[False, False, True, False]]))
        >>> steps.tolist(), since.tolist()
        ([[6, 6, 6, 7]], [1])
    """
    depth = begins.shape[-1]
    backwards = begins[..., ::-1]
    since = np.where(backwards.any(axis=-1), backwards.argmax(axis=-1), depth)
    age = np.minimum(np.arange(depth)[::-1], since[..., None])
    return k[..., None] - age, since


def is_repeated(stacks: Array) -> Array:
    """Which stacks [B, S, ...] hold the same frame everywhere."""
    same: Array = (stacks[:, :-1] == stacks[:, -1:]).all(axis=tuple(range(1, stacks.ndim)))
    return same


def refuse_jumps(before: Array, after: Array, goes_on: Array) -> None:
    """Raise if a stack does not hold the newer frames of the one before.

    Args:
        before: [T, n, S, ...].
        after: [T, n, S, ...], each one step later.
        goes_on: [T, n], which pairs are of one episode.
    """
    moved = (before[:, :, 1:] == after[:, :, :-1]).all(axis=tuple(range(2, before.ndim)))
    if (goes_on & ~moved).any():
        raise ConfigError(
            "stacked=True, but an observation does not begin with the newer frames of the one before it. Its first "
            "axis must be a stack of frames, the newest last. Use stacked=False to keep observations as they are."
        )
