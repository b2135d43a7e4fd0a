"""Rows of the head's arena as frames for one node, and the rows that come back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.errors import ProtocolError
from clusterenv.wire.frames import array_of, expect, fill, frame_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from clusterenv.transport.arena import Arena

    Slots = npt.NDArray[np.intp]


def results(arena: Arena) -> list[npt.NDArray[Any]]:
    """The arrays that workers write to, in the order in which they travel."""
    return [*arena.observation, arena.reward, arena.terminated, arena.truncated]


def copy_block(arena: Arena, block: range, frames: Sequence[Any]) -> None:
    """Put the rows of a block into the arena, after a reset."""
    arrays = results(arena)
    expect(frames, len(arrays), "rows of a reset")
    for array, frame in zip(arrays, frames, strict=True):
        fill(array[block.start : block.stop], frame, "rows of a reset")


def unanswered(arena: Arena, blocks: Sequence[range]) -> set[int]:
    """The workers that owe an answer to a step."""
    answered = arena.have == arena.want
    if answered.all():
        return set()
    return {worker for worker, block in enumerate(blocks) if not answered[block.start : block.stop].all()}


def living(blocks: Sequence[range], alive: Sequence[bool]) -> npt.NDArray[np.bool_] | None:
    """Which slots have a worker that is not lost; None if all have."""
    if all(alive):
        return None
    return np.concatenate([np.full(len(block), lives) for block, lives in zip(blocks, alive, strict=True)])


def step_frames(arena: Arena, slots: range, *, whole: bool, alive: npt.NDArray[np.bool_] | None) -> list[memoryview]:
    """[rows,] request numbers, actions: of all slots of a node, or of those that are asked for."""
    mine = slice(slots.start, slots.stop)
    if whole:
        return [frame_of(array[mine]) for array in (arena.want, *arena.action)]
    asked = arena.want[mine] != arena.have[mine]
    if alive is not None:
        asked = asked & alive
    rows = np.flatnonzero(asked).astype(np.int32)
    return [frame_of(rows), *(frame_of(array[mine][rows]) for array in (arena.want, *arena.action))]


def copy_rows(arena: Arena, slots: range, frames: Sequence[Any], *, whole: bool) -> Slots:
    """Put the rows of a node into the arena; returns the slots that were new. Old and repeated ones change nothing."""
    arrays = results(arena)
    expect(frames, (0 if whole else 1) + 1 + len(arrays), "rows")
    if whole:
        which: Any = slice(slots.start, slots.stop)
        count = len(slots)
    else:
        rows = array_of(frames[0], np.int32, (memoryview(frames[0]).nbytes // 4,), "rows")
        if len(rows) and (rows.min() < 0 or rows.max() >= len(slots)):
            raise ProtocolError(f"row {rows.max()} came from a node that has {len(slots)}.")
        which, count, frames = slots.start + rows, len(rows), frames[1:]
    numbers = array_of(frames[0], np.uint32, (count,), "request numbers")
    new = (numbers == arena.want[which]) & (arena.have[which] != arena.want[which])
    came = [array_of(f, a.dtype, (count, *a.shape[1:]), "rows") for f, a in zip(frames[1:], arrays, strict=True)]
    if not new.all():
        chosen = np.arange(slots.start, slots.stop) if whole else which
        which, came, numbers = chosen[new], [each[new] for each in came], numbers[new]
    for array, rows_of in zip(arrays, came, strict=True):
        array[which] = rows_of
    arena.have[which] = numbers
    found: Slots = np.arange(slots.start, slots.stop)[new] if whole else np.asarray(which, dtype=np.intp)
    return found
