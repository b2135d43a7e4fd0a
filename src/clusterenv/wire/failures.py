"""Exceptions as plain data. Only types of a fixed table come back; a type that it lacks is named in the text.

The table holds the exceptions of Python, of Gymnasium and of ClusterEnv. An exception of another type comes back as
the nearest of its bases that the table has, so that `except ValueError` goes on working, with its own type's name
before its text. Attributes, notes, causes and tracebacks stay behind.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

import gymnasium.error

from clusterenv import errors
from clusterenv.errors import ProtocolError, words_of
from clusterenv.wire.arrays import parts_of, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

# An error text of megabytes helps nobody.
_MAX_TEXT = 20_000
_MAX_NAME = 200
# These are made of more than a text; and the first says less than the other bases of an error.
_LEFT_OUT = ("ClusterEnvError", "EnvError", "WorkerLost", "WorkersMissing")
_WITH_PLACES = (UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError)


def _kinds() -> Iterator[tuple[str, type[Exception]]]:
    for prefix, home in (("", builtins), ("gymnasium.", gymnasium.error), ("clusterenv.", errors)):
        for kind in vars(home).values():
            if isinstance(kind, type) and issubclass(kind, Exception) and kind.__module__ == home.__name__:
                yield prefix + kind.__name__, kind


_BY_NAME = {name: kind for name, kind in _kinds() if kind.__name__ not in _LEFT_OUT}
_NAMES = {kind: name for name, kind in _BY_NAME.items()}


def error_to_data(error: BaseException) -> list[Any]:
    """[nearest type of the table, name of the type, text, args or None].

    The args are kept if the type itself is in the table; they need not be plain, which is for the codec to find out.

    Example:
        >>> error_to_data(KeyError("x"))
        ['KeyError', 'KeyError', "'x'", ('x',)]
        >>> class OutOfFuel(ValueError):
        ...     pass
        >>> error_to_data(OutOfFuel("at 7 m"))
        ['ValueError', 'OutOfFuel', 'at 7 m', None]
    """
    kind, text = type(error), words_of(error)
    known = next((base for base in kind.__mro__ if base in _NAMES), RuntimeError)
    args = _args_of(error) if known is kind and len(text) <= _MAX_TEXT else None
    return [_NAMES[known], whole_characters(kind.__name__[:_MAX_NAME]), whole_characters(text[:_MAX_TEXT]), args]


def _args_of(error: BaseException) -> tuple[Any, ...]:
    if isinstance(error, OSError) and len(error.args) == 2 and error.filename is not None:
        return (*error.args, error.filename, None, error.filename2)  # it hides the names of its files
    return error.args


def whole_characters(text: str) -> str:
    """A text that can travel: halves of characters, as names of files may have, become question marks."""
    return text.encode("utf-8", "replace").decode()


def error_from_data(data: Any) -> Exception:
    """Undo `error_to_data`, as nearly as the table allows.

    Example:
        >>> error_from_data(["ValueError", "OutOfFuel", "at 7 m", None])
        ValueError('OutOfFuel: at 7 m')
    """
    known, name, text, args = parts_of(data, 4, "an exception")
    if not (type(known) is type(name) is type(text) is str) or known not in _BY_NAME:
        raise ProtocolError(f"{shown(known)} is no exception that travels.")
    kind = _BY_NAME[known]
    if args is not None:
        if type(args) not in (list, tuple):
            raise ProtocolError("the arguments of an exception must be a sequence.")
        error = _built(kind, tuple(args))
        if error is not None:
            return error
    words = text if name == kind.__name__ else f"{name}: {text}"
    # Plain Exception says less than RuntimeError, which stands in for what cannot travel on one host too.
    error = None if kind is Exception and name != "Exception" else _built(kind, (words,))
    return error if error is not None else RuntimeError(f"{name}: {text}")


def _built(kind: type[Exception], args: tuple[Any, ...]) -> Exception | None:
    try:
        if kind in _WITH_PLACES and not _in_range(*args[-4:-1]):
            return None
        error = kind(*args)
        str(error)
    except Exception:  # constructors with their own ideas
        return None
    return error if isinstance(error, kind) else None


def _in_range(text: Any, start: Any, end: Any) -> bool:
    """Whether the places that a UnicodeError names are there: not every Python looks before it reads them."""
    return type(start) is type(end) is int and 0 <= start <= end <= len(text)
