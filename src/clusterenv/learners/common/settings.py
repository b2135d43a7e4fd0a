"""Settings to and from a TOML file: frozen dataclasses, nested, with nothing lost on the way."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, TypeVar

from clusterenv.errors import ConfigError, unknown

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
    hints = typing.get_type_hints(kind)
    values = {}
    for name, value in table.items():
        if name not in hints:
            raise ConfigError(unknown(f"setting in {where or 'the file'}", name, hints))
        values[name] = _fitted(hints[name], value, f"{where}.{name}" if where else name)
    return kind(**values)


def _fitted(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return from_table(typing.cast("type[Any]", hint), value, where)
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    for option in options:
        if _fits(option, value):
            if typing.get_origin(option) is tuple:
                return tuple(value)
            return float(value) if option is float else value
    if value == _NONE and type(None) in options:
        return None
    named = " or ".join(getattr(option, "__name__", str(option)) for option in options if option is not type(None))
    raise ConfigError(f"{where}={_shown(value)} must be {named}.")


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # a number, or a list of them, with more digits than Python writes
        text = "a number of thousands of digits"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _fits(option: Any, value: Any) -> bool:
    origin = typing.get_origin(option)
    if origin is typing.Literal:
        return value in typing.get_args(option)
    if origin is tuple:
        return isinstance(value, (list, tuple)) and all(_fits(typing.get_args(option)[0], part) for part in value)
    if option is float:
        return isinstance(value, float) or _fits(int, value)
    if option is int:  # one of more than 63 bits is a slip of the pen, and not every other type could hold it
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    return isinstance(option, type) and isinstance(value, option)
