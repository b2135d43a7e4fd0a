"""Observations are an array, or a dictionary or tuple of them: the same function for each array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def each(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """The same tree, with `function` applied to every array. A NamedTuple stays one.

    Example:
        >>> each(lambda array: array + 1, {"a": 1, "b": (2, 3)})
        {'a': 2, 'b': (3, 4)}
    """
    if isinstance(tree, dict):
        return {key: each(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple):
        parts = (each(function, value) for value in tree)
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return function(tree)


def pairwise(function: Callable[[Tensor, Tensor], object], tree: Any, other: Any) -> None:
    """Call `function` for every array of a tree, with the array in the same place of another.

    Example:
        >>> pairwise(print, {"a": 1, "b": (2, 3)}, {"a": 4, "b": (5, 6)})
        1 4
        2 5
        3 6
    """
    if isinstance(tree, dict):
        for key, value in tree.items():
            pairwise(function, value, other[key])
    elif isinstance(tree, tuple):
        for value, its in zip(tree, other, strict=True):
            pairwise(function, value, its)
    else:
        function(tree, other)


def leaves(tree: Any) -> list[Tensor]:
    """The arrays of a tree, in its order.

    Example:
        >>> leaves({"a": 1, "b": (2, 3)})
        [1, 2, 3]
    """
    found: list[Tensor] = []
    pairwise(lambda array, _: found.append(array), tree, tree)
    return found


def rows(tree: Any) -> Any:
    """Time and slots in one axis: [T, N, ...] -> [T * N, ...]."""
    return each(lambda array: array.flatten(0, 1), tree)


def length(tree: Any) -> int:
    """How many rows the arrays of a tree have.

    Example:
        >>> length({"a": [1, 2, 3], "b": ([4, 5, 6],)})
        3
    """
    while isinstance(tree, (dict, tuple)):
        tree = next(iter(tree.values() if isinstance(tree, dict) else tree))
    return len(tree)
