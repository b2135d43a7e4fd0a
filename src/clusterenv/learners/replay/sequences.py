"""A memory of sequences, with the recurrent state that the policy had before each."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clusterenv.errors import ConfigError
from clusterenv.learners.replay.acting_values import ActingValues, refuse_bad_values, refuse_half
from clusterenv.learners.replay.cutting import Cutting
from clusterenv.learners.replay.lanes import BEGINS, ENDED, FIRST, STATE, TERMINATED, TRUNCATED, Lanes, rounds
from clusterenv.learners.replay.memory import Replay
from clusterenv.learners.replay.priorities import Priorities, refuse_no_count

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import numpy.typing as npt
    from gymnasium import Space

    from clusterenv.env.batch import Batch
    from clusterenv.learners.replay.disk import Saved
    from clusterenv.spaces import Leaf

    Array = npt.NDArray[Any]


class Sequences(NamedTuple):
    """B sequences of L = burn_in + length steps, each of one episode.

    What is learned from always begins at index `burn_in` of the memory. Where fewer steps come before it, the sequence
    begins with its episode: `first` is True there, and what lies before is padding. So is what lies after the end of an
    episode. All padding is zero.

    Attributes:
        obs: [L + 1, B, ...], an array, or a dict or tuple of arrays as the observation space says. After the last step
            comes what was seen then, also where the episode was truncated; where it terminated, padding.
        action: [L, B, ...].
        reward: [L, B] float32.
        terminated: [L, B] bool.
        truncated: [L, B] bool; also where a worker was lost.
        first: [L + 1, B] bool, the first observation of an episode, before which the recurrent state is zero.
        state: before index 0, each [B, ...].
        mask: [L, B] bool, the steps to learn from: neither burn-in nor padding.
        burn_in: [B] int64, how many steps there are before those.
    """

    obs: Any
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    first: Array
    state: tuple[Array, ...]
    mask: Array
    burn_in: Array


class Acted(NamedTuple):
    """What the policy that acted thought of B sequences: of their `length` steps to learn from.

    Attributes:
        reward: [length, B] float32.
        terminated: [length, B] bool.
        truncated: [length, B] bool; also where a worker was lost.
        mask: [length, B] bool, where there is a step; the episode ended before the others.
        taken: [length, B] float32, the value of the action that was taken.
        following: [length, B] float32, the largest value of an action after the step. NaN where the policy did not act
            again, because the episode ended there, or has not yet.
    """

    reward: Array
    terminated: Array
    truncated: Array
    mask: Array
    taken: Array
    following: Array


class _Episode(NamedTuple):
    """Where the cutting of a lane is: its episode's first step, whether that was seen, and the next sequences."""

    begin: int
    seen: bool
    origin: int
    start: int


