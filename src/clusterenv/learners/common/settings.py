"""Settings as frozen dataclasses, nested: checked against their types, and to and from a TOML file without a loss."""

from __future__ import annotations

import dataclasses
import numbers
import types
import typing
from typing import Any, TypeVar

import numpy as np

from clusterenv.errors import ConfigError, ConfigTypeError, meant, unknown

Settings = TypeVar("Settings")
_MAX_SHOWN = 200
_NONE = "None"  # how a file says it, and the command line too: TOML has no null


def to_table(settings: Any) -> dict[str, Any]:
    """A dataclass as a table for TOML: nested ones as tables, tuples as lists.

    None is left out where it is the default. Elsewhere it is written as text, as what is left out becomes the default.

    Example:
        >>> @dataclasses.dataclass
        ... class Size:
        ...     width: int = 1
        ...     height: int | None = None
        ...     depth: int | None = 1
        >>> to_table(Size(width=3, depth=None))
        {'width': 3, 'depth': 'None'}
    """
    table: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            table[field.name] = to_table(value)
        elif value is not None:
            table[field.name] = list(value) if isinstance(value, tuple) else value
        elif field.default is not None:
            table[field.name] = _NONE
    return table


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted names.

    Example:
        >>> flat({"seed": 1, "sync": {"rule": "aps"}})
        {'seed': 1, 'sync.rule': 'aps'}
    """
    result: dict[str, Any] = {}
    for name, value in table.items():
        result |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return result


def from_table(kind: type[Settings], table: dict[str, Any], where: str = "") -> Settings:
    """The dataclass that `to_table` made a table of. What is not named has its default.

    Raises:
        ConfigError: a name or the type of a value is wrong; the message says where.
    """
    hints, values = typing.get_type_hints(kind), {}
    names = [field.name for field in dataclasses.fields(typing.cast("Any", kind))]
    for name, value in table.items():
        if name not in names:
            raise ConfigError(unknown(f"setting in {where or 'the file'}", name, names))
        values[name] = _fitted(hints[name], value, _place(where, name))
    return kind(**values)


def fit(settings: Any, where: str = "") -> None:
    """Check every field of a dataclass against its type, and keep it as that: NumPy's numbers become Python's.

    To be called first in `__post_init__`, so that what Python code asks for is checked as a file is.

    Raises:
        ConfigError: a value is none of those that are known, or its type is wrong.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Size:
        ...     width: int = 1
        ...     def __post_init__(self) -> None:
        ...         fit(self)
        >>> Size(2.5)
        Traceback (most recent call last):
        clusterenv.errors.ConfigTypeError: width=2.5 must be int.
    """
    hints = typing.get_type_hints(type(settings))
    for field in dataclasses.fields(settings):
        value = _fitted(hints[field.name], getattr(settings, field.name), _place(where, field.name))
        object.__setattr__(settings, field.name, value)


def _place(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _fitted(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return from_table(typing.cast("type[Any]", hint), value, where)
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    for option in options:
        if _fits(option, value):
            return _kept(option, value)
    if isinstance(value, str) and value == _NONE and type(None) in options:
        return None
    choices = [choice for option in options for choice in _choices(option)]
    if choices:
        named = " or ".join(map(repr, choices))
        raise ConfigError(f"{where}={_shown(value)} must be {named}.{meant(str(value)[:_MAX_SHOWN], choices)}")
    if int in options and _is_whole(value):
        raise ConfigError(f"{where}={_shown(value)} must be more than -2**63 and less than 2**63.")
    named = " or ".join(_called(option) for option in options if option is not type(None))
    raise ConfigTypeError(f"{where}={_shown(value)} must be {named}.")


def _called(option: Any) -> str:
    if typing.get_origin(option) is tuple:
        return f"a list of {_called(typing.get_args(option)[0])}"
    return option.__name__ if isinstance(option, type) else str(option)


def _choices(option: Any) -> tuple[str, ...]:
    return typing.get_args(option) if typing.get_origin(option) is typing.Literal else ()


def _kept(option: Any, value: Any) -> Any:
    """A value that fits, as exactly what its type says."""
    if typing.get_origin(option) is tuple:
        return tuple(_kept(typing.get_args(option)[0], part) for part in value)
    return option(value) if option in (bool, int, float) else value


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # a number, or a list of them, with more digits than Python writes
        text = "a number of thousands of digits"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _fits(option: Any, value: Any) -> bool:
    origin = typing.get_origin(option)
    if origin is typing.Literal:
        return isinstance(value, str) and value in _choices(option)
    if origin is tuple:
        return isinstance(value, (list, tuple)) and all(_fits(typing.get_args(option)[0], part) for part in value)
    if option is bool:
        return isinstance(value, (bool, np.bool_))
    if option is float:
        whole = isinstance(value, numbers.Integral)  # these are real numbers too, and some are larger than any float
        return _fits(int, value) if whole else isinstance(value, numbers.Real)
    if option is int:  # one of more than 63 bits is a slip of the pen, and not every other type could hold it
        return _is_whole(value) and abs(int(value)) < 2**63
    return isinstance(option, type) and isinstance(value, option)
