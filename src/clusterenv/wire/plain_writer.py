"""From plain values to what MessagePack has; see `wire/plain.py`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space

from clusterenv.errors import ResultError
from clusterenv.wire import plain_tags as tags
from clusterenv.wire.arrays import array_to_data, dtype_to_text, scalar_to_data
from clusterenv.wire.failures import error_to_data
from clusterenv.wire.plain_tags import ATOMS, MAX_DEPTH, MAX_INT_BITS, TEXT_ONLY
from clusterenv.wire.spaces import space_to_data

if TYPE_CHECKING:
    import enum
    from collections.abc import Callable, Iterable

    _Write = Callable[[Any, int], Any]

# How much of the way to a value is shown.
_MAX_PATH = 200


class Unfit(Exception):
    """Something cannot travel. Each container around it adds the step to it, from the inside to the outside."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.steps: list[str] = []

    def words(self) -> str:
        """What it is, where it is, and what to do."""
        path = "".join(reversed(self.steps))
        if len(path) > _MAX_PATH:
            path = path[:_MAX_PATH] + "..."
        return (
            f"cannot travel to another host: {self.what}{' at ' * bool(path)}{path}; "
            "make it plain data (numbers, text, lists, dictionaries, NumPy arrays)"
        )


class Writer:
    """Turns values into what MessagePack has.

    Args:
        fields: the names of the fields of each record.
        enums: the enums that may travel.
        atoms: the types whose values are passed on without a look.
    """

    def __init__(
        self, fields: dict[type, tuple[str, ...]], enums: list[type[enum.Enum]], atoms: frozenset[type]
    ) -> None:
        self._atoms = atoms
        self._text_keys = str in atoms
        scalars = dict.fromkeys(set(np.sctypeDict.values()) - {np.object_}, self._scalar)
        self._writers: dict[type, _Write] = {
            **scalars,
            **{kind: functools.partial(self._record, names) for kind, names in fields.items()},
            **dict.fromkeys(enums, self._member),
            list: self._list,
            tuple: self._tuple,
            dict: self._dict,
            set: self._set,
            frozenset: self._frozenset,
            int: self._int,
            str: self._str,
            complex: lambda value, depth: {tags.COMPLEX: [value.real, value.imag]},
            range: lambda value, depth: self._parts(tags.RANGE, [value.start, value.stop, value.step], depth),
            slice: lambda value, depth: self._parts(tags.SLICE, [value.start, value.stop, value.step], depth),
            np.ndarray: self._array,
            np.str_: lambda value, depth: {tags.NUMPY_TEXT: self._str(str(value), depth)},
            np.bytes_: lambda value, depth: {tags.NUMPY_BYTES: bytes(value)},
            np.random.Generator: self._generator,
        }
        # For subclasses of the above and for families of types; the first that fits is taken.
        self._bases: tuple[tuple[type, _Write], ...] = (
            (np.dtype, lambda value, depth: {tags.DTYPE: _fitting(dtype_to_text, value)}),
            (Space, self._space),
            (BaseException, self._error),
            (int, lambda value, depth: self._int(int.__int__(value), depth)),
            (float, lambda value, depth: float.__float__(value)),
            (str, lambda value, depth: self._str(str.__str__(value), depth)),
            (bytes, lambda value, depth: bytes(memoryview(value))),
            (dict, self._dict),
            (list, self._list),
            (tuple, self._tuple),
            (set, self._set),
            (frozenset, self._frozenset),
        )

    def write(self, value: Any, depth: int) -> Any:
        """The value as MessagePack has it, nested at most `depth` deep."""
        kind = type(value)
        if kind in self._atoms:
            return value
        if depth <= 0:
            raise Unfit(f"something that is nested more than {MAX_DEPTH} deep or within itself")
        write = self._writers.get(kind) or self._by_base(value)
        return write(value, depth - 1)

    def _by_base(self, value: Any) -> _Write:
        named = isinstance(value, tuple) and hasattr(value, "_fields")
        if not named and not isinstance(value, np.generic):
            for base, write in self._bases:
                if isinstance(value, base):
                    return write
        raise Unfit(_name_of(type(value)))

    def _items(self, items: Iterable[Any], depth: int, step: Callable[[int], str]) -> list[Any]:
        """The items, written; `step(index)` is what the path to a bad item shows, as in "[3]"."""
        written: list[Any] = []
        add, atoms, write = written.append, self._atoms, self.write
        try:
            for item in items:
                add(item if type(item) in atoms else write(item, depth))
        except Unfit as problem:
            problem.steps.append(step(len(written)))
            raise
        return written

    def _list(self, value: list[Any], depth: int) -> Any:
        return self._items(list.__iter__(value), depth, _by_index)

    def _tuple(self, value: tuple[Any, ...], depth: int) -> Any:
        return {tags.TUPLE: self._items(tuple.__iter__(value), depth, _by_index)}

    def _set(self, value: set[Any], depth: int) -> Any:
        return {tags.SET: self._items(set.__iter__(value), depth, lambda index: "{...}")}

    def _frozenset(self, value: frozenset[Any], depth: int) -> Any:
        return {tags.FROZENSET: self._items(frozenset.__iter__(value), depth, lambda index: "{...}")}

    def _dict(self, value: dict[Any, Any], depth: int) -> Any:
        keys = list(dict.keys(value))
        values = self._items(dict.values(value), depth, lambda index: f"[{_shown(keys[index])}]")
        if self._text_keys and TEXT_ONLY.issuperset(map(type, keys)):
            return dict(zip(keys, values, strict=True))
        return {tags.DICT: [*self._items(keys, depth, lambda index: f".keys()[{index}]"), *values]}

    def _parts(self, tag: int, parts: list[Any], depth: int) -> Any:
        return {tag: self._items(parts, depth, lambda index: f".{('start', 'stop', 'step')[index]}")}

    def _record(self, names: tuple[str, ...], value: Any, depth: int) -> Any:
        values = self._items((getattr(value, name) for name in names), depth, lambda index: f".{names[index]}")
        return {tags.RECORD: [type(value).__name__, *names, *values]}

    def _member(self, value: enum.Enum, depth: int) -> Any:
        if value.name not in type(value).__members__:
            raise Unfit(f"{value!r}, which has no name")
        return {tags.ENUM: [type(value).__name__, value.name]}

    def _int(self, value: int, depth: int) -> Any:
        if -(2**63) <= value < 2**64:
            return value
        if value.bit_length() > MAX_INT_BITS:
            raise Unfit(f"a whole number of {value.bit_length()} bits (at most {MAX_INT_BITS} travel)")
        return {tags.INT: value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)}

    def _str(self, value: str, depth: int) -> Any:
        if value.isascii():
            return value
        try:
            value.encode()
        except UnicodeEncodeError:  # half a character, as in the name of a file that is not UTF-8
            return {tags.TEXT: value.encode("utf-8", "surrogatepass")}
        return value

    def _array(self, value: np.ndarray[Any, Any], depth: int) -> Any:
        if value.dtype == object:
            items = self._items(value.ravel().tolist(), depth, lambda index: f".flat[{index}]")
            return {tags.OBJECTS: [value.ndim, *value.shape, *items]}
        return {tags.ARRAY: _fitting(array_to_data, value)}

    def _scalar(self, value: np.generic, depth: int) -> Any:
        return {tags.SCALAR: _fitting(scalar_to_data, value)}

    def _generator(self, value: np.random.Generator, depth: int) -> Any:
        if type(value.bit_generator) is not np.random.PCG64:
            raise Unfit(f"a random generator of {_name_of(type(value.bit_generator))}; only those of PCG64 travel")
        state = value.bit_generator.state
        numbers = [number.to_bytes(16, "big") for number in (state["state"]["state"], state["state"]["inc"])]
        return {tags.GENERATOR: [*numbers, state["has_uint32"], state["uinteger"]]}

    def _space(self, value: Space[Any], depth: int) -> Any:
        return {tags.SPACE: self.write(_fitting(space_to_data, value), depth)}

    def _error(self, value: BaseException, depth: int) -> Any:
        *names, args = error_to_data(value)
        try:
            written = None if args is None else self.write(args, depth)
        except Unfit:
            written = None  # its text will do
        return {tags.ERROR: [*names, written]}


def _by_index(index: int) -> str:
    return f"[{index}]"


def _shown(key: Any) -> str:
    """A key as it is written in a program; for keys of the user's own types just the type."""
    return repr(key)[:60] if type(key) in ATOMS else _name_of(type(key))


def _name_of(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _fitting(convert: Callable[[Any], Any], value: Any) -> Any:
    """What `convert` makes of the value, or `Unfit` with its words."""
    try:
        return convert(value)
    except ResultError as error:
        raise Unfit(str(error)) from None
