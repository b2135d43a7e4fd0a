"""What a batch of echo environments was asked and what it answered, and the search for what cannot have been.

A history is recorded while something else kills workers and cuts connections, and checked when all is over. See
`echo` for environments and policies whose transitions prove where they come from.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from clusterenv.errors import ConfigError
from clusterenv.testing.echo import CHOICES, NO_ACTION, Place

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    import numpy.typing as npt

    from clusterenv.env.batch import Batch

    Array = npt.NDArray[Any]


class Kind(enum.IntEnum):
    """What a row of a history tells.

    START: a reset by name. STEP: a step. LOST: a step that came back with the mark of a loss. RESET: the reset that
    follows an end or a loss. SEEN: a fragment begins with the observation that was the last one before. FRESH: a
    fragment begins with a reset, and has the mark of a loss. CUT: what came in between was given up, as when a stream
    is closed.
    """

    START = 0
    STEP = 1
    LOST = 2
    RESET = 3
    SEEN = 4
    FRESH = 5
    CUT = 6


class Row(NamedTuple):
    """One event of one slot.

    Attributes:
        kind: what happened.
        slot: where it was delivered.
        place: what was observed; of the end of an episode, its last observation.
        action: what was asked for.
        reward: the answer.
        terminated: the flag.
        truncated: the flag.
        version: the policy that acted, as labelled; -1 if the head acted.
        acted: the policy that acted, by its own account.
        newest: the newest version that there was.
    """

    kind: int
    slot: int
    place: Place
    action: int = NO_ACTION
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    version: int = -1
    acted: int = -1
    newest: int = -1


_DTYPE = np.dtype(
    [
        ("kind", np.int8),
        ("slot", np.int64),
        ("place", np.int64, (len(Place._fields),)),
        ("action", np.int64),
        ("reward", np.float64),
        ("terminated", np.bool_),
        ("truncated", np.bool_),
        ("version", np.int64),
        ("acted", np.int64),
        ("newest", np.int64),
    ]
)


class History:
    """Records what a batch of `EchoEnv` answers. Tell it of everything that was asked, in order.

    Args:
        num_envs: of the batch.
        autoreset_mode: of the batch.

    Example:
        >>> import clusterenv
        >>> from clusterenv.testing import check_history, echo_slots
        >>> envs = clusterenv.make_vec("clusterenv.testing:Echo-v0", 2, cluster="inproc", slot_kwargs=echo_slots(2))
        >>> history = History(2)
        >>> history.reset(envs.reset(seed=1)[0])
        >>> for number in range(30):
        ...     actions = np.array([number, number + 1])
        ...     history.step(actions, envs.step(actions))
        >>> check_history(history)
        []
        >>> envs.close()
    """

    def __init__(self, num_envs: int, autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP) -> None:
        self.num_envs, self._mode = num_envs, AutoresetMode(autoreset_mode)
        self._parts: list[Array] = []
        self._owes = np.zeros(num_envs, np.bool_)  # the next row of these slots is a reset

    def reset(self, observations: Array, slots: Array | None = None) -> None:
        """A reset by name, of all slots or of some; `observations` are those of the whole batch."""
        chosen = np.arange(self.num_envs) if slots is None else np.asarray(slots)
        self._add(self._rows(Kind.START, chosen, observations[chosen]))
        self._owes[chosen] = False

    def step(self, actions: Array, result: tuple[Any, ...]) -> None:
        """What `step(actions)`, or `recv()`, has returned; `actions` has one per slot of the batch."""
        observations, rewards, terminated, truncated, infos = result
        slots = infos.get("env_id", np.arange(self.num_envs))
        lost = infos.get("_worker_lost", np.zeros(len(slots), np.bool_))
        ended = terminated | truncated
        rows = self._rows(Kind.STEP, slots, observations)
        rows["kind"] = np.where(lost, Kind.LOST, np.where(self._owes[slots], Kind.RESET, Kind.STEP))
        rows["action"], rows["reward"] = np.asarray(actions)[slots], rewards
        rows["terminated"], rows["truncated"] = terminated, truncated
        if self._mode is AutoresetMode.SAME_STEP:
            told = np.flatnonzero(ended & infos.get("_final_obs", np.zeros(len(slots), np.bool_)))
            for row in told:
                rows["place"][row] = infos["final_obs"][row]
            self._add(rows)
            self._add(self._rows(Kind.RESET, slots[ended], observations[ended]))
            return
        self._add(rows)
        self._owes[slots] = ended & (self._mode is AutoresetMode.NEXT_STEP)

    def batch(self, batch: Batch) -> None:
        """What `rollout`, or a stream, has returned."""
        steps, width = batch.reward.shape
        rows = np.zeros((steps, width), _DTYPE)
        ended = batch.terminated | batch.truncated
        # An EchoEnv truncates no episode by itself.
        rows["kind"], rows["slot"] = np.where(batch.truncated, Kind.LOST, Kind.STEP), batch.slot
        rows["place"] = batch.obs[1:]
        rows["place"][batch.final_at] = batch.final_obs
        for name in ("action", "reward", "terminated", "truncated", "version"):
            rows[name] = getattr(batch, name)
        rows["acted"] = rows["version"] if batch.value is None else batch.value
        rows["newest"] = batch.version + batch.lag
        begins = self._rows(Kind.SEEN, batch.slot, batch.obs[0])
        owes = np.zeros(width, np.bool_)
        slots, earliest = np.unique(batch.slot, return_index=True)
        owes[earliest] = self._owes[slots]
        begins["kind"] = np.where(batch.worker_lost, Kind.FRESH, np.where(owes, Kind.RESET, Kind.SEEN))
        self._owes[slots] = False
        resets = self._rows(Kind.RESET, np.broadcast_to(batch.slot, ended.shape)[ended], batch.obs[1:][ended])
        # One column after the other: the same slot may come twice, with two fragments that follow each other.
        t, n = np.indices((steps, width))
        order = np.concatenate([np.arange(width) * 2 * (steps + 1), ((n * (steps + 1) + t) * 2 + 1).ravel()])
        order = np.concatenate([order, ((n * (steps + 1) + t) * 2 + 2)[ended]])
        self._add(np.concatenate([begins, rows.ravel(), resets])[np.argsort(order, kind="stable")])

    def cut(self) -> None:
        """Steps were taken that nobody will hear of: a stream was closed, or what was sent was given up."""
        slots = np.arange(self.num_envs)
        self._add(self._rows(Kind.CUT, slots, np.zeros((self.num_envs, len(Place._fields)), np.int64)))
        self._owes[:] = False

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[Row]:
        table = self.table
        for place, (kind, slot, _, *rest) in zip(table["place"].tolist(), table.tolist(), strict=True):
            yield Row(kind, slot, Place(*place), *rest)

    @property
    def table(self) -> Array:
        """All rows, as one structured array with the fields of `Row`."""
        self._parts = [np.concatenate([np.zeros(0, _DTYPE), *self._parts])]
        return self._parts[0]

    def counts(self) -> dict[str, int]:
        """How many rows of each kind there are."""
        kinds = self.table["kind"]
        return {kind.name.lower(): int((kinds == kind).sum()) for kind in Kind}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file of NumPy's."""
        with open(path, "wb") as file:
            np.save(file, self.table, allow_pickle=False)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> History:
        """Read what `save` wrote."""
        table = np.load(path, allow_pickle=False)
        if table.dtype != _DTYPE:
            raise ConfigError(f"{path} is no history: it has {table.dtype}.")
        found = cls(int(table["slot"].max(initial=-1)) + 1)
        found._add(table)
        return found

    def _rows(self, kind: Kind, slots: Array, places: Array) -> Array:
        rows = np.zeros(len(slots), _DTYPE)
        rows["kind"], rows["slot"], rows["place"] = kind, slots, places
        rows["action"] = NO_ACTION
        rows["version"] = rows["acted"] = rows["newest"] = -1
        return rows

    def _add(self, rows: Array) -> None:
        self._parts.append(rows)


