"""Unrolls in the making, of slots that each go at their own pace.

Arrays in, arrays out: it knows neither environments nor networks.

A slot has a lane, which is one column of [T, lanes] arrays, and a place in it. It is asked for an action, then its
environment answers. After T steps the unroll stays where it is until it becomes part of a batch, and the slot goes on
in another lane, with the observation that the unroll ended with. So whoever acts never waits for a copy of a batch:
that is made by whoever wants one, in a thread of its own.

After the last step of an episode a slot is asked once more, for a reset: the environments are in Gymnasium's mode
NEXT_STEP, where the last observation of an episode comes as the observation of its step, without a message.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

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


class Unrolls(NamedTuple):
    """Whole unrolls, which wait in their lanes to become part of a batch.

    Attributes:
        lanes: [n], where they are.
        slots: [n], whose they are.
        afresh: [n] bool, the worker was lost before it.
        states: the recurrent states before the steps of each, [steps, n, ...], or only before the first.
    """

    lanes: Slots
    slots: Slots
    afresh: Flags
    states: list[Array]

    def split(self, count: int) -> tuple[Unrolls, Unrolls]:
        """The first `count`, and the others."""
        return self._part(slice(0, count)), self._part(slice(count, None))

    def _part(self, some: slice) -> Unrolls:
        states = [kept[:, some] for kept in self.states]
        return Unrolls(self.lanes[some], self.slots[some], self.afresh[some], states)


class Gathered(NamedTuple):
    """Unrolls side by side, in memory of their own.

    Attributes:
        columns: [T, n] arrays, without `final`.
        final: the leaves of the last observation of each episode that ended here, [K, ...], step by step.
        slots: [n], whose unrolls these are.
        afresh: [n] bool, the worker was lost before it.
    """

    columns: Columns
    final: list[Array]
    slots: Slots
    afresh: Flags


class Gathering:
    """The unrolls of all slots.

    Args:
        spec: their sizes; of one buffer.
        spare: how many whole unrolls may wait for `gather`.
        states: tells the recurrent states before the steps of these slots' unrolls, each [steps, n, ...]; asked when
            they are whole. The first is enough if the spec does not want them all.

    Example:
        >>> from clusterenv.spaces import Leaf
        >>> from clusterenv.transport.fragments import FragmentSpec
        >>> number = Leaf((), np.dtype(np.float32))
        >>> spec = FragmentSpec(1, 2, 1, 1, (number,), (), Leaf((), np.dtype(np.int64)), 1, has_value=False)
        >>> unrolls = Gathering(spec, spare=1)
        >>> slots, no = np.arange(1), np.zeros(1, bool)
        >>> unrolls.begin([np.zeros(1, np.float32)]).at
        array([0])
        >>> for step in (1, 2):
        ...     unrolls.acted(slots, np.zeros(1, int), np.zeros(1), np.zeros((1, 1)), None, version=0)
        ...     asked = unrolls.answered(Answers(slots, [np.full(1, step, np.float32)], np.ones(1), no, no))
        >>> unrolls.gather(unrolls.take()).columns.obs[0].tolist(), asked.at
        ([[0.0], [1.0], [2.0]], array([0]))
    """

    def __init__(
        self, spec: FragmentSpec, states: Callable[[Slots], Sequence[Array]] | None = None, *, spare: int
    ) -> None:
        self.spec, self._states = spec, states
        count = spec.num_envs
        self._columns = _columns(replace(spec, num_envs=count + spare))
        self._lane = np.arange(count)  # of each slot
        self._free = deque(range(count, count + spare))  # who acts takes from it, who gathers adds to it
        self._at = np.zeros(count, np.intp)  # the step that each slot is at
        self._resetting = np.zeros(count, np.bool_)
        self._afresh = np.zeros(count, np.bool_)  # the unroll begins with a fresh environment, after a loss
        self._returns, self._lengths = np.zeros(count, np.float64), np.zeros(count, np.int64)
        self._whole: list[Unrolls] = []

    def begin(self, obs: list[Array]) -> Asked:
        """All slots show the first observations of episodes."""
        slots = np.arange(self.spec.num_envs)
        self._show(slots, obs, np.ones(len(slots), np.bool_))
        return self._asked(slots, obs, np.ones(len(slots), np.bool_), slots[:0])

    def acted(
        self, slots: Slots, action: Array, logp: Array, params: Array, value: Array | None, *, version: int
    ) -> None:
        """These slots, which waited for actions, were given them."""
        at, lanes, columns = self._at[slots], self._lane[slots], self._columns
        columns.action[at, lanes] = action
        columns.logp[at, lanes] = logp
        columns.params[at, lanes] = params
        columns.version[at, lanes] = version
        if columns.value is not None:
            columns.value[at, lanes] = value

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

    def take(self) -> list[Unrolls]:
        """The unrolls that have become whole since the last call, to be given to `gather` sooner or later."""
        whole, self._whole = self._whole, []
        return whole

    def gather(self, unrolls: Sequence[Unrolls]) -> Gathered:
        """Copy these side by side; their lanes are free again. Any thread may do that, while another one acts."""
        lanes = np.concatenate([each.lanes for each in unrolls])
        parts = {name: _taken(part, lanes) for name, part in self._columns._asdict().items() if name != "final"}
        t, n = (parts["terminated"] | parts["truncated"]).nonzero()
        final = [array[t, lanes[n]] for array in self._columns.final]
        self._free.extend(lanes.tolist())
        states = [np.concatenate(kept, axis=1) for kept in zip(*(each.states for each in unrolls), strict=True)]
        parts["state"] = [kept[0] for kept in states]
        parts["states"] = states if self.spec.every_state else None
        slots, afresh = (np.concatenate([getattr(each, name) for each in unrolls]) for name in ("slots", "afresh"))
        return Gathered(Columns(final=[], **parts), final, slots, afresh)

    def _stepped(self, answers: Answers, ended: Flags) -> None:
        """The steps of these slots are over."""
        slots, columns = answers.slots, self._columns
        at, lanes = self._at[slots], self._lane[slots]
        columns.reward[at, lanes] = answers.reward
        columns.terminated[at, lanes] = answers.terminated
        columns.truncated[at, lanes] = answers.truncated
        self._returns[slots] += answers.reward
        self._lengths[slots] += 1
        self._at[slots] += 1
        if ended.any():
            self._end_episodes(_rows(answers, ended), at[ended])

    def _end_episodes(self, answers: Answers, at: Slots) -> None:
        slots, columns = answers.slots, self._columns
        lanes = self._lane[slots]
        for kept, last in zip(columns.final, answers.obs, strict=True):
            kept[at, lanes] = last
        columns.episode_length[at, lanes] = 0  # there is nothing to tell
        over = np.ones(len(slots), np.bool_) if answers.continues is None else ~answers.continues
        # An episode that was cut because its environment raised has no return worth telling.
        whole = over if answers.failed is None else over & ~answers.failed
        columns.episode_return[at[whole], lanes[whole]] = self._returns[slots[whole]]
        columns.episode_length[at[whole], lanes[whole]] = self._lengths[slots[whole]]
        self._returns[slots[over]], self._lengths[slots[over]] = 0.0, 0

    def _lose(self, slots: Slots) -> None:
        """What was played of these unrolls is void: they begin again, in fresh environments."""
        self._at[slots] = 0
        self._afresh[slots] = True
        self._returns[slots], self._lengths[slots] = 0.0, 0

    def _show(self, slots: Slots, obs: list[Array], first: Flags) -> None:
        at, lanes = self._at[slots], self._lane[slots]
        for column, leaf in zip(self._columns.obs, obs, strict=True):
            column[at, lanes] = leaf
        self._columns.first[at, lanes] = first

    def _complete(self, slots: Slots) -> None:
        """Leave whole unrolls where they are, and begin the next elsewhere with what was seen last."""
        done = slots[self._at[slots] == self.spec.steps]
        if not len(done):
            return
        old, new = (
            self._lane[done],
            np.array([self._free.pop() for _ in done]),
        )  # the last ones first: others may never be touched
        states = [] if self._states is None else list(self._states(done))
        self._whole.append(Unrolls(old, done, self._afresh[done], states))
        for column in (*self._columns.obs, self._columns.first):
            column[0, new] = column[self.spec.steps, old]
        self._lane[done] = new
        self._at[done], self._afresh[done] = 0, False

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


def _taken(part: Any, lanes: Slots) -> Any:
    """These lanes of one part of the columns."""
    if isinstance(part, list):
        return [_taken(array, lanes) for array in part]
    return None if part is None else np.take(part, lanes, axis=1)  # it lets other threads go on meanwhile


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
