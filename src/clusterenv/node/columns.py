"""A fragment as frames and back. What means something only where an episode ended travels for those places alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.wire.frames import array_of, expect, fill, frame_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from clusterenv.transport.fragments import Columns

    Array = npt.NDArray[Any]


def columns_to_frames(columns: Columns) -> list[memoryview]:
    """The frames of a fragment."""
    ended = np.nonzero(columns.terminated | columns.truncated)
    return [
        *(frame_of(array) for array in _dense(columns)),
        *(frame_of(array[ended]) for array in _sparse(columns)),
    ]


def columns_from_frames(columns: Columns, frames: Sequence[Any]) -> None:
    """Fill the columns from frames; ProtocolError if these are of another fragment."""
    dense, sparse = _dense(columns), _sparse(columns)
    expect(frames, len(dense) + len(sparse), "a fragment")
    for array, frame in zip(dense, frames, strict=False):
        fill(array, frame, "a fragment")
    ended = np.nonzero(columns.terminated | columns.truncated)
    for array, frame in zip(sparse, frames[len(dense) :], strict=True):
        array[ended] = array_of(frame, array.dtype, (len(ended[0]), *array.shape[2:]), "ends of episodes")


def _dense(columns: Columns) -> list[Array]:
    value = [] if columns.value is None else [columns.value]
    return [
        *columns.obs,
        *columns.state,
        columns.action,
        columns.reward,
        columns.terminated,
        columns.truncated,
        columns.first,
        columns.logp,
        columns.params,
        columns.version,
        *value,
        *(columns.states or []),
    ]


def _sparse(columns: Columns) -> list[Array]:
    return [*columns.final, columns.episode_return, columns.episode_length]