class Violation(NamedTuple):
    """Something that cannot have been.

    Attributes:
        kind: "other slot", "double step", "repeated", "gap", "wrong action", "wrong flag", "wrong version",
            "version went back" or "wrong mark".
        row: which row of the history.
        slot: where it was delivered.
        text: what was expected, and what came.
    """

    kind: str
    row: int
    slot: int
    text: str


def check_history(history: History) -> list[Violation]:
    """Everything in a history that cannot have been; an empty list if all is well."""
    slots: dict[int, _Slot] = {}
    found: list[Violation] = []
    for index, row in enumerate(history):
        state = slots.setdefault(row.slot, _Slot())
        found += [Violation(kind, index, row.slot, text) for kind, text in state.take(row)]
    return sorted(found, key=lambda violation: violation.row)


class _Slot:
    """What is known of one slot while its rows go by."""

    def __init__(self) -> None:
        self._place: Place | None = None
        self._cut = True  # the next observation need not follow the last one
        self._lost = self._ended = False
        self._builds: set[int] = set()
        self._version = -1

    def take(self, row: Row) -> Iterator[tuple[str, str]]:
        """Check the next row; the kinds and texts of what is wrong with it."""
        kind = Kind(row.kind)
        if kind is Kind.CUT:
            self._cut, self._ended, self._lost = True, False, False
            return
        if kind is Kind.LOST:
            if row.terminated or not row.truncated:
                yield "wrong flag", f"a loss must be truncated: {row}"
            self._lost, self._ended, self._cut = True, False, False
            return
        if row.place.slot != row.slot:
            yield "other slot", f"slot {row.slot} got a transition of slot {row.place.slot}: {row}"
            return
        if kind is Kind.STEP:
            yield from self._step(row)
        elif kind is Kind.SEEN:
            yield from self._seen(row)
        else:
            yield from self._reset(kind, row)
        self._place, self._cut = row.place, False
        self._builds.add(row.place.build)
        self._ended, self._lost = kind is Kind.STEP and (row.terminated or row.truncated), False

    def _step(self, row: Row) -> Iterator[tuple[str, str]]:
        place, before = row.place, self._place
        if self._ended or self._lost:
            yield "gap", f"a step where a reset was owed: {row}"
        elif before is None or self._cut:
            yield from self._after_cut(place)
        elif place.build != before.build or place.episode != before.episode:
            yield "repeated" if self._old(place) else "gap", f"no mark between {before} and {place}"
        elif place.step != before.step + 1:
            double = place.step > before.step
            yield "double step" if double else "repeated", f"from {before} to {place}"
        if not row.action == place.action == row.reward:
            yield "wrong action", f"asked {row.action}, answered {row.reward}: {row}"
        if row.truncated or row.terminated != bool(place.last):
            yield "wrong flag", f"the environment says last={place.last}: {row}"
        if row.version >= 0:
            yield from self._label(row)

    def _label(self, row: Row) -> Iterator[tuple[str, str]]:
        if row.acted != row.version or row.action != row.version % CHOICES or row.version > row.newest:
            yield "wrong version", f"labelled {row.version}, acted {row.acted}: {row}"
        if row.version < self._version:
            yield "version went back", f"from {self._version} to {row.version}: {row}"
        self._version = row.version

    def _seen(self, row: Row) -> Iterator[tuple[str, str]]:
        before = self._place
        if self._cut or before is None:
            yield from self._after_cut(row.place)
        elif self._ended or self._lost:
            yield "gap", f"a fragment goes on where a reset was owed: {row}"
        elif row.place != before:
            yield "repeated" if self._old(row.place) else "gap", f"no mark between {before} and {row.place}"

    def _reset(self, kind: Kind, row: Row) -> Iterator[tuple[str, str]]:
        place, before = row.place, self._place
        if place.step or place.action != NO_ACTION or place.last:
            yield "gap", f"a reset must begin an episode: {row}"
        if row.terminated or row.truncated or row.reward:
            yield "wrong flag", f"a reset is no step: {row}"
        fresh = kind is Kind.FRESH or (kind is Kind.RESET and self._lost)
        if fresh and place.build in self._builds:
            yield "wrong mark", f"marked as lost, but build {place.build} goes on: {row}"
        if before is None or fresh:
            return
        if kind is Kind.RESET and not self._cut and (place.build, place.episode) != (before.build, before.episode + 1):
            yield "gap", f"after the end of {before} came {place}"
        elif self._old(place):
            yield "repeated", f"after {before} came {place}"

    def _after_cut(self, place: Place) -> Iterator[tuple[str, str]]:
        """Check the first row after steps that nobody heard of: the same environment goes on, or another has begun."""
        if self._old(place):
            yield "repeated", f"after {self._place} came {place}"

    def _old(self, place: Place) -> bool:
        """Whether this was before what came last."""
        before = self._place
        if before is None or place.build not in self._builds:
            return False
        return place.build != before.build or (place.episode, place.step) < (before.episode, before.step)
