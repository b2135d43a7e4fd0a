"""Arrays as raw frames and back. Both sides know shapes and dtypes beforehand, so a frame is bytes and nothing else."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Array = npt.NDArray[Any]

# Messages up to this many bytes travel in one piece.
JOIN_BELOW = 2**15
MAX_FRAMES = 4096
_APART, _TOGETHER = b"\x00", b"\x01"
# The last piece of a message that was cut off on its way into the socket. No array holds these bytes by chance.
CUT_OFF = bytes.fromhex("ffa7c3190e5b4d62b1f08843d75c2e96")


class CutOff(ProtocolError):
    """A message whose sender was interrupted, and has sent it again as a whole."""


def frame_of(array: Array) -> memoryview:
    r"""The bytes of an array: of itself where it lies in one piece, of a copy where it does not.

    Example:
        >>> bytes(frame_of(np.array([1, 2], np.int16)))
        b'\x01\x00\x02\x00'
    """
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def array_of(frame: Any, dtype: npt.DTypeLike, shape: tuple[int, ...], what: str) -> Array:
    r"""A frame as an array, without a copy.

    Example:
        >>> array_of(b"\x01\x00\x02\x00", np.int16, (2,), "numbers")
        array([1, 2], dtype=int16)
    """
    try:
        return np.frombuffer(frame, dtype).reshape(shape)
    except ValueError:  # it does not hold that many numbers, or no whole number of them
        expected = math.prod(map(int, shape)) * np.dtype(dtype).itemsize
        raise ProtocolError(f"{what}: {memoryview(frame).nbytes} bytes arrived, {expected} were expected.") from None


def fill(array: Array, frame: Any, what: str, rows: Any = None) -> None:
    """Copy a frame into an array, or into these rows of it."""
    target = array if rows is None else array[rows]
    came = array_of(frame, array.dtype, target.shape, what)
    if rows is None:
        array[...] = came
    else:
        array[rows] = came


def join(frames: Sequence[Any]) -> list[Any]:
    """Frames for the socket: small ones in one piece, because each piece costs as much as ten kilobytes.

    Example:
        >>> [bytes(frame) for frame in split(join([b"header", b"", b"rows"]))]
        [b'header', b'', b'rows']
    """
    sizes = [memoryview(frame).nbytes for frame in frames]
    if sum(sizes) > JOIN_BELOW:
        return [_APART, *frames]
    return [b"".join((_TOGETHER, struct.pack(f"<{len(sizes) + 1}I", len(sizes), *sizes), *frames))]


def split(pieces: Sequence[Any]) -> list[Any]:
    """Undo `join`; ProtocolError if these pieces were not made by it, CutOff if they are not all that it made."""
    if not pieces or bytes(pieces[0][:1]) not in (_APART, _TOGETHER):
        _refuse_rest(pieces)
        raise ProtocolError("a message arrived that is none of ours.")
    if bytes(pieces[0][:1]) == _APART:
        _refuse_rest(pieces)
        return list(pieces[1:])
    whole = memoryview(pieces[0])
    try:
        (count,) = struct.unpack_from("<I", whole, 1)
        if len(pieces) != 1 or count > MAX_FRAMES:
            raise ProtocolError(f"{len(pieces)} pieces with {count} frames arrived.")
        sizes = struct.unpack_from(f"<{count}I", whole, 5)
    except struct.error:
        raise ProtocolError("a message was cut off.") from None
    first = 5 + 4 * count
    if first + sum(sizes) != whole.nbytes:
        raise ProtocolError(f"{whole.nbytes} bytes arrived, {first + sum(sizes)} were announced.")
    frames = []
    for size in sizes:
        frames.append(whole[first : first + size])
        first += size
    return frames


def _refuse_rest(pieces: Sequence[Any]) -> None:
    """Raise CutOff if this is no whole message, but what was sent of one."""
    if pieces and bytes(pieces[-1][: len(CUT_OFF) + 1]) == CUT_OFF:
        raise CutOff("a message was cut off by an interrupt; it comes again.")


def expect(frames: Sequence[Any], count: int, what: str) -> None:
    """Raise ProtocolError unless there are this many frames."""
    if len(frames) != count:
        raise ProtocolError(f"{what}: {len(frames)} frames arrived, {count} were expected.")
