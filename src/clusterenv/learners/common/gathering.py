"""Unrolls in the making, of slots that each go at their own pace.

Arrays in, arrays out: it knows neither environments nor networks.

A slot has a lane, which is one column of [T, N] arrays, and a place in it. It is asked for an action, then its
environment answers; after T steps its column is copied out as a piece of a batch, and the lane begins again with the
observation that the piece ended with.

After the last step of an episode a slot is asked once more, for a reset: the environments are in Gymnasium's mode
NEXT_STEP, where the last observation of an episode comes as the observation of its step, without a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clusterenv.env.batch import Piece
from clusterenv.transport.fragments import Columns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from clusterenv.transport.fragments import FragmentSpec

    Array = npt.NDArray[Any]
    Flags = npt.NDArray[np.bool_]
    Slots = npt.NDArray[np.intp]


class Answers(NamedTuple):
    """What came back from some slots, one row each.

    Attributes:
        slots: [n], whose rows these are; none twice.
        obs: the leaves of the observations, each [n, ...].
        reward: [n] float64.
        terminated: [n] bool.
        truncated: [n] bool.
        lost: [n] bool, the worker was lost: a fresh environment waits for its reset. None for nowhere.
        failed: [n] bool, the environment raised, and another took its place. None for nowhere.
        continues: [n] bool, what ended is no whole episode (`EPISODE_CONTINUES`). None for nowhere.
    """

    slots: Slots
    obs: list[Array]
    reward: Array
    terminated: Flags
    truncated: Flags
    lost: Flags | None = None
    failed: Flags | None = None
    continues: Flags | None = None


class Asked(NamedTuple):
    """What is to be done for slots that have answered.

    Attributes:
        act: [a] slots that wait for an action.
        obs: the leaves of what they see, each [a, ...].
        first: [a] bool, it is the first observation of an episode.
        at: [a], the step of its unroll that the action is for; 0 where one begins.
        reset: [r] slots whose next request is a reset.
    """

    act: Slots
    obs: list[Array]
    first: Flags
    at: Slots
    reset: Slots


class Gathering:
    """The unrolls of all slots.

    Args:
        spec: their sizes; of one buffer.
        states: tells the recurrent states before the steps of these slots' unrolls, each [steps, n, ...]; asked when
            they are whole. The first is enough if the spec does not want them all.

    Example:
        >>> from clusterenv.spaces import Leaf
        >>> from clusterenv.transport.fragments import FragmentSpec
        >>> number = Leaf((), np.dtype(np.float32))
        >>> spec = FragmentSpec(1, 2, 1, 1, (number,), (), Leaf((), np.dtype(np.int64)), 1, has_value=False)
        >>> unrolls = Gathering(spec)
        >>> slots, no = np.arange(1), np.zeros(1, bool)
        >>> unrolls.begin([np.zeros(1, np.float32)]).at
        array([0])
        >>> for step in (1, 2):
        ...     unrolls.acted(slots, np.zeros(1, int), np.zeros(1), np.zeros((1, 1)), None, version=0)
        ...     asked = unrolls.answered(Answers(slots, [np.full(1, step, np.float32)], np.ones(1), no, no))
        >>> [piece.columns.obs[0].tolist() for piece in unrolls.take()], asked.at
        ([[[0.0], [1.0], [2.0]]], array([0]))
    """

    def __init__(self, spec: FragmentSpec, states: Callable[[Slots], Sequence[Array]] | None = None) -> None:
        self.spec, self._states = spec, states
        count = spec.num_envs
        self._columns = _columns(spec)
        self._at = np.zeros(count, np.intp)  # the step that each slot is at
        self._resetting = np.zeros(count, np.bool_)
        self._afresh = np.zeros(count, np.bool_)  # the unroll begins with a fresh environment, after a loss
        self._returns, self._lengths = np.zeros(count, np.float64), np.zeros(count, np.int64)
        self._pieces: list[Piece] = []

    def begin(self, obs: list[Array]) -> Asked:
        """All slots show the first observations of episodes."""
        slots = np.arange(self.spec.num_envs)
        self._show(slots, obs, np.ones(len(slots), np.bool_))
        return self._asked(slots, obs, np.ones(len(slots), np.bool_), slots[:0])

    def acted(
        self, slots: Slots, action: Array, logp: Array, params: Array, value: Array | None, *, version: int
    ) -> None:
        """These slots, which waited for actions, were given them."""
        at, columns = self._at[slots], self._columns
        columns.action[at, slots] = action
        columns.logp[at, slots] = logp
        columns.params[at, slots] = params
        columns.version[at, slots] = version
        if columns.value is not None:
            columns.value[at, slots] = value

    def answered(self, answers: Answers) -> Asked:
        """Take what came back; whole unrolls are kept for `take`."""
        slots, lost = answers.slots, answers.lost
        fresh = self._resetting[slots]
        ended = answers.terminated | answers.truncated
        plain = lost is None and not fresh.any()
        if plain:
            self._stepped(answers, ended)
        else:
            gone = np.zeros_like(fresh) if lost is None else lost
            self._stepped(_rows(answers, ~fresh & ~gone), ended[~fresh & ~gone])
            self._lose(slots[gone])
            ended = ended | gone
        self._resetting[slots] = ended
        if plain and not ended.any():
            shown, first = answers, fresh
        else:
            shown, first = _rows(answers, ~ended), fresh[~ended]
        self._show(shown.slots, shown.obs, first)
        self._complete(shown.slots)
        return self._asked(shown.slots, shown.obs, first, slots[ended])

    def take(self) -> list[Piece]:
        """The unrolls that have become whole since the last call."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def _stepped(self, answers: Answers, ended: Flags) -> None:
        """The steps of these slots are over."""
        slots, columns = answers.slots, self._columns
        at = self._at[slots]
        columns.reward[at, slots] = answers.reward
        columns.terminated[at, slots] = answers.terminated
        columns.truncated[at, slots] = answers.truncated
        self._returns[slots] += answers.reward
        self._lengths[slots] += 1
        self._at[slots] += 1
        if ended.any():
            self._end_episodes(_rows(answers, ended), at[ended])

    def _end_episodes(self, answers: Answers, at: Slots) -> None:
        slots, columns = answers.slots, self._columns
        for kept, last in zip(columns.final, answers.obs, strict=True):
            kept[at, slots] = last
        columns.episode_length[at, slots] = 0  # there is nothing to tell
        over = np.ones(len(slots), np.bool_) if answers.continues is None else ~answers.continues
        # An episode that was cut because its environment raised has no return worth telling.
        whole = over if answers.failed is None else over & ~answers.failed
        columns.episode_return[at[whole], slots[whole]] = self._returns[slots[whole]]
        columns.episode_length[at[whole], slots[whole]] = self._lengths[slots[whole]]
        self._returns[slots[over]], self._lengths[slots[over]] = 0.0, 0

    def _lose(self, slots: Slots) -> None:
        """What was played of these unrolls is void: they begin again, in fresh environments."""
        self._at[slots] = 0
        self._afresh[slots] = True
        self._returns[slots], self._lengths[slots] = 0.0, 0

    def _show(self, slots: Slots, obs: list[Array], first: Flags) -> None:
        at = self._at[slots]
        for column, leaf in zip(self._columns.obs, obs, strict=True):
            column[at, slots] = leaf
        self._columns.first[at, slots] = first

    def _complete(self, slots: Slots) -> None:
        """Copy whole unrolls out, and begin the next with what was seen last."""
        done = slots[self._at[slots] == self.spec.steps]
        if not len(done):
            return
        columns = self._columns
        for afresh in (False, True):
            some = done[self._afresh[done] == afresh]
            if len(some):
                self._pieces.append(Piece(0, self._copied(some), some, afresh))
        for column in (*columns.obs, columns.first):
            column[0, done] = column[self.spec.steps, done]
        self._at[done], self._afresh[done] = 0, False

    def _copied(self, slots: Slots) -> Columns:
        parts: dict[str, Any] = {
            name: [array[:, slots] for array in part]
            if isinstance(part, list)
            else None
            if part is None
            else part[:, slots]
            for name, part in self._columns._asdict().items()
        }
        states = [] if self._states is None else list(self._states(slots))
        parts["state"] = [kept[0] for kept in states]
        parts["states"] = states if self.spec.every_state else None
        return Columns(**parts)

    def _asked(self, slots: Slots, obs: list[Array], first: Flags, reset: Slots) -> Asked:
        return Asked(slots, obs, first, self._at[slots], reset)


def _rows(answers: Answers, mask: Flags) -> Answers:
    """Some of the rows."""

    def some(flags: Flags | None) -> Flags | None:
        return None if flags is None else flags[mask]

    return Answers(
        answers.slots[mask],
        [leaf[mask] for leaf in answers.obs],
        answers.reward[mask],
        answers.terminated[mask],
        answers.truncated[mask],
        some(answers.lost),
        some(answers.failed),
        some(answers.continues),
    )


def _columns(spec: FragmentSpec) -> Columns:
    """Memory for one buffer, in this process."""
    arrays: dict[str, Any] = {
        field.name: np.zeros(field.shape[1:], field.dtype)
        for field in spec.layout()
        if field.name != "progress" and not field.name.startswith("state")
    }
    count = len(spec.observation)
    return Columns(
        obs=[arrays.pop(f"obs{leaf}") for leaf in range(count)],
        final=[arrays.pop(f"final{leaf}") for leaf in range(count)],
        state=[],
        states=None,
        value=arrays.pop("value", None),
        **arrays,
    )
