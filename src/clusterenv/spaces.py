"""How a Gymnasium space lies in flat arrays, and how values get in and out.

A space made of Box, Discrete, MultiDiscrete and MultiBinary, nested in Dict and Tuple, becomes a list of *leaves*,
each one array with a row per slot. Any other space (Text, Graph, Sequence, OneOf, a custom one) has no fixed size:
`leaves_of` answers None and the caller sends the values themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt
    from gymnasium import Space

    Array = npt.NDArray[Any]

_ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a space: the shape of a row and its dtype."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def leaves_of(space: Space[Any]) -> list[Leaf] | None:
    """The leaves of `space` in a fixed order, or None if it cannot be laid out in arrays.

    Example:
        >>> from gymnasium.spaces import Box, Dict, Discrete
        >>> [leaf.shape for leaf in leaves_of(Dict(a=Discrete(3), b=Box(0, 1, (2, 2))))]
        [(), (2, 2)]
    """
    leaves: list[Leaf] = []
    return leaves if _collect_leaves(space, leaves) else None


def _collect_leaves(space: Space[Any], into: list[Leaf]) -> bool:
    # Exact types, not subclasses: a subclass may mean something that an array of its shape does not hold.
    if type(space) in _ARRAY_SPACES:
        dtype = np.dtype(space.dtype)
        into.append(Leaf(tuple(space.shape or ()), dtype))
        return dtype.kind in "biufc"
    if type(space) is spaces.Tuple:
        return all(_collect_leaves(child, into) for child in space.spaces)
    if type(space) is spaces.Dict:
        return all(_collect_leaves(child, into) for child in space.spaces.values())
    return False


def row_writer(space: Space[Any], arrays: Sequence[Array]) -> Callable[[int, Any], None]:
    """A function `write(row, value)` that stores one value of `space` into the arrays of its leaves, or nothing."""
    if not isinstance(space, (spaces.Tuple, spaces.Dict)):
        return _leaf_writer(arrays[0])
    collect = _collector(space, iter(arrays))
    # Where each leaf of a row goes; views are made once, as in `_leaf_writer`.
    rows = [
        [(array, row) if array.ndim == 1 else (array[row], ...) for array in arrays]
        for row in range(len(arrays[0]) if arrays else 0)
    ]

    def write_nested(row: int, value: Any) -> None:
        # Every leaf is checked before the first is stored: a value that does not fit must leave nothing behind.
        parts: list[Any] = []
        collect(value, parts)
        ready = iter(parts)  # a third of the time that `zip` takes
        for array, at in rows[row]:
            array[at] = next(ready)

    return write_nested


def _collector(space: Space[Any], arrays: Iterator[Array]) -> Callable[[Any, list[Any]], None]:
    """A function `collect(value, into)` that appends the leaf values of `value`, each fit for its array."""
    if isinstance(space, (spaces.Tuple, spaces.Dict)):
        named = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        children = [(key, _collector(child, arrays)) for key, child in named]

        def collect_children(value: Any, into: list[Any]) -> None:
            for key, child in children:
                child(value[key], into)

        return collect_children
    array = next(arrays)
    dtype, shape, ndarray = array.dtype, array.shape[1:], np.ndarray

    def collect_array(value: Any, into: list[Any]) -> None:
        if type(value) is ndarray and value.dtype is dtype and value.shape == shape:
            into.append(value)
        else:
            into.append(fitted(value, shape, dtype))

    def collect_scalar(value: Any, into: list[Any]) -> None:
        into.append(value if type(value) is dtype.type else fitted(value, shape, dtype))

    return collect_array if shape else collect_scalar


def _leaf_writer(array: Array) -> Callable[[int, Any], None]:
    dtype, shape, ndarray = array.dtype, array.shape[1:], np.ndarray
    if shape:
        # Views made once: indexing a row anew would allocate one on every step.
        rows = [array[row] for row in range(len(array))]

        def write_array(row: int, value: Any) -> None:
            if type(value) is ndarray and value.dtype is dtype and value.shape == shape:
                rows[row][...] = value
            else:
                rows[row][...] = fitted(value, shape, dtype)

        return write_array

    def write_scalar(row: int, value: Any) -> None:
        array[row] = value if type(value) is dtype.type else fitted(value, shape, dtype)

    return write_scalar


def fitted(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """`value` as an array of exactly this shape, whose dtype can become `dtype` without changing kind."""
    array = np.asarray(value)
    if array.shape != shape:
        raise ValueError(f"a value has shape {array.shape}, but its space says {shape}")
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise TypeError(f"a value has dtype {array.dtype}, which does not fit the {dtype} of its space")
    return array


def assemble(space: Space[Any], arrays: Sequence[Array]) -> Any:
    """The batch that `SyncVectorEnv` would return, made of these arrays (not copied)."""
    return _assemble(space, iter(arrays))


def _assemble(space: Space[Any], arrays: Iterator[Array]) -> Any:
    if isinstance(space, spaces.Tuple):
        return tuple(_assemble(child, arrays) for child in space.spaces)
    if isinstance(space, spaces.Dict):
        return {key: _assemble(child, arrays) for key, child in space.spaces.items()}
    return next(arrays)


def take_apart(space: Space[Any], batch: Any) -> list[Any]:
    """The leaf values of a batch, in the order of `leaves_of`."""
    parts: list[Any] = []
    _take_apart(space, batch, parts)
    return parts


def _take_apart(space: Space[Any], batch: Any, into: list[Any]) -> None:
    if isinstance(space, spaces.Tuple):
        if len(batch) != len(space.spaces):
            raise ValueError(f"got {len(batch)} parts for a Tuple space of {len(space.spaces)}")
        for child, part in zip(space.spaces, batch, strict=True):
            _take_apart(child, part, into)
    elif isinstance(space, spaces.Dict):
        missing = [key for key in space.spaces if key not in batch]
        if missing:
            raise ValueError(f"the key {missing[0]!r} of the Dict space is missing")
        for key, child in space.spaces.items():
            _take_apart(child, batch[key], into)
    else:
        into.append(batch)


def array_spaces(space: Space[Any]) -> list[Space[Any]]:
    """The spaces of the leaves, in the order of `leaves_of`."""
    if isinstance(space, spaces.Tuple):
        return [leaf for child in space.spaces for leaf in array_spaces(child)]
    if isinstance(space, spaces.Dict):
        return [leaf for child in space.spaces.values() for leaf in array_spaces(child)]
    return [space]
