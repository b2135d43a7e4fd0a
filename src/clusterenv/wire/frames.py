"""Arrays as raw frames and back. Both sides know shapes and dtypes beforehand, so a frame is bytes and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Array = npt.NDArray[Any]


def frame_of(array: Array) -> memoryview:
    r"""The bytes of an array: of itself where it lies in one piece, of a copy where it does not.

    Example:
        >>> bytes(frame_of(np.array([1, 2], np.int16)))
        b'\x01\x00\x02\x00'
    """
    flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memoryview(flat).cast("B")


def array_of(frame: Any, dtype: npt.DTypeLike, shape: tuple[int, ...], what: str) -> Array:
    r"""A frame as an array, without a copy.

    Example:
        >>> array_of(b"\x01\x00\x02\x00", np.int16, (2,), "numbers")
        array([1, 2], dtype=int16)
    """
    kind = np.dtype(dtype)
    count = 1
    for length in shape:
        count *= int(length)
    size = memoryview(frame).nbytes
    if size != count * kind.itemsize:
        raise ProtocolError(f"{what}: {size} bytes arrived, {count * kind.itemsize} were expected.")
    return np.frombuffer(frame, kind, count).reshape(shape)


def fill(array: Array, frame: Any, what: str, rows: Any = None) -> None:
    """Copy a frame into an array, or into these rows of it."""
    target = array if rows is None else array[rows]
    came = array_of(frame, array.dtype, target.shape, what)
    if rows is None:
        array[...] = came
    else:
        array[rows] = came


def expect(frames: Sequence[Any], count: int, what: str) -> None:
    """Raise ProtocolError unless there are this many frames."""
    if len(frames) != count:
        raise ProtocolError(f"{what}: {len(frames)} frames arrived, {count} were expected.")
