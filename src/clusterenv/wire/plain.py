"""Plain values as bytes and back, for other hosts. Nothing is pickled, and nothing that comes in becomes code.

MessagePack by itself has None, booleans, whole numbers of 64 bits, floats, text, bytes, lists and dictionaries with
text for keys. All else goes as a dictionary with one whole number for a key, `{tag: content}`, which no other value
gives.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from gymnasium import Space
from gymnasium.spaces import GraphInstance
from msgspec import msgpack

from clusterenv.errors import ConfigError, ProtocolError, ResultError, words_of
from clusterenv.wire.arrays import (
    array_from_data,
    array_to_data,
    dtype_from_text,
    dtype_to_text,
    object_array_from_data,
    parts_of,
    scalar_from_data,
    scalar_to_data,
)
from clusterenv.wire.failures import error_from_data, error_to_data
from clusterenv.wire.spaces import space_from_data, space_to_data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    _Write = Callable[[Any, int], Any]

MAX_DEPTH = 100
MAX_INT_BITS = 4096
_MAX_PATH = 200
_MAX_WORDS = 200

# Part of the protocol: a number that is here never changes its meaning.
_TUPLE, _DICT, _SET, _FROZENSET, _INT, _COMPLEX, _TEXT, _RANGE, _SLICE = range(9)
_ARRAY, _OBJECTS, _SCALAR, _NUMPY_TEXT, _NUMPY_BYTES, _DTYPE, _GENERATOR = range(9, 16)
_RECORD, _ENUM, _SPACE, _ERROR = range(16, 20)

# What MessagePack takes as it is. A whole number may be too large, and text may hold half characters: the quick way
# hopes that they do not, and the careful way is there for when they do.
_SAFE = frozenset([type(None), bool, float, bytes])
_ATOMS = _SAFE | {int, str}
_TEXT_ONLY = frozenset([str])


class Codec:
    """Values as bytes and back.

    It takes None, bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, range, slice; NumPy arrays
    (of objects too, if those are plain), scalars, dtypes and generators (of PCG64, without the seed sequence that
    `spawn` needs); Gymnasium's spaces and GraphInstance; exceptions (see `wire.failures`); and the records.

    A subclass travels as what it is based on, which is what most programs use it as: OrderedDict and defaultdict as
    dict, members of IntEnum as int, of StrEnum as str. Named tuples and subclasses of NumPy's array are refused,
    unless they are records: their names, or masks, would be lost.

    Args:
        records: dataclasses, NamedTuple classes and enums that both sides know. They travel by the name of the class,
            with their fields by name. The types of the fields are for the receiver to check.

    Example:
        >>> codec = Codec()
        >>> codec.unpack(codec.pack({"reward": 1.0, ("a", 1): np.arange(3)}))
        {'reward': 1.0, ('a', 1): array([0, 1, 2])}
    """

    def __init__(self, records: Sequence[type] = ()) -> None:
        fields: dict[type, tuple[str, ...]] = {GraphInstance: GraphInstance._fields}
        enums: list[type[enum.Enum]] = []
        for kind in records:
            if issubclass(kind, enum.Enum):
                enums.append(kind)
            else:
                fields[kind] = _fields_of(kind)
        names = [kind.__name__ for kind in (*fields, *enums)]
        if len(set(names)) != len(names):
            raise ConfigError(f"two records have the same name: {sorted(names)}. Rename one of them.")
        self._quick = _Writer(fields, enums, _ATOMS)
        self._careful = _Writer(fields, enums, _SAFE)
        self._reader = _Reader(fields, enums)

    def pack(self, value: Any) -> bytes:
        """The value as bytes.

        Raises:
            ResultError: something in it cannot travel to another host; says what, and where.
        """
        try:
            try:
                return msgpack.encode(self._quick.write(value, MAX_DEPTH))
            except (OverflowError, UnicodeEncodeError):
                return msgpack.encode(self._careful.write(value, MAX_DEPTH))
        except _Unfit as problem:
            raise ResultError(problem.words()) from None
        except RecursionError:
            raise ResultError(_Unfit("a value nested too deep for what is left of the stack").words()) from None
        except (OverflowError, ValueError, msgspec.MsgspecError) as error:
            raise ResultError(_Unfit(f"a value that is too large ({error})").words()) from None

    def unpack(self, data: bytes | memoryview) -> Any:
        """The value that `pack` was given.

        Raises:
            ProtocolError: `pack` did not make these bytes, or with other records.
        """
        try:
            return self._reader.read(msgpack.decode(data), MAX_DEPTH)
        except RecursionError:
            raise ProtocolError("a message is nested too deep.") from None
        except (ValueError, msgspec.MsgspecError) as error:
            raise ProtocolError(f"a message of {len(data)} bytes cannot be read: {error}") from None


class _Unfit(Exception):
    """Something cannot travel. The steps to it are added on the way up."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.steps: list[str] = []

    def words(self) -> str:
        path = "".join(reversed(self.steps))
        if len(path) > _MAX_PATH:
            path = path[:_MAX_PATH] + "..."
        return (
            f"cannot travel to another host: {self.what}{' at ' * bool(path)}{path}; "
            "make it plain data (numbers, text, lists, dictionaries, NumPy arrays)"
        )


