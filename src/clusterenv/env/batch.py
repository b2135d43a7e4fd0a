"""What `rollout` and `stream` hand to the learner: a batch of fragments, as [T, N] arrays."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clusterenv import spaces
from clusterenv.errors import ConfigTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt
    from gymnasium import Space

    from clusterenv.transport.fragments import Columns

    Array = npt.NDArray[Any]


class Episodes(NamedTuple):
    """The episodes that ended in a batch: those of one slot in the order in which they ended, slots in any order.

    An episode that ended with "episode_continues" in its info, such as a life in an Atari game, is a part of the one
    that follows, and is told with it.

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
        action: [T, N, ...], as the policy's distribution sampled it: choices count from 0 (int64), switches are
            those of their space (int8), numbers are not clipped (float32). Its `to_env` makes of them what the
            environment got, in the dtype of its space.
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
        divergence: [N] float64, how far the worker of this slot was from the newest policy when that was last measured:
            at a publish, before weights moved because of it. NaN if it was never measured.
        slot: [N] int64.
        state: the recurrent state before the first step, each [N, ...].
        worker_lost: [N] bool: the worker of this slot was lost before this fragment, which begins afresh.
        episodes: statistics of the episodes that ended here.
        states: the recurrent state before every step, each [T, N, ...], if `attach(every_state=True)` asked for
            it; else None.
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
    states: tuple[Any, ...] | None = None

    def __repr__(self) -> str:
        """What fits into a line: whole arrays would fill the screen."""
        versions = f"{int(self.version.min())} to {int(self.version.max())}" if self.steps else "none"
        return f"Batch(T={self.T}, N={self.N}, episodes ended: {len(self.final_at[0])}, versions: {versions})"

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

        Raises:
            ConfigTypeError: it is not torch.
        """
        if not hasattr(torch, "from_numpy"):
            raise ConfigTypeError(f"to({torch!r}) must be given the module torch: `import torch; batch.to(torch)`.")
        here = torch.device(device).type == "cpu"

        def convert(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                dtype = np.float32 if value.dtype == np.float64 else value.dtype
                # On the way to another device it is copied anyway. Here too: a batch may be a view of shared memory,
                # and the next rollout must not change a tensor.
                array = np.array(value, dtype) if here or not value.flags.writeable else np.asarray(value, dtype)
                return torch.from_numpy(array).to(device, non_blocking=True)
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
        afresh: the worker was lost before it.
    """

    worker: int
    columns: Columns
    slots: Array
    afresh: bool = False

    def split(self, count: int) -> tuple[Piece, Piece]:
        """The first `count` slots, and the others."""
        return self._part(slice(0, count)), self._part(slice(count, None))

    def copied(self) -> Piece:
        """The same in memory of its own."""
        parts: dict[str, Any] = {
            name: None if value is None else [np.array(each) for each in value] if name in _LISTS else np.array(value)
            for name, value in self.columns._asdict().items()
        }
        return Piece(self.worker, type(self.columns)(**parts), self.slots, self.afresh)

    def _part(self, rows: slice) -> Piece:
        return Piece(self.worker, _sliced(self.columns, rows), self.slots[rows], self.afresh)


def assemble(
    pieces: Sequence[Piece],
    whole: Columns | None,
    observation_space: Space[Any],
    *,
    epoch: int,
    newest: int,
    divergence: Array,
    final: list[Array] | None = None,
) -> Batch:
    """Make a batch.

    Args:
        pieces: whose fragments, side by side.
        whole: the columns of all pieces if they lie side by side in memory: then nothing is copied.
        observation_space: of one slot.
        epoch: of the versions.
        newest: the head's newest version number.
        divergence: [workers], the last measurements.
        final: the leaves of the last observations of the episodes that ended, piece by piece and step by step, if the
            pieces do not have them.
    """
    slots = np.concatenate([piece.slots for piece in pieces])
    ended = [(piece.columns.terminated | piece.columns.truncated).nonzero() for piece in pieces]
    columns = whole or _joined([piece.columns for piece in pieces])
    return Batch(
        obs=spaces.assemble(observation_space, columns.obs),
        action=columns.action,
        reward=columns.reward,
        terminated=columns.terminated,
        truncated=columns.truncated,
        first=columns.first,
        final_obs=spaces.assemble(observation_space, _finals(pieces, ended) if final is None else final),
        final_at=_where(pieces, ended),
        logp=columns.logp,
        params=columns.params,
        value=columns.value,
        version=columns.version,
        epoch=epoch,
        lag=newest - columns.version,
        divergence=_per_slot(pieces, lambda piece: divergence[piece.worker], np.float64),
        slot=slots,
        state=tuple(columns.state),
        worker_lost=_per_slot(pieces, lambda piece: piece.afresh, np.bool_),
        episodes=_episodes(pieces, ended),
        states=None if columns.states is None else tuple(columns.states),
    )


