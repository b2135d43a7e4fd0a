"""Plain values as bytes and back, for other hosts. Nothing is pickled, and nothing that comes in becomes code.

MessagePack by itself has None, booleans, whole numbers of 64 bits, floats, text, bytes, lists and dictionaries with
text for keys. All else goes as a dictionary with one whole number for a key, `{tag: content}`, which no other value
gives.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any

import msgspec
from gymnasium.spaces import GraphInstance
from msgspec import msgpack

from clusterenv.errors import ConfigError, ProtocolError, ResultError
from clusterenv.wire.plain_reader import Reader
from clusterenv.wire.plain_tags import ATOMS, MAX_DEPTH, SAFE
from clusterenv.wire.plain_writer import Unfit, Writer

if TYPE_CHECKING:
    from collections.abc import Sequence


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
        >>> import numpy as np
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
        # The careful writer looks at every whole number and text; it is asked when MessagePack has refused one.
        self._quick = Writer(fields, enums, ATOMS)
        self._careful = Writer(fields, enums, SAFE)
        self._reader = Reader(fields, enums)

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
        except Unfit as problem:
            raise ResultError(problem.words()) from None
        except RecursionError:
            raise ResultError(Unfit("a value nested too deep for what is left of the stack").words()) from None
        except (OverflowError, ValueError, msgspec.MsgspecError) as error:
            raise ResultError(Unfit(f"a value that is too large ({error})").words()) from None

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
