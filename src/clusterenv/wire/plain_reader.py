"""From what MessagePack has back to plain values; see `wire/plain.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.errors import ProtocolError, words_of
from clusterenv.wire import plain_tags as tags
from clusterenv.wire.arrays import array_from_data, dtype_from_text, object_array_from_data, parts_of, scalar_from_data
from clusterenv.wire.failures import error_from_data
from clusterenv.wire.plain_tags import ATOMS, MAX_DEPTH, MAX_INT_BITS, TEXT_ONLY
from clusterenv.wire.spaces import space_from_data

if TYPE_CHECKING:
    import enum
    from collections.abc import Callable

# How much of somebody else's message is quoted.
_MAX_WORDS = 200


class Reader:
    """Turns what MessagePack has back into values. Everything is checked: it may come from anybody."""

    def __init__(self, fields: dict[type, tuple[str, ...]], enums: list[type[enum.Enum]]) -> None:
        self._records: dict[str, tuple[Any, tuple[str, ...]]] = {
            kind.__name__: (kind, names) for kind, names in fields.items()
        }
        self._enums = {kind.__name__: kind for kind in enums}
        # These take their content as MessagePack gives it.
        self._simple: dict[int, Callable[[Any], Any]] = {
            tags.INT: _int_from,
            tags.COMPLEX: lambda parts: complex(*(_exactly(float, part) for part in parts_of(parts, 2, "complex"))),
            tags.TEXT: lambda data: _exactly(bytes, data).decode("utf-8", "surrogatepass"),
            tags.ARRAY: array_from_data,
            tags.SCALAR: scalar_from_data,
            tags.NUMPY_BYTES: lambda data: np.bytes_(_exactly(bytes, data)),
            tags.DTYPE: dtype_from_text,
            tags.GENERATOR: _generator_from,
            tags.ENUM: self._member,
        }
        # These take values: their content is read first.
        self._composed: dict[int, Callable[[Any], Any]] = {
            tags.TUPLE: lambda items: tuple(_exactly(list, items)),
            tags.DICT: _dict_from,
            tags.SET: _set_from,
            tags.FROZENSET: lambda items: frozenset(_set_from(items)),
            tags.RANGE: lambda parts: range(*(_exactly(int, part) for part in parts_of(parts, 3, "a range"))),
            tags.SLICE: lambda parts: slice(*parts_of(parts, 3, "a slice")),
            tags.OBJECTS: _objects_from,
            tags.NUMPY_TEXT: lambda text: np.str_(_exactly(str, text)),
            tags.RECORD: self._record,
            tags.SPACE: space_from_data,
            tags.ERROR: error_from_data,
        }

    def read(self, data: Any, depth: int) -> Any:
        """The value that was written, nested at most `depth` deep."""
        kind = type(data)
        if kind in ATOMS:
            return data
        if depth <= 0:
            raise ProtocolError(f"a message is nested more than {MAX_DEPTH} deep.")
        if kind is list:
            return self._list(data, depth - 1)
        if kind is not dict:
            raise ProtocolError(f"a message holds a MessagePack {kind.__name__}, which the protocol does not have.")
        if not TEXT_ONLY.issuperset(map(type, data)):
            return self._tagged(data, depth)
        read = self.read
        return {key: item if type(item) in ATOMS else read(item, depth - 1) for key, item in data.items()}

    def _list(self, data: list[Any], depth: int) -> list[Any]:
        read = self.read
        return [item if type(item) in ATOMS else read(item, depth) for item in data]

    def _tagged(self, data: dict[Any, Any], depth: int) -> Any:
        if len(data) != 1:
            raise ProtocolError("a message holds a dictionary with keys that are no text.")
        ((tag, content),) = data.items()
        tag = tag if type(tag) is int else None
        if tag in self._simple:
            read = self._simple[tag]
        elif tag in self._composed:
            read = self._composed[tag]
            # The list right below a tag is part of it: it takes no depth of its own.
            content = self._list(content, depth - 1) if type(content) is list else self.read(content, depth - 1)
        else:
            raise ProtocolError("a message holds a value of an unknown kind.")
        try:
            return read(content)
        except (TypeError, ValueError, OverflowError) as error:
            raise ProtocolError(f"a message holds a value that cannot be made: {str(error)[:_MAX_WORDS]}") from None

    def _record(self, parts: Any) -> Any:
        name, *rest = _exactly(list, parts) or [None]
        kind, names = self._records.get(_exactly(str, name), (None, ()))
        count = len(names)
        if kind is None or len(rest) != 2 * count or tuple(rest[:count]) != names:
            raise ProtocolError(f"a message holds an unknown record {name[:80]!r}, or one with other fields.")
        try:
            return kind(**dict(zip(names, rest[count:], strict=True)))
        except Exception as error:  # a record may check its fields when it is made
            words = f"{type(error).__name__}: {words_of(error)[:_MAX_WORDS]}"
            raise ProtocolError(f"a record {name!r} cannot be made: {words}") from None

    def _member(self, parts: Any) -> Any:
        name, member = (_exactly(str, part) for part in parts_of(parts, 2, "an enum"))
        members = self._enums[name].__members__ if name in self._enums else {}
        if member not in members:
            raise ProtocolError(f"a message holds {member[:80]!r} of {name[:80]!r}, which is not known here.")
        return members[member]


def _exactly(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ProtocolError(f"a message holds a {type(value).__name__} where a {kind.__name__} must be.")
    return value


def _dict_from(items: Any) -> dict[Any, Any]:
    count, odd = divmod(len(_exactly(list, items)), 2)
    found = dict(zip(items[:count], items[count:], strict=False))
    if odd or len(found) != count:
        raise ProtocolError("a dictionary has a key twice, or one without a value.")
    return found


def _set_from(items: Any) -> set[Any]:
    found = set(_exactly(list, items))
    if len(found) != len(items):
        raise ProtocolError("a set has a value twice.")
    return found


def _objects_from(parts: Any) -> Any:
    dims = _exactly(int, (_exactly(list, parts) or [None])[0])
    if not 0 <= dims < len(parts):
        raise ProtocolError(f"an array of objects must come with {dims} sizes.")
    return object_array_from_data(parts[1 : dims + 1], parts[dims + 1 :])


def _int_from(data: Any) -> int:
    if len(_exactly(bytes, data)) > MAX_INT_BITS // 8 + 1:
        raise ProtocolError(f"a whole number came in {len(data)} bytes.")
    return int.from_bytes(data, "big", signed=True)


def _generator_from(parts: Any) -> np.random.Generator:
    state, increment, has_half, half = parts_of(parts, 4, "a random generator")
    for number in (state, increment):
        if len(_exactly(bytes, number)) != 16:
            raise ProtocolError(f"a random generator came with a number of {len(number)} bytes.")
    if _exactly(int, has_half) not in (0, 1) or not 0 <= _exactly(int, half) < 2**32:
        raise ProtocolError("a random generator came in a state that it cannot have.")
    inner: Any = {"state": int.from_bytes(state, "big"), "inc": int.from_bytes(increment, "big")}
    bits = np.random.PCG64(0)
    bits.state = {"bit_generator": "PCG64", "state": inner, "has_uint32": has_half, "uinteger": half}
    return np.random.Generator(bits)