def _fields_of(kind: type) -> tuple[str, ...]:
    if dataclasses.is_dataclass(kind):
        fields = dataclasses.fields(kind)
        if all(field.init for field in fields):
            return tuple(field.name for field in fields)
    elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
        names: tuple[str, ...] = kind._fields
        return names
    raise ConfigError(
        f"{kind.__qualname__} cannot be a record: it must be a dataclass whose constructor takes all fields, a "
        "NamedTuple class or an enum."
    )


class _Writer:
    """Turns values into what MessagePack has."""

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
            complex: lambda value, depth: {_COMPLEX: [value.real, value.imag]},
            range: lambda value, depth: self._parts(_RANGE, [value.start, value.stop, value.step], depth),
            slice: lambda value, depth: self._parts(_SLICE, [value.start, value.stop, value.step], depth),
            np.ndarray: self._array,
            np.str_: lambda value, depth: {_NUMPY_TEXT: self._str(str(value), depth)},
            np.bytes_: lambda value, depth: {_NUMPY_BYTES: bytes(value)},
            np.random.Generator: self._generator,
        }
        # In this order, for subclasses of the above and for families of types.
        self._bases: tuple[tuple[type, _Write], ...] = (
            (np.dtype, lambda value, depth: {_DTYPE: _fitting(dtype_to_text, value)}),
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
        kind = type(value)
        if kind in self._atoms:
            return value
        if depth <= 0:
            raise _Unfit(f"something that is nested more than {MAX_DEPTH} deep or within itself")
        write = self._writers.get(kind) or self._by_base(value)
        return write(value, depth - 1)

    def _by_base(self, value: Any) -> _Write:
        named = isinstance(value, tuple) and hasattr(value, "_fields")
        if not named and not isinstance(value, np.generic):
            for base, write in self._bases:
                if isinstance(value, base):
                    return write
        raise _Unfit(_name_of(type(value)))

    def _items(self, items: Iterable[Any], depth: int, step: Callable[[int], str]) -> list[Any]:
        """The items, written; `step` words the way to the item of an index."""
        written: list[Any] = []
        add, atoms, write = written.append, self._atoms, self.write
        try:
            for item in items:
                add(item if type(item) in atoms else write(item, depth))
        except _Unfit as problem:
            problem.steps.append(step(len(written)))
            raise
        return written

    def _list(self, value: list[Any], depth: int) -> Any:
        return self._items(list.__iter__(value), depth, _by_index)

    def _tuple(self, value: tuple[Any, ...], depth: int) -> Any:
        return {_TUPLE: self._items(tuple.__iter__(value), depth, _by_index)}

    def _set(self, value: set[Any], depth: int) -> Any:
        return {_SET: self._items(set.__iter__(value), depth, lambda index: "{...}")}

    def _frozenset(self, value: frozenset[Any], depth: int) -> Any:
        return {_FROZENSET: self._items(frozenset.__iter__(value), depth, lambda index: "{...}")}

    def _dict(self, value: dict[Any, Any], depth: int) -> Any:
        keys = list(dict.keys(value))
        values = self._items(dict.values(value), depth, lambda index: f"[{_shown(keys[index])}]")
        if self._text_keys and _TEXT_ONLY.issuperset(map(type, keys)):
            return dict(zip(keys, values, strict=True))
        return {_DICT: [*self._items(keys, depth, lambda index: f".keys()[{index}]"), *values]}

    def _parts(self, tag: int, parts: list[Any], depth: int) -> Any:
        return {tag: self._items(parts, depth, lambda index: f".{('start', 'stop', 'step')[index]}")}

    def _record(self, names: tuple[str, ...], value: Any, depth: int) -> Any:
        values = self._items((getattr(value, name) for name in names), depth, lambda index: f".{names[index]}")
        return {_RECORD: [type(value).__name__, *names, *values]}

    def _member(self, value: enum.Enum, depth: int) -> Any:
        if value.name not in type(value).__members__:
            raise _Unfit(f"{value!r}, which has no name")
        return {_ENUM: [type(value).__name__, value.name]}

    def _int(self, value: int, depth: int) -> Any:
        if -(2**63) <= value < 2**64:
            return value
        if value.bit_length() > MAX_INT_BITS:
            raise _Unfit(f"a whole number of {value.bit_length()} bits (at most {MAX_INT_BITS} travel)")
        return {_INT: value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)}

    def _str(self, value: str, depth: int) -> Any:
        if value.isascii():
            return value
        try:
            value.encode()
        except UnicodeEncodeError:  # half a character, as in the name of a file that is not UTF-8
            return {_TEXT: value.encode("utf-8", "surrogatepass")}
        return value

    def _array(self, value: np.ndarray[Any, Any], depth: int) -> Any:
        if value.dtype == object:
            items = self._items(value.ravel().tolist(), depth, lambda index: f".flat[{index}]")
            return {_OBJECTS: [value.ndim, *value.shape, *items]}
        return {_ARRAY: _fitting(array_to_data, value)}

    def _scalar(self, value: np.generic, depth: int) -> Any:
        return {_SCALAR: _fitting(scalar_to_data, value)}

    def _generator(self, value: np.random.Generator, depth: int) -> Any:
        if type(value.bit_generator) is not np.random.PCG64:
            raise _Unfit(f"a random generator of {_name_of(type(value.bit_generator))}; only those of PCG64 travel")
        state = value.bit_generator.state
        numbers = (state["state"]["state"], state["state"]["inc"])
        return {
            _GENERATOR: [*(number.to_bytes(16, "big") for number in numbers), state["has_uint32"], state["uinteger"]]
        }

    def _space(self, value: Space[Any], depth: int) -> Any:
        return {_SPACE: self.write(_fitting(space_to_data, value), depth)}

    def _error(self, value: BaseException, depth: int) -> Any:
        *names, args = error_to_data(value)
        try:
            written = None if args is None else self.write(args, depth)
        except _Unfit:
            written = None  # its text will do
        return {_ERROR: [*names, written]}


