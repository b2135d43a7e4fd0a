"""Fragments as frames and back: every column as it was, and ends of episodes where they are."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.errors import ProtocolError
from clusterenv.node.columns import columns_from_frames, columns_to_frames
from clusterenv.spaces import Leaf
from clusterenv.transport.fragments import Columns, Fragments, FragmentSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

F4 = np.dtype("f4")


@contextlib.contextmanager
def columns(seed: int | None = None, *, has_value: bool = True, every_state: bool = False) -> Iterator[Columns]:
    """Columns of two slots and three steps, empty or full of noise."""
    leaves = (Leaf((2,), F4),), (Leaf((5,), F4),), Leaf((), np.dtype("i8"))
    spec = FragmentSpec(2, 3, 4, 2, *leaves, 3, has_value, every_state=every_state)
    fragments = Fragments.create(spec)
    try:
        found = fragments.columns(1, range(1, 3))
        if seed is not None:
            fill_with_noise(found, seed)
        yield found
        del found
    finally:
        fragments.close()


def fill_with_noise(found: Columns, seed: int) -> None:
    noise = np.random.default_rng(seed)
    for array in arrays_of(found):
        array[...] = noise.integers(0, 2, array.shape)


def arrays_of(found: Columns) -> list[Any]:
    arrays: list[Any] = []
    for field in found:
        arrays += list(field) if isinstance(field, (tuple, list)) else [field]
    return [array for array in arrays if array is not None]


@given(st.integers(0, 1000), st.booleans(), st.booleans())
def test_a_fragment_comes_back_as_it_was(seed: int, has_value: bool, every_state: bool) -> None:
    kinds = {"has_value": has_value, "every_state": every_state}
    with columns(seed, **kinds) as sent, columns(**kinds) as came:
        columns_from_frames(came, [bytes(frame) for frame in columns_to_frames(sent)])
        ended = sent.terminated | sent.truncated
        sparse = {id(array) for array in (*came.final, came.episode_return, came.episode_length)}
        for one, other in zip(arrays_of(sent), arrays_of(came), strict=True):
            if id(other) in sparse:
                assert np.array_equal(one[ended], other[ended])
                assert not other[~ended].any(), "nothing travels for places where no episode ended"
            else:
                assert np.array_equal(one, other)


@pytest.mark.parametrize("every_state", [False, True])
def test_frames_of_another_fragment_are_refused(every_state: bool) -> None:
    with columns(3, every_state=every_state) as sent, columns(every_state=every_state) as came:
        frames = [bytes(frame) for frame in columns_to_frames(sent)]
        for index in range(len(frames)):
            for worse in (frames[index] + b"\x00", frames[index][:-1]):
                if len(worse) != len(frames[index]):
                    with pytest.raises(ProtocolError):
                        columns_from_frames(came, [*frames[:index], worse, *frames[index + 1 :]])
        for worse_frames in ([], frames[:-1], [*frames, b""]):
            with pytest.raises(ProtocolError):
                columns_from_frames(came, worse_frames)


def test_ends_that_are_announced_must_come() -> None:
    """Flags say that episodes ended, and their values do not come with them."""
    with columns(0) as sent, columns() as came:
        sent.terminated[...] = sent.truncated[...] = False
        frames = [bytes(frame) for frame in columns_to_frames(sent)]
        flags = bytes(np.ones(sent.terminated.shape, bool))
        place = next(index for index, frame in enumerate(frames) if len(frame) == len(flags) and not any(frame))
        with pytest.raises(ProtocolError):
            columns_from_frames(came, [*frames[:place], flags, *frames[place + 1 :]])