def copied(columns: Columns) -> Columns:
    """What a batch takes from these columns, in memory of its own; what it takes only of episode ends is left out."""
    return _joined([columns])


# The lists of arrays in a Columns. And what only means something where an episode ended: `assemble` takes it from the
# pieces, so joined columns are without it.
_LISTS = ("obs", "state", "final", "states")
_SPARSE = ("final", "episode_return", "episode_length")


def _sliced(columns: Columns, rows: slice) -> Columns:
    parts: dict[str, Any] = {
        name: None if value is None else value[:, rows]
        for name, value in columns._asdict().items()
        if name not in _LISTS
    }
    return type(columns)(
        obs=[array[:, rows] for array in columns.obs],
        state=[array[rows] for array in columns.state],
        final=[array[:, rows] for array in columns.final],
        states=None if columns.states is None else [array[:, rows] for array in columns.states],
        **parts,
    )


def _joined(parts: Sequence[Columns]) -> Columns:
    first = parts[0]
    joined: dict[str, Any] = {
        name: None if value is None or name in _SPARSE else np.concatenate([getattr(p, name) for p in parts], axis=1)
        for name, value in first._asdict().items()
        if name not in _LISTS
    }
    states = None if first.states is None else [part.states or [] for part in parts]
    return type(first)(
        obs=_side_by_side([part.obs for part in parts]),
        state=[np.concatenate([part.state[i] for part in parts]) for i in range(len(first.state))],
        final=[],
        states=None if states is None else _side_by_side(states),
        **joined,
    )


def _side_by_side(parts: Sequence[list[Array]]) -> list[Array]:
    """Leaf by leaf, [T, n, ...] each."""
    return [np.concatenate(leaves, axis=1) for leaves in zip(*parts, strict=True)]


def _finals(pieces: Sequence[Piece], ended: Sequence[tuple[Array, ...]]) -> list[Array]:
    """The leaves of the last observations, piece by piece."""
    leaves = range(len(pieces[0].columns.final))
    return [np.concatenate([p.columns.final[leaf][at] for p, at in zip(pieces, ended, strict=True)]) for leaf in leaves]


def _where(pieces: Sequence[Piece], ended: Sequence[tuple[Array, ...]]) -> tuple[Array, Array]:
    """(t, n) in the batch of these episodes' ends."""
    sizes = [len(piece.slots) for piece in pieces]
    starts = np.cumsum([0, *sizes[:-1]])
    times = np.concatenate([at[0] for at in ended])
    return times, np.concatenate([at[1] + start for at, start in zip(ended, starts, strict=True)])


def _episodes(pieces: Sequence[Piece], ended: Sequence[tuple[Array, ...]]) -> Episodes:
    """Those that were seen from their beginning."""
    lengths = [p.columns.episode_length[at] for p, at in zip(pieces, ended, strict=True)]
    whole = np.concatenate(lengths) > 0
    returns = [p.columns.episode_return[at] for p, at in zip(pieces, ended, strict=True)]
    slots = [p.slots[at[1]] for p, at in zip(pieces, ended, strict=True)]
    return Episodes(np.concatenate(returns)[whole], np.concatenate(lengths)[whole], np.concatenate(slots)[whole])


def _per_slot(pieces: Sequence[Piece], value: Callable[[Piece], Any], dtype: Any) -> Array:
    return np.repeat(np.array([value(piece) for piece in pieces], dtype), [len(piece.slots) for piece in pieces])
