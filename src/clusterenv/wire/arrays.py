"""NumPy arrays, scalars and dtypes as plain data: the dtype by its short text, the numbers as bytes.

What comes back is checked before memory is taken for it: the text must be a dtype of plain elements, and the shape must
need exactly the bytes that are there.
"""

from __future__ import annotations

import functools
import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.errors import ProtocolError, ResultError

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

# Byte order, kind, size; or dates and spans with their unit. No objects, no fields, no repeated elements.
_DTYPE = re.compile(r"[<>|](?:[biufcSUV][1-9][0-9]{0,8}|[mM]8(?:\[[0-9]{0,9}[A-Za-z]{1,2}\])?)")
_MAX_DTYPE_TEXT = 24
_MAX_DIMS = 32
# NumPy takes memory for one element of an empty array.
_EMPTY_ITEM_BYTES = 4096
_LAST_CHARACTER = 0x10FFFF


@functools.lru_cache(256)
def dtype_to_text(dtype: np.dtype[Any]) -> str:
    """The short text of a dtype of plain elements, as in "<f4". ResultError for all others.

    Example:
        >>> dtype_to_text(np.dtype(np.int64))
        '<i8'
    """
    text: str = dtype.str
    # Fields, objects and the dtypes of other packages do not come back from their short text.
    if not _DTYPE.fullmatch(text) or np.dtype(text) != dtype:
        raise ResultError(f"the NumPy dtype {str(dtype)[:80]} has elements that are not plain")
    return text


def dtype_from_text(text: object) -> np.dtype[Any]:
    """Undo `dtype_to_text`; ProtocolError if it did not write this.

    Example:
        >>> dtype_from_text("<f4")
        dtype('float32')
    """
    if type(text) is not str or len(text) > _MAX_DTYPE_TEXT:
        raise ProtocolError(f"{shown(text)} is no dtype that travels.")
    return _dtype(text)


@functools.lru_cache(256)
def _dtype(text: str) -> np.dtype[Any]:
    try:
        if _DTYPE.fullmatch(text):
            return np.dtype(text)
    except (TypeError, ValueError, OverflowError):  # no such size, or no such unit
        pass
    raise ProtocolError(f"{text!r} is no dtype that travels.")


def array_to_data(array: Array) -> list[Any]:
    r"""[dtype, shape, bytes] of an array, in C order however it lies in memory; ResultError if it holds no plain data.

    Example:
        >>> array_to_data(np.array([[1], [2]], np.uint8))
        ['|u1', [2, 1], b'\x01\x02']
    """
    text = dtype_to_text(array.dtype)
    if array.ndim > _MAX_DIMS:
        raise ResultError(f"an array of {array.ndim} dimensions (at most {_MAX_DIMS} travel)")
    if array.size == 0 and array.itemsize > _EMPTY_ITEM_BYTES:
        raise ResultError(f"an empty array with elements of {array.itemsize} bytes")
    return [text, list(array.shape), array.tobytes()]


def array_from_data(data: Any) -> Array:
    r"""Undo `array_to_data`. The array is writable and owns its memory; ProtocolError if sizes do not agree.

    Example:
        >>> array_from_data(["<u2", [2], b"\x01\x00\x02\x00"])
        array([1, 2], dtype=uint16)
    """
    text, sizes, content = parts_of(data, 3, "an array")
    dtype, shape = dtype_from_text(text), shape_from_data(sizes)
    if type(content) is not bytes or math.prod(shape) * dtype.itemsize != len(content):
        raise ProtocolError(f"an array of shape {shape} and dtype {text!r} came with other bytes than it takes.")
    if not content:
        return _empty(shape, dtype)
    flat = np.frombuffer(content, dtype)
    _check_elements(flat, content)
    return (flat != 0 if dtype.kind == "b" else flat.copy()).reshape(shape)


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if dtype.itemsize > _EMPTY_ITEM_BYTES:
        raise ProtocolError(f"an empty array came with elements of {dtype.itemsize} bytes.")
    return _made(shape, dtype)


def _made(shape: tuple[int, ...], dtype: Any) -> Array:
    try:
        return np.empty(shape, dtype)
    except (ValueError, MemoryError):  # too large with its zeros left out, which NumPy refuses as well
        raise ProtocolError(f"an array of shape {shape} cannot be made.") from None


def _check_elements(flat: Array, content: bytes) -> None:
    """Refuse text with numbers that are no characters: NumPy does not look, and would raise whenever it is read."""
    if flat.dtype.kind == "U":
        codes = np.frombuffer(content, f"{flat.dtype.str[0]}u4")
        if codes.max() > _LAST_CHARACTER:
            raise ProtocolError("an array of text holds what is no character.")


def object_array_from_data(sizes: Any, items: Any) -> Array:
    """An object array of this shape with these items, in C order."""
    shape = shape_from_data(sizes)
    if type(items) is not list or math.prod(shape) != len(items):
        raise ProtocolError(f"an array of shape {shape} came with another number of items.")
    array = _made(shape, object)
    # One by one: NumPy would take items that are lists for further dimensions.
    flat = array.reshape(-1)
    for index, item in enumerate(items):
        flat[index] = item
    return array


def scalar_to_data(scalar: np.generic) -> list[Any]:
    r"""[dtype, bytes] of a NumPy scalar.

    Example:
        >>> scalar_to_data(np.float32(1))
        ['<f4', b'\x00\x00\x80?']
    """
    return [dtype_to_text(scalar.dtype), scalar.tobytes()]


def scalar_from_data(data: Any) -> np.generic:
    r"""Undo `scalar_to_data`.

    Example:
        >>> scalar_from_data(["|b1", b"\x01"])
        np.True_
    """
    text, content = parts_of(data, 2, "a scalar")
    dtype = dtype_from_text(text)
    if type(content) is not bytes or len(content) != dtype.itemsize:
        raise ProtocolError(f"a scalar of dtype {text!r} came with other bytes than it takes.")
    if dtype.kind == "b":
        return np.bool_(content != b"\0")
    flat = np.frombuffer(content, dtype)
    _check_elements(flat, content)
    scalar: np.generic = flat[0]
    return scalar


def shape_from_data(data: Any) -> tuple[int, ...]:
    """A shape: whole numbers of at least 0, and not too many of them.

    Example:
        >>> shape_from_data([2, 3])
        (2, 3)
    """
    if type(data) not in (list, tuple) or len(data) > _MAX_DIMS:
        raise ProtocolError(f"{shown(data)} is no shape.")
    if any(type(size) is not int or not 0 <= size < 2**63 for size in data):
        raise ProtocolError(f"{shown(data)} is no shape: it must hold whole numbers of at least 0.")
    return tuple(data)


def parts_of(data: Any, count: int, what: str) -> Any:
    """`data` if it is a list (or tuple) of so many parts; ProtocolError if not.

    Example:
        >>> parts_of(["<f4", b""], 2, "a scalar")
        ['<f4', b'']
    """
    if type(data) not in (list, tuple) or len(data) != count:
        raise ProtocolError(f"{what} must come in {count} parts, not as {shown(data)}.")
    return data


def shown(value: Any) -> str:
    """A value from elsewhere, in few words however large it is.

    Example:
        >>> shown("x" * 100), shown([1, 2])
        ("'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'", 'a list')
    """
    if isinstance(value, (str, bytes)):
        return repr(value[:40])
    return repr(value)[:80] if value is None or isinstance(value, (int, float)) else f"a {type(value).__name__}"