class SequenceReplay(Replay[Sequences]):
    """The last `capacity` steps, drawn as overlapping sequences that never cross the end of an episode.

    A sequence leaves when its first step of burn-in does. Its id is the number of the first step to learn from:
    `k * slots + slot` for the k-th step of a slot.

    Args:
        observation_space: of one slot.
        action: one action as the policy's distribution samples it.
        state: the leaves of one recurrent state; empty to store none.
        slots: how many there are; each gets an equal share of the capacity.
        capacity: in steps.
        length: steps to learn from.
        burn_in: steps before those, fewer at the start of an episode.
        overlap: steps that a sequence shares with the one before.
        prioritized: draw by priority; otherwise all alike.
        alpha: how much the priority counts: P(i) is in proportion to p_i^alpha.
        beta: how much of the bias of that is corrected by the weights.
        seed: of the drawing.
        stacked: images are stacks of frames, the newest last, as those of Atari: keep each frame once.
        folder: keep observations in a file there, and not in memory. It is gone with the process.
        about: what else must be the same where something saved is loaded, such as what was done to rewards.

    Example:
        >>> from gymnasium.spaces import Box
        >>> from clusterenv.spaces import Leaf
        >>> action = Leaf((), np.dtype(np.int64))
        >>> replay = SequenceReplay(Box(-1, 1, (3,)), action, slots=2, capacity=1000, length=20, burn_in=10, overlap=10)
        >>> len(replay)
        0
    """

    kind = "sequence"
    _priorities: Priorities

    def __init__(
        self,
        observation_space: Space[Any],
        action: Leaf,
        state: tuple[Leaf, ...] = (),
        *,
        slots: int,
        capacity: int,
        length: int,
        burn_in: int = 0,
        overlap: int = 0,
        prioritized: bool = False,
        alpha: float = 0.9,
        beta: float = 0.6,
        seed: int = 0,
        stacked: bool = False,
        folder: str | os.PathLike[str] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        refuse_no_count(slots=slots, capacity=capacity, length=length, burn_in=burn_in, overlap=overlap)
        if min(slots, length) < 1 or burn_in < 0 or not 0 <= overlap < length:
            raise ConfigError(
                f"slots={slots}, length={length}, burn_in={burn_in}, overlap={overlap}: there must be at least one "
                "slot and one step to learn from, and each sequence must bring new steps: overlap from 0 to length - 1."
            )
        steps, least = -(-capacity // slots), 2 * (burn_in + length)
        if steps < least:
            raise ConfigError(
                f"capacity={capacity} gives {steps} steps to each of {slots} slots, too few for sequences of "
                f"{burn_in + length}. Raise it to at least {slots * least}."
            )
        lanes = Lanes(
            observation_space,
            action,
            slots=slots,
            steps=steps,
            state=state,
            stacked=stacked,
            folder=folder,
            beside=lambda steps: Priorities.bytes_of(steps) + (ActingValues.bytes_of(steps) if prioritized else 0),
        )
        # Sequences begin here and there, so that all alike is drawn by priorities too.
        alpha, beta = (alpha, beta) if prioritized else (0.0, 0.0)
        priorities = Priorities(slots * steps, alpha=alpha, beta=beta)
        acting_values = ActingValues(lanes) if prioritized else None
        super().__init__(lanes, priorities, acting_values, prioritized=prioritized, seed=seed, about=about)
        self._cutting, self._state = Cutting(length, burn_in, overlap), state
        self._episodes = [_Episode(0, False, 0, 0)] * slots
        # Of each lane what can be drawn, oldest first: the first step of burn-in, and the first to learn from.
        self._alive: list[collections.deque[tuple[int, int]]] = [collections.deque() for _ in range(slots)]

    def __len__(self) -> int:
        """How many sequences can be drawn."""
        return sum(map(len, self._alive))

    def add(self, batch: Batch, taken: Array | None = None, best: Array | None = None) -> Array:
        """Take in the steps of a batch of arrays, with rewards as they are to be learned from.

        Args:
            batch: of arrays, not tensors.
            taken: [T, N], the value of the action that was taken, by the policy that acted: `acted` tells it again.
            best: [T, N], the largest value of an action in the same observation.

        Returns:
            The ids of the sequences that have become complete. Their priority is the largest so far, until `update`.
        """
        if self._state and batch.states is None:
            raise ConfigError(
                "the batch has no recurrent state for every step, and sequences start in the middle of fragments. "
                "Attach the policy with every_state=True, or make the replay without state."
            )
        refuse_half(taken, best)
        for name, values in (("taken", taken), ("best", best)):
            refuse_bad_values(name, values, batch.reward.shape, "step")
        self._lanes.refuse_bad(batch)
        with self._adding():
            made = [self._add(batch, columns, taken, best) for columns in rounds(batch.slot)]
        return np.concatenate([np.zeros(0, np.int64), *made])

    def acted(self, ids: Array) -> Acted:
        """What the policy that acted thought of these sequences, which `add` has just named.

        Of those that a later fragment of the same batch has pushed out again there is nothing.
        """
        if self._acting_values is None:
            raise ConfigError("a memory that draws all alike keeps no values: make it with prioritized=True.")
        slot, start = self._lanes.find(ids)
        k = start + np.arange(self._cutting.length)[:, None]
        flags = self._lanes.flags(slot, k)
        mask = np.cumsum(flags & ENDED != 0, axis=0) - (flags & ENDED != 0) == 0
        mask &= start >= self._lanes.oldest[slot]
        flags = np.where(mask, flags, 0)
        following = np.where(mask & (flags & ENDED == 0), self._acting_values.best(slot, k + 1), np.float32(np.nan))
        return Acted(
            reward=np.where(mask, self._lanes.rewards(slot, k), np.float32(0)),
            terminated=flags & TERMINATED != 0,
            truncated=flags & TRUNCATED != 0,
            mask=mask,
            taken=np.where(mask, self._acting_values.taken(slot, k), np.float32(np.nan)),
            following=following,
        )

    def _saved(self) -> dict[str, Array]:
        alive = [(slot, *each) for slot, lane in enumerate(self._alive) for each in lane]
        return {"alive": np.array(alive, np.int64).reshape(-1, 3), "episodes": np.array(self._episodes, np.int64)}

    def _restore(self, saved: Saved, prefix: str) -> None:
        self._episodes = [
            _Episode(begin, bool(seen), origin, start)
            for begin, seen, origin, start in saved.read(f"{prefix}.episodes").tolist()
        ]
        self._alive = [collections.deque() for _ in self._alive]
        for slot, first, start in saved.read(f"{prefix}.alive").tolist():
            self._alive[slot].append((first, start))

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), **self._cutting._asdict()}

    def _add(self, batch: Batch, columns: Array, taken: Array | None, best: Array | None) -> Array:
        slot = batch.slot[columns]
        start = self._lanes.heads[slot]
        self._lanes.write(batch, columns)
        if self._acting_values is not None:
            self._acting_values.write(batch, columns, start, taken, best)
        k = start + np.arange(batch.T)[:, None]  # [T, n]
        flags = self._lanes.flags(slot, k)
        if self._state:
            self._keep_states(batch, columns, k, flags)
        fresh, gone = [], []
        for n, lane in enumerate(slot.tolist()):
            made = self._follow(lane, int(start[n]), flags[:, n])
            oldest, alive = int(self._lanes.oldest[lane]), self._alive[lane]
            while alive and alive[0][0] < oldest:
                gone.append((lane, alive.popleft()[1]))
            made = [(first, at) for first, at in made if first >= oldest]
            alive.extend(made)
            fresh += [(lane, at) for _, at in made]
        for pairs, act in ((gone, self._priorities.clear), (fresh, self._priorities.set_largest)):
            if pairs:
                act(self._lanes.leaf(*np.array(pairs).T))
        return self._lanes.ids(*np.array(fresh, np.int64).reshape(-1, 2).T)

    def _follow(self, lane: int, start: int, flags: Array) -> list[tuple[int, int]]:
        """Cut what a fragment has brought; the first step of burn-in and the first to learn from of each sequence."""
        made = []
        for begin in (flags & BEGINS).nonzero()[0].tolist():
            # What ends with the beginning of another has ended, also where the fragment before this one broke off.
            made += self._cut_off(lane, start + begin, ended=True)
            seen = bool(flags[begin] & FIRST)
            origin = self._cutting.origin(start + begin, seen)
            self._episodes[lane] = _Episode(start + begin, seen, origin, origin)
        return made + self._cut_off(lane, start + len(flags), bool(flags[-1] & ENDED))

    def _cut_off(self, lane: int, stop: int, ended: bool) -> list[tuple[int, int]]:
        episode = self._episodes[lane]
        starts = self._cutting.complete(episode.origin, episode.start, stop, ended)
        # An episode that has ended is done with: nothing must be cut from it when the next one begins.
        following = stop if ended else episode.start + len(starts) * self._cutting.stride
        self._episodes[lane] = episode._replace(start=following)
        return [(max(episode.begin, start - self._cutting.burn_in), start) for start in starts]

    def _keep_states(self, batch: Batch, columns: Array, k: Array, flags: Array) -> None:
        """Store the states before those steps with which a sequence may begin, but for the zeros of an episode's start.

        To be called while `_episodes` still tells of the episodes before this fragment.
        """
        slot, stride, burn_in = batch.slot[columns], self._cutting.stride, self._cutting.burn_in
        episodes = [self._episodes[lane] for lane in slot.tolist()]
        begin = np.where(flags & BEGINS, k, -1)
        begin[0] = np.where(begin[0] < 0, [episode.begin for episode in episodes], begin[0])
        begin = np.maximum.accumulate(begin)
        seen = np.where(begin >= k[0], self._lanes.flags(slot, begin) & FIRST != 0, [e.seen for e in episodes])
        since = k - begin
        wanted = np.where(seen, (since > 0) & ((since + burn_in) % stride == 0), since % stride == 0)
        t, n = wanted.nonzero()
        states = [part[t, columns[n]] for part in batch.states or ()]
        self._lanes.keep_states(slot[n], k[t, n], states)

    def _cut(self, slot: Array, start: Array) -> Sequences:
        """The sequences whose steps to learn from start with these."""
        cutting, lanes = self._cutting, self._lanes
        index = np.arange(cutting.burn_in + cutting.length + 1)[:, None]  # [L + 1, 1]
        k = start + index - cutting.burn_in
        flags = lanes.flags(slot, k)
        before = flags[cutting.burn_in :: -1] & BEGINS != 0
        burn_in = np.where(before.any(axis=0), before.argmax(axis=0), cutting.burn_in)
        ended = flags[cutting.burn_in : -1] & ENDED != 0
        length = np.where(ended.any(axis=0), ended.argmax(axis=0) + 1, cutting.length)
        stop = cutting.burn_in + length  # [B], the index after the last step
        played = (index >= cutting.burn_in - burn_in) & (index < stop)  # [L + 1, B]
        last = lanes.flags(slot, start + length - 1)
        leaves = self._observations(slot, k, played | ((index == stop) & (last & ENDED == 0)))
        cut = ((last & TRUNCATED != 0) & (last & TERMINATED == 0)).nonzero()[0]
        if len(cut):
            for leaf, final in zip(leaves, lanes.finals(slot[cut], start[cut] + length[cut] - 1), strict=True):
                leaf[stop[cut], cut] = final
        flags, steps = np.where(played, flags, 0), played[:-1]
        action = lanes.actions(slot, k[:-1])
        action[~steps] = 0
        return Sequences(
            obs=lanes.tree(leaves),
            action=action,
            reward=np.where(steps, lanes.rewards(slot, k[:-1]), np.float32(0)),
            terminated=flags[:-1] & TERMINATED != 0,
            truncated=flags[:-1] & TRUNCATED != 0,
            first=flags & FIRST != 0,
            state=self._states(slot, start - burn_in),
            mask=steps & (index[:-1] >= cutting.burn_in),
            burn_in=burn_in,
        )

    def _observations(self, slot: Array, k: Array, there: Array) -> list[Array]:
        """Those that are there, and zeros."""
        leaves = self._lanes.observations(slot, np.where(there, k, k[self._cutting.burn_in]))
        for leaf in leaves:
            leaf[~there] = 0
        return leaves

    def _states(self, slot: Array, k: Array) -> tuple[Array, ...]:
        stored = (self._lanes.flags(slot, k) & STATE).nonzero()[0]
        states = tuple(np.zeros((len(k), *leaf.shape), leaf.dtype) for leaf in self._state)
        if self._state and len(stored):
            for part, values in zip(states, self._lanes.states(slot[stored], k[stored]), strict=True):
                part[stored] = values
        return states
