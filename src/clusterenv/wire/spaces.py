"""Gymnasium's spaces as plain data and back. Their random generators stay behind.

Only the spaces that Gymnasium itself has, no subclasses: another host would have to run the subclass's code.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from clusterenv.errors import ProtocolError, ResultError, words_of
from clusterenv.wire.arrays import dtype_from_text, dtype_to_text, shape_from_data, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from gymnasium import Space

_MAX_DEPTH = 30
# Graph and the stacking Sequence make a second, batched copy of what they hold, and a copy of copies doubles each time.
_MAX_COPIES = 3
# A batched MultiBinary takes memory for every switch, for which nothing travels.
_MAX_COPIED_SWITCHES = 4096


def space_to_data(space: Space[Any]) -> list[Any]:
    """The space as [name, ...]: plain data and arrays.

    Raises:
        ResultError: it is not one of Gymnasium's own, or holds one that is not.

    Example:
        >>> space_to_data(spaces.Discrete(3, start=1))
        ['Discrete', 3, 1, '<i8']
    """
    data = _to_data(space)
    try:
        space_from_data(data)
    except ProtocolError as error:
        raise ResultError(f"a space which another host would not take: {error}") from None
    return data


def space_from_data(data: Any) -> Space[Any]:
    """Undo `space_to_data`: an equal space, of the same dtype and with its keys in the same order.

    Raises:
        ProtocolError: the data is no space, or one that would take much more memory than it came in.

    Example:
        >>> space_from_data(["Tuple", [["MultiBinary", 2], ["Discrete", 3, 1, "<i8"]]])
        Tuple(MultiBinary(2), Discrete(3, start=1))
    """
    return _from_data(data, _MAX_DEPTH, 0)


def _to_data(space: Space[Any]) -> list[Any]:
    write = _WRITERS.get(type(space))
    if write is None:
        kind = type(space)
        raise ResultError(f"the space {kind.__module__}.{kind.__qualname__} is not one of Gymnasium's own")
    return [type(space).__name__, *write(space)]


def _box_to_data(box: spaces.Box[Any]) -> list[Any]:
    # Whether whole numbers are bounded is not to be seen from the bounds.
    bounds = (box.low, box.high, box.bounded_below, box.bounded_above)
    return [dtype_to_text(np.dtype(box.dtype)), *(np.array(bound) for bound in bounds)]


_WRITERS: dict[type, Callable[[Any], list[Any]]] = {
    spaces.Box: _box_to_data,
    spaces.Discrete: lambda space: [int(space.n), int(space.start), dtype_to_text(np.dtype(space.dtype))],
    spaces.MultiDiscrete: lambda space: [np.array(space.nvec), np.array(space.start)],
    spaces.MultiBinary: lambda space: [space.n if isinstance(space.n, int) else list(space.n)],
    spaces.Text: lambda space: [space.max_length, space.min_length, "".join(space.character_list)],
    spaces.Tuple: lambda space: [[_to_data(part) for part in space.spaces]],
    spaces.OneOf: lambda space: [[_to_data(part) for part in space.spaces]],
    spaces.Dict: lambda space: [[[key, _to_data(part)] for key, part in space.spaces.items()], bool(space.sort_keys)],
    spaces.Sequence: lambda space: [_to_data(space.feature_space), bool(space.stack)],
    spaces.Graph: lambda space: [
        _to_data(space.node_space),
        None if space.edge_space is None else _to_data(space.edge_space),
    ],
}


def _from_data(data: Any, depth: int, copies: int) -> Space[Any]:
    if type(data) not in (list, tuple) or not data or type(data[0]) is not str or data[0] not in _READERS:
        raise ProtocolError(f"{shown(data)} is no space.")
    if depth == 0 or copies > _MAX_COPIES:
        raise ProtocolError("a space is nested too deep.")
    name, *parts = data
    try:
        return _READERS[name](parts, depth - 1, copies)
    except ProtocolError:
        raise
    except Exception as error:  # Gymnasium's constructors raise many things
        words = f"{type(error).__name__}: {words_of(error)[:200]}"
        raise ProtocolError(f"a {name} space cannot be made of what came: {words}") from None


def _box(parts: Any, depth: int, copies: int) -> Space[Any]:
    text, low, high, below, above = parts
    dtype = dtype_from_text(text)
    for bound, expected in ((low, dtype), (high, dtype), (below, np.dtype(bool)), (above, np.dtype(bool))):
        if not isinstance(bound, np.ndarray) or bound.dtype != expected or bound.shape != low.shape:
            raise ProtocolError("the bounds of a Box space must be arrays of its dtype and of one shape.")
    box = spaces.Box(low, high, dtype=dtype)
    if dtype.kind in "iu":
        box.bounded_below, box.bounded_above = below, above
    return box


def _discrete(parts: Any, depth: int, copies: int) -> Space[Any]:
    n, start, text = parts
    return spaces.Discrete(_whole(n), start=_whole(start), dtype=dtype_from_text(text))


def _multi_discrete(parts: Any, depth: int, copies: int) -> Space[Any]:
    nvec, start = parts
    if not isinstance(nvec, np.ndarray) or not isinstance(start, np.ndarray) or nvec.dtype != start.dtype:
        raise ProtocolError("nvec and start of a MultiDiscrete space must be arrays of one dtype.")
    space: Space[Any] = spaces.MultiDiscrete(nvec, dtype=nvec.dtype, start=start)
    return space


def _multi_binary(parts: Any, depth: int, copies: int) -> Space[Any]:
    (n,) = parts
    shape = shape_from_data([n] if type(n) is int else n)
    if copies and math.prod(shape) > _MAX_COPIED_SWITCHES:
        raise ProtocolError(
            f"a MultiBinary space of {math.prod(shape)} switches inside a Graph or a stacked Sequence is too large; "
            f"at most {_MAX_COPIED_SWITCHES} travel."
        )
    return spaces.MultiBinary(n if type(n) is int else shape)


def _text(parts: Any, depth: int, copies: int) -> Space[Any]:
    longest, shortest, characters = parts
    if type(characters) is not str:
        raise ProtocolError("the characters of a Text space must be text.")
    return spaces.Text(_whole(longest), min_length=_whole(shortest), charset=characters)


def _children(data: Any, depth: int, copies: int) -> list[Space[Any]]:
    if type(data) not in (list, tuple):
        raise ProtocolError(f"{shown(data)} are no spaces.")
    return [_from_data(part, depth, copies) for part in data]


def _tuple(parts: Any, depth: int, copies: int) -> Space[Any]:
    (data,) = parts
    return spaces.Tuple(_children(data, depth, copies))


def _one_of(parts: Any, depth: int, copies: int) -> Space[Any]:
    (data,) = parts
    return spaces.OneOf(_children(data, depth, copies))


def _dict(parts: Any, depth: int, copies: int) -> Space[Any]:
    pairs, sort_keys = parts
    # As pairs, since a dictionary would be sorted.
    found = [(key, _from_data(part, depth, copies)) for key, part in pairs]
    if len(dict(found)) != len(found):
        raise ProtocolError("a Dict space has a key twice.")
    return spaces.Dict(found, sort_keys=_flag(sort_keys))


def _sequence(parts: Any, depth: int, copies: int) -> Space[Any]:
    data, stack = parts
    return spaces.Sequence(_from_data(data, depth, copies + _flag(stack)), stack=stack)


def _graph(parts: Any, depth: int, copies: int) -> Space[Any]:
    nodes, edges = parts
    node_space = _from_data(nodes, depth, copies + 1)
    return spaces.Graph(node_space, None if edges is None else _from_data(edges, depth, copies + 1))


def _whole(number: Any) -> int:
    if type(number) is not int:
        raise ProtocolError(f"{shown(number)} must be a whole number.")
    return number


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ProtocolError(f"{shown(value)} must be true or false.")
    return value


_READERS: dict[str, Callable[[Any, int, int], Space[Any]]] = {
    "Box": _box,
    "Dict": _dict,
    "Discrete": _discrete,
    "Graph": _graph,
    "MultiBinary": _multi_binary,
    "MultiDiscrete": _multi_discrete,
    "OneOf": _one_of,
    "Sequence": _sequence,
    "Text": _text,
    "Tuple": _tuple,
}