def _by_index(index: int) -> str:
    return f"[{index}]"


def _shown(key: Any) -> str:
    """A key as it is written in a program; for keys of the user's own types just the type."""
    return repr(key)[:60] if type(key) in _ATOMS else _name_of(type(key))


def _name_of(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _fitting(convert: Callable[[Any], Any], value: Any) -> Any:
    try:
        return convert(value)
    except ResultError as error:
        raise _Unfit(str(error)) from None


class _Reader:
    """Turns what MessagePack has back into values. Everything is checked: it may come from anybody."""

    def __init__(self, fields: dict[type, tuple[str, ...]], enums: list[type[enum.Enum]]) -> None:
        self._records: dict[str, tuple[Any, tuple[str, ...]]] = {
            kind.__name__: (kind, names) for kind, names in fields.items()
        }
        self._enums = {kind.__name__: kind for kind in enums}
        # What MessagePack itself gave is what these take.
        self._simple: dict[int, Callable[[Any], Any]] = {
            _INT: _int_from,
            _COMPLEX: lambda parts: complex(*(_exactly(float, part) for part in parts_of(parts, 2, "complex"))),
            _TEXT: lambda data: _exactly(bytes, data).decode("utf-8", "surrogatepass"),
            _ARRAY: array_from_data,
            _SCALAR: scalar_from_data,
            _NUMPY_BYTES: lambda data: np.bytes_(_exactly(bytes, data)),
            _DTYPE: dtype_from_text,
            _GENERATOR: _generator_from,
            _ENUM: self._member,
        }
        # What these hold is read first.
        self._composed: dict[int, Callable[[Any], Any]] = {
            _TUPLE: lambda items: tuple(_exactly(list, items)),
            _DICT: _dict_from,
            _SET: _set_from,
            _FROZENSET: lambda items: frozenset(_set_from(items)),
            _RANGE: lambda parts: range(*(_exactly(int, part) for part in parts_of(parts, 3, "a range"))),
            _SLICE: lambda parts: slice(*parts_of(parts, 3, "a slice")),
            _OBJECTS: _objects_from,
            _NUMPY_TEXT: lambda text: np.str_(_exactly(str, text)),
            _RECORD: self._record,
            _SPACE: space_from_data,
            _ERROR: error_from_data,
        }

    def read(self, data: Any, depth: int) -> Any:
        kind = type(data)
        if kind in _ATOMS:
            return data
        if depth <= 0:
            raise ProtocolError(f"a message is nested more than {MAX_DEPTH} deep.")
        if kind is list:
            return self._list(data, depth - 1)
        if kind is not dict:
            raise ProtocolError(f"a message holds a MessagePack {kind.__name__}, which the protocol does not have.")
        if not _TEXT_ONLY.issuperset(map(type, data)):
            return self._tagged(data, depth)
        read = self.read
        return {key: item if type(item) in _ATOMS else read(item, depth - 1) for key, item in data.items()}

    def _list(self, data: list[Any], depth: int) -> list[Any]:
        read = self.read
        return [item if type(item) in _ATOMS else read(item, depth) for item in data]

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
