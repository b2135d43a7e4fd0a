"""Frames: arrays and lists of frames come back as they were; what does not fit is a ProtocolError."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from clusterenv.errors import ProtocolError
from clusterenv.wire.frames import (
    CUT_OFF,
    JOIN_BELOW,
    MAX_FRAMES,
    CutOff,
    array_of,
    expect,
    fill,
    frame_of,
    join,
    split,
)

DTYPES = ["?", "u1", "i2", "u4", "i8", "f4", "f8", "f2", "c16"]
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda kind: hnp.arrays(np.dtype(kind), hnp.array_shapes(min_dims=0, min_side=0, max_side=4))
)


@given(ARRAYS, st.booleans())
def test_an_array_comes_back_as_it_was(array: Any, turned: bool) -> None:
    array = array.T if turned else array
    back = array_of(bytes(frame_of(array)), array.dtype, array.shape, "it")
    assert back.dtype == array.dtype
    assert back.tobytes() == np.ascontiguousarray(array).tobytes()


def test_no_copy_is_made_of_what_lies_in_one_piece() -> None:
    array = np.zeros(4, np.int32)
    assert np.shares_memory(np.frombuffer(frame_of(array), np.int32), array)
    assert np.shares_memory(array_of(frame_of(array), np.int32, (2, 2), "it"), array)


@given(ARRAYS, st.integers(-9, 9).filter(bool))
def test_a_frame_of_another_size_is_refused(array: Any, more: int) -> None:
    data = bytes(frame_of(array))
    other = data + b"\x00" * more if more > 0 else data[:more]
    if len(other) != len(data):
        with pytest.raises(ProtocolError, match=rf"rows: {len(other)} bytes arrived, {len(data)} were expected"):
            array_of(other, array.dtype, array.shape, "rows")
        before = array.tobytes()
        with pytest.raises(ProtocolError):
            fill(array, other, "rows")
        assert array.tobytes() == before


def test_a_shape_that_would_overflow_is_counted_right() -> None:
    with pytest.raises(ProtocolError, match=f"{8 * 2**64} were expected"):
        array_of(b"", np.float64, (2**32, 2**32), "rows")


def test_fill_changes_the_rows_that_are_named_and_no_others() -> None:
    array = np.zeros((4, 2), np.int16)
    fill(array, np.arange(4, dtype=np.int16), "rows", np.array([3, 1]))
    assert array.tolist() == [[0, 0], [2, 3], [0, 0], [0, 1]]
    fill(array, np.arange(8, dtype=np.int16), "rows")
    assert array.ravel().tolist() == list(range(8))
    with pytest.raises(ProtocolError, match="rows: 4 bytes arrived, 8 were expected"):
        fill(array, b"1234", "rows", np.array([3, 1]))


FRAMES = st.lists(st.binary(max_size=50), max_size=20)


@given(FRAMES, st.integers(0, 3))
def test_any_frames_come_back(frames: list[bytes], big: int) -> None:
    frames = [*frames, *(b"x" * JOIN_BELOW for _ in range(big))]
    pieces = join(frames)
    assert (len(pieces) == 1) == (sum(map(len, frames)) <= JOIN_BELOW)
    assert [bytes(frame) for frame in split([memoryview(bytes(piece)) for piece in pieces])] == frames


@pytest.mark.parametrize("size", [JOIN_BELOW - 1, JOIN_BELOW, JOIN_BELOW + 1])
def test_at_the_border(size: int) -> None:
    pieces = join([b"h", b"x" * (size - 1)])
    assert len(pieces) == (1 if size <= JOIN_BELOW else 3)
    assert [bytes(frame) for frame in split(pieces)] == [b"h", b"x" * (size - 1)]


def test_as_many_frames_as_may_be() -> None:
    assert len(split(join([b""] * MAX_FRAMES))) == MAX_FRAMES
    with pytest.raises(ProtocolError):
        split(join([b""] * (MAX_FRAMES + 1)))


def together(count: int, *sizes: int, body: bytes = b"") -> bytes:
    return b"\x01" + struct.pack(f"<{len(sizes) + 1}I", count, *sizes) + body


HOSTILE: dict[str, list[bytes]] = {
    "no pieces": [],
    "an empty piece": [b""],
    "an unknown kind": [b"\x02abc"],
    "HTTP": [b"GET / HTTP/1.1"],
    "no count": [b"\x01"],
    "half a count": [b"\x01\x01\x00"],
    "no sizes": [together(3)],
    "4 billion frames": [together(2**32 - 1)],
    "a frame too many": [together(MAX_FRAMES + 1, *([0] * (MAX_FRAMES + 1)))],
    "a size beyond the end": [together(1, 9, body=b"12345678")],
    "a size of 4 gigabytes": [together(1, 2**32 - 1)],
    "sizes that wrap around": [together(2, 2**32 - 1, 2, body=b"1")],
    "bytes behind the last": [together(1, 1, body=b"12")],
    "another piece": [together(1, 1, body=b"1"), b""],
}


@pytest.mark.parametrize("pieces", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_pieces_are_refused(pieces: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        split([memoryview(piece) for piece in pieces])


@pytest.mark.parametrize("sent", [0, 1, 2, 3])
def test_what_was_cut_off_is_known_as_such(sent: int) -> None:
    pieces = [*join([b"header", bytes(JOIN_BELOW), b"rows"])[:sent], CUT_OFF]
    with pytest.raises(CutOff):
        split([memoryview(piece) for piece in pieces])


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_any_pieces_are_frames_or_refused(pieces: list[bytes]) -> None:
    with contextlib.suppress(ProtocolError):
        frames = split(pieces)
        assert sum(map(len, frames)) <= sum(map(len, pieces))


@pytest.mark.fault("F32")
@given(st.lists(st.binary(max_size=20), min_size=1, max_size=4), st.data())
def test_flipped_bits_never_reach_beyond_the_message(frames: list[bytes], data: st.DataObject) -> None:
    (piece,) = join(frames)
    place = data.draw(st.integers(0, 8 * len(piece) - 1))
    flipped = bytearray(piece)
    flipped[place // 8] ^= 1 << place % 8
    with contextlib.suppress(ProtocolError):
        assert sum(map(len, split([bytes(flipped)]))) <= len(piece)


def test_expect() -> None:
    expect([b"", b""], 2, "rows")
    with pytest.raises(ProtocolError, match=r"rows: 1 frames arrived, 2 were expected"):
        expect([b""], 2, "rows")
