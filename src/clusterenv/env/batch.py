"""What `rollout` and `stream` hand to the learner: a batch of fragments, as [T, N] arrays."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clusterenv import spaces

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt
    from gymnasium import Space

    from clusterenv.transport.fragments import Columns

    Array = npt.NDArray[Any]


class Episodes(NamedTuple):
    """The episodes that ended in a batch, in no particular order.

    Attributes:
        returns: [K] float64, the sum of rewards.
        lengths: [K] int64, the number of steps.
        slots: [K] int64, where.
    """

    returns: Any
    lengths: Any
    slots: Any


@dataclass(slots=True)
class Batch:
    """T steps of N slots, with all that a learner needs.

    Attributes:
        obs: [T + 1, N, ...], an array, or a dict or tuple of arrays as the observation space says. `obs[t + 1]` is
            what the environment showed after step t; after the end of an episode, the first of the next one.
        action: [T, N, ...], as the policy's distribution sampled it.
        reward: [T, N] float64.
        terminated: [T, N] bool.
        truncated: [T, N] bool; also True where an environment was lost and begun afresh.
        first: [T + 1, N] bool: `obs[t]` is the first of an episode.
        final_obs: [K, ...], as `obs`: the last observation of each of the K episodes that ended here.
        final_at: (t, n), two arrays [K]: where these episodes ended.
        logp: [T, N] float32, log-probability of the action under the policy that acted.
        params: [T, N, P] float32, the parameters of its distribution.
        value: [T, N] float32, its value, or None if it has none.
        version: [T, N] int64, the number of the policy that acted.
        epoch: of these versions.
        lag: [T, N] int64, the head's newest number minus `version`, when the batch was handed over.
        divergence: [N] float64, the last estimate for the worker of this slot.
        slot: [N] int64.
        state: the recurrent state before the first step, each [N, ...].
        worker_lost: [N] bool: the worker of this slot was lost before this fragment, which begins afresh.
        episodes: statistics of the episodes that ended here.
    """

    obs: Any
    action: Any
    reward: Any
    terminated: Any
    truncated: Any
    first: Any
    final_obs: Any
    final_at: tuple[Any, Any]
    logp: Any
    params: Any
    value: Any
    version: Any
    epoch: int
    lag: Any
    divergence: Any
    slot: Any
    state: tuple[Any, ...]
    worker_lost: Any
    episodes: Episodes

    @property
    def T(self) -> int:
        """The number of steps."""
        return int(self.reward.shape[0])

    @property
    def N(self) -> int:
        """The number of slots."""
        return int(self.reward.shape[1])

    @property
    def steps(self) -> int:
        """T times N."""
        return self.T * self.N

    def to(self, torch: Any, device: Any = "cpu") -> Batch:
        """The same with torch tensors on `device`; float64 becomes float32.

        Args:
            torch: the module, so that this library does not import it.
            device: where the tensors go.
        """

        def convert(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                # A copy also where the batch is a view of shared memory: the next rollout must not change a tensor.
                tensor = torch.from_numpy(np.array(value, dtype=np.float32 if value.dtype == np.float64 else None))
                return tensor.to(device, non_blocking=True)
            if isinstance(value, Episodes):
                return Episodes(*map(convert, value))
            if isinstance(value, tuple):
                return tuple(map(convert, value))
            if isinstance(value, dict):
                return {key: convert(part) for key, part in value.items()}
            return value

        return Batch(**{item.name: convert(getattr(self, item.name)) for item in dataclasses.fields(self)})


@dataclass(slots=True)
class Piece:
    """A fragment of some slots of one worker, on its way into a batch.

    Attributes:
        worker: who played it.
        columns: its arrays, views of shared memory.
        slots: [n], whose they are.
        final_at: (t, row) where episodes ended.
        final_obs: the leaves of the last observation of each.
        episodes: (t, row, return, length).
        afresh: the worker was lost before it.
    """

    worker: int
    columns: Columns
    slots: Array
    final_at: list[tuple[int, int]] = field(default_factory=list)
    final_obs: list[list[Any]] = field(default_factory=list)
    episodes: list[tuple[int, int, float, int]] = field(default_factory=list)
    afresh: bool = False

    def split(self, count: int) -> tuple[Piece, Piece]:
        """The first `count` slots, and the others."""
        return self._part(0, count), self._part(count, len(self.slots))

    def _part(self, start: int, stop: int) -> Piece:
        finals = [i for i, (_, row) in enumerate(self.final_at) if start <= row < stop]
        return Piece(
            self.worker,
            _sliced(self.columns, slice(start, stop)),
            self.slots[start:stop],
            [(self.final_at[i][0], self.final_at[i][1] - start) for i in finals],
            [self.final_obs[i] for i in finals],
            [(t, row - start, value, length) for t, row, value, length in self.episodes if start <= row < stop],
            self.afresh,
        )


def assemble(
    pieces: Sequence[Piece],
    whole: Columns | None,
    observation_space: Space[Any],
    *,
    epoch: int,
    newest: int,
    divergence: Array,
) -> Batch:
    """Make a batch.

    Args:
        pieces: whose fragments, side by side.
        whole: the columns of all pieces if they lie side by side in memory: then nothing is copied.
        observation_space: of one slot.
        epoch: of the versions.
        newest: the head's newest version number.
        divergence: [workers], the last estimates.
    """
    columns = whole or _joined([piece.columns for piece in pieces])
    finals, (final_t, final_n) = _finals(pieces, columns)
    return Batch(
        obs=spaces.assemble(observation_space, columns.obs),
        action=columns.action,
        reward=columns.reward,
        terminated=columns.terminated,
        truncated=columns.truncated,
        first=columns.first,
        final_obs=spaces.assemble(observation_space, finals),
        final_at=(final_t, final_n),
        logp=columns.logp,
        params=columns.params,
        value=columns.value,
        version=columns.version,
        epoch=epoch,
        lag=newest - columns.version,
        divergence=_per_slot(pieces, lambda piece: divergence[piece.worker], np.float64),
        slot=np.concatenate([piece.slots for piece in pieces]),
        state=tuple(columns.state),
        worker_lost=_per_slot(pieces, lambda piece: piece.afresh, np.bool_),
        episodes=_episodes(pieces),
    )


def copied(columns: Columns) -> Columns:
    """The same in memory of its own."""
    return _joined([columns])


def _sliced(columns: Columns, rows: slice) -> Columns:
    parts: dict[str, Any] = {
        name: None if value is None else value[:, rows]
        for name, value in columns._asdict().items()
        if name not in ("obs", "state")
    }
    return type(columns)(
        obs=[array[:, rows] for array in columns.obs], state=[array[rows] for array in columns.state], **parts
    )


def _joined(parts: Sequence[Columns]) -> Columns:
    first = parts[0]
    joined: dict[str, Any] = {
        name: None if value is None else np.concatenate([getattr(part, name) for part in parts], axis=1)
        for name, value in first._asdict().items()
        if name not in ("obs", "state")
    }
    return type(first)(
        obs=[np.concatenate([part.obs[i] for part in parts], axis=1) for i in range(len(first.obs))],
        state=[np.concatenate([part.state[i] for part in parts]) for i in range(len(first.state))],
        **joined,
    )


def _finals(pieces: Sequence[Piece], columns: Columns) -> tuple[list[Array], tuple[Array, Array]]:
    """The leaves of the last observations, and where in the batch their episodes ended."""
    at: list[tuple[int, int]] = []
    rows: list[list[Any]] = []
    start = 0
    for piece in pieces:
        at += [(t, start + row) for t, row in piece.final_at]
        rows += piece.final_obs
        start += len(piece.slots)
    leaves = []
    for leaf, array in enumerate(columns.obs):
        final = np.empty((len(rows), *array.shape[2:]), array.dtype)
        for index, row in enumerate(rows):
            final[index] = row[leaf]
        leaves.append(final)
    where = np.array(at, dtype=np.int64).reshape(-1, 2)
    return leaves, (where[:, 0], where[:, 1])


def _episodes(pieces: Sequence[Piece]) -> Episodes:
    ended = [(value, length, piece.slots[row]) for piece in pieces for _, row, value, length in piece.episodes]
    returns, lengths, slots = zip(*ended, strict=True) if ended else ((), (), ())
    return Episodes(np.array(returns, np.float64), np.array(lengths, np.int64), np.array(slots, np.int64))


def _per_slot(pieces: Sequence[Piece], value: Callable[[Piece], Any], dtype: Any) -> Array:
    return np.concatenate([np.full(len(piece.slots), value(piece), dtype) for piece in pieces])
