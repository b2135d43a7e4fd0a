"""Rows of the head's arena as frames for one node, and the rows that come back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.errors import ConfigError, ProtocolError
from clusterenv.transport.sockets import MAX_FRAME_BYTES
from clusterenv.wire.frames import array_of, expect, fill, frame_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from clusterenv.transport.arena import Arena

    Slots = npt.NDArray[np.intp]


def results(arena: Arena) -> list[npt.NDArray[Any]]:
    """The arrays that workers write to, in the order in which they travel."""
    return [*arena.observation, arena.reward, arena.terminated, arena.truncated]


def check_sizes(arena: Arena, slots: range, name: str) -> None:
    """Raise ConfigError if the rows of a node do not fit one message: the first step would break its connection."""
    rows = arena.spec.rows(slots)
    for what, arrays in (("observations", arena.observation), ("actions", arena.action)):
        size = max((array[rows].nbytes for array in arrays), default=0)
        if size > MAX_FRAME_BYTES:
            fit = MAX_FRAME_BYTES // (size // len(slots))
            instead = f"more nodes, with at most {fit} environments each" if fit else f"smaller {what}"
            raise ConfigError(
                f"the {len(slots)} environments of node {name} have {size:,} bytes of {what} in a step, more than the "
                f"{MAX_FRAME_BYTES:,} that go over the network at once. Use {instead}."
            )


def copy_block(arena: Arena, block: range, frames: Sequence[Any]) -> None:
    """Put the rows of a block into the arena, after a reset."""
    arrays = results(arena)
    expect(frames, len(arrays), "rows of a reset")
    for array, frame in zip(arrays, frames, strict=True):
        fill(array[block.start : block.stop], frame, "rows of a reset")


def unanswered(arena: Arena, blocks: Sequence[range]) -> set[int]:
    """The workers that owe an answer to a step."""
    if arena.have.tobytes() == arena.want.tobytes():  # the usual case, in a tenth of the time
        return set()
    answered = arena.have == arena.want
    return {worker for worker, block in enumerate(blocks) if not answered[block.start : block.stop].all()}


def living(blocks: Sequence[range], alive: Sequence[bool]) -> npt.NDArray[np.bool_] | None:
    """Which slots have a worker that is not lost; None if all have."""
    if all(alive):
        return None
    return np.concatenate([np.full(len(block), lives) for block, lives in zip(blocks, alive, strict=True)])


class WholeNode:
    """All rows of one node in lock step, as bytes of an arena: made once, since every step needs them.

    Args:
        arena: of the head, or of the node itself.
        slots: of the node.
    """

    def __init__(self, arena: Arena, slots: range) -> None:
        rows = arena.spec.rows(slots)
        self._want, self._have = arena.want[rows], arena.have[rows]
        # What travels in a request, and in its answer.
        self.asked = [frame_of(array[rows]) for array in (arena.want, *arena.action)]
        self.answered = [frame_of(array[rows]) for array in (arena.have, *results(arena))]

    def take_request(self, frames: Sequence[Any]) -> None:
        """Store the actions of a request, and then its numbers: a worker that is at work looks at those."""
        _check_came(self.asked, frames, "a step")
        for mine, came in zip(reversed(self.asked), reversed(frames), strict=True):
            mine[:] = came

    def take_answer(self, frames: Sequence[Any]) -> bool:
        """Store an answer, if it is the one that all rows wait for; otherwise nothing changes. Whether it was."""
        _check_came(self.answered, frames, "rows")
        if frames[0] != self.asked[0] or np.count_nonzero(self._have == self._want):
            return False
        for mine, came in zip(reversed(self.answered), reversed(frames), strict=True):
            mine[:] = came
        return True


def _check_came(expected: Sequence[memoryview], frames: Sequence[Any], what: str) -> None:
    expect(frames, len(expected), what)
    came, sizes = [memoryview(frame).nbytes for frame in frames], [len(mine) for mine in expected]
    if came != sizes:
        raise ProtocolError(f"{what}: frames of {came} bytes arrived, {sizes} were expected.")


def step_frames(arena: Arena, slots: range, alive: npt.NDArray[np.bool_] | None) -> list[memoryview]:
    """Rows, request numbers, actions: of the slots of a node that are asked for."""
    mine = slice(slots.start, slots.stop)
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
