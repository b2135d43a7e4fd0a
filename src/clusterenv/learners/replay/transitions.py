"""A memory of transitions over one or more steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clusterenv.errors import ConfigError
from clusterenv.learners.replay.acting_values import ActingValues, refuse_bad_values, refuse_half
from clusterenv.learners.replay.lanes import BEGINS, TERMINATED, TRUNCATED, Lanes, final_rows, rounds
from clusterenv.learners.replay.memory import Replay
from clusterenv.learners.replay.nstep import NStep, nstep
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


class Transitions(NamedTuple):
    """B transitions.

    Attributes:
        obs: [B, ...], an array, or a dict or tuple of arrays as the observation space says.
        action: [B, ...].
        reward: [B] float32, the discounted sum over the steps of the transition.
        discount: [B] float32, by which the value of `next_obs` is to be multiplied; 0 where the episode terminated,
            where `next_obs` means nothing.
        next_obs: [B, ...], as `obs`: what was seen after the last of the steps.
    """

    obs: Any
    action: Array
    reward: Array
    discount: Array
    next_obs: Any


class TransitionReplay(Replay[Transitions]):
    """The last `capacity` steps, drawn as transitions over `n_step` of them.

    A transition never crosses the end of an episode. It is complete, and can be drawn, when what it ends with is known.

    Args:
        observation_space: of one slot.
        action: one action as the policy's distribution samples it.
        slots: how many there are; each gets an equal share of the capacity.
        capacity: in steps.
        n_step: steps of a transition.
        gamma: discount of one step.
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
        >>> replay = TransitionReplay(Box(-1, 1, (3,)), action, slots=2, capacity=1000, n_step=3, gamma=0.99)
        >>> len(replay)
        0
    """

    kind = "transition"

    def __init__(
        self,
        observation_space: Space[Any],
        action: Leaf,
        *,
        slots: int,
        capacity: int,
        n_step: int = 1,
        gamma: float = 0.99,
        prioritized: bool = False,
        alpha: float = 0.6,
        beta: float = 0.4,
        seed: int = 0,
        stacked: bool = False,
        folder: str | os.PathLike[str] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        refuse_no_count(slots=slots, capacity=capacity, n_step=n_step)
        if min(slots, n_step) < 1 or capacity < 2 * slots * n_step:
            raise ConfigError(
                f"capacity={capacity}, slots={slots}, n_step={n_step}: there must be at least one slot and one step, "
                f"and room for two transitions in each slot, which makes a capacity of {2 * slots * n_step}."
            )
        if not 0.0 <= gamma <= 1.0:
            raise ConfigError(f"gamma={gamma} of a replay must be from 0 to 1.")
        lanes = Lanes(
            observation_space,
            action,
            slots=slots,
            steps=-(-capacity // slots),
            stacked=stacked,
            folder=folder,
            beside=lambda steps: ActingValues.bytes_of(steps) + Priorities.bytes_of(steps) if prioritized else 0,
        )
        priorities = Priorities(slots * lanes.steps, alpha=alpha, beta=beta) if prioritized else None
        acting_values = ActingValues(lanes) if prioritized else None
        super().__init__(lanes, priorities, acting_values, prioritized=prioritized, seed=seed, about=about)
        self._n_step, self._gamma = n_step, gamma
        self._done = np.zeros(slots, np.int64)  # steps of each slot from which a complete transition starts

    def __len__(self) -> int:
        """How many transitions can be drawn."""
        return int((self._done - self._lanes.oldest).sum())

    def add(
        self,
        batch: Batch,
        taken: Array | None = None,
        best: Array | None = None,
        final_best: Array | None = None,
    ) -> int:
        """Take in the steps of a batch of arrays, with rewards as they are to be learned from.

        The first priority of a transition is its error by the values that are given here, or, where these are not
        known, the largest priority so far.

        Args:
            batch: of arrays, not tensors.
            taken: [T, N], the value of the action that was taken, by the policy that acted.
            best: [T, N], the largest value of an action in the same observation. With it a transition is complete
                only when the value of what it ends with is known, one step later than without.
            final_best: [K], the same for the last observations of episodes, `batch.final_obs`.

        Returns:
            How many transitions have become complete.
        """
        refuse_half(taken, best)
        for name, values in (("taken", taken), ("best", best)):
            refuse_bad_values(name, values, batch.reward.shape, "step")
        refuse_bad_values("final_best", final_best, (len(batch.final_at[0]),), "last observation")
        self._lanes.refuse_bad(batch)
        with self._adding():
            return sum(self._add(batch, columns, taken, best, final_best) for columns in rounds(batch.slot))

    def _saved(self) -> dict[str, Array]:
        return {"done": self._done}

    def _restore(self, saved: Saved, prefix: str) -> None:
        saved.read_into(f"{prefix}.done", self._done)

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "n_step": self._n_step}

    def _add(
        self, batch: Batch, columns: Array, taken: Array | None, best: Array | None, final_best: Array | None
    ) -> int:
        slot = batch.slot[columns]
        start, before = self._lanes.heads[slot], self._done[slot]
        self._lanes.write(batch, columns)
        head = self._lanes.heads[slot]
        # All steps up to the last end of an episode, and those that have n steps after them.
        ended = (batch.terminated | batch.truncated)[:, columns]
        cut_off = np.where(self._lanes.flags(slot, start) & BEGINS, start, 0)
        last_end = np.where(ended.any(axis=0), start + batch.T - ended[::-1].argmax(axis=0), 0)
        full = head - self._n_step + (best is None)
        self._done[slot] = np.maximum.reduce([before, cut_off, last_end, full])
        if self._priorities is not None and self._acting_values is not None:
            self._acting_values.write(batch, columns, start, taken, best)
            finals = self._finals(batch, columns, start, final_best)
            self._first_priorities(self._priorities, self._acting_values, slot, before, start, finals)
        return int((self._done[slot] - before).sum())

    def _finals(self, batch: Batch, columns: Array, start: Array, final_best: Array | None) -> dict[int, float]:
        """The value of the last observation of each episode that was truncated here, by the id of its last step."""
        if final_best is None:
            return {}
        at, place = final_rows(batch, columns)
        ids = self._lanes.ids(batch.slot[columns[place]], start[place] + batch.final_at[0][at])
        return dict(zip(ids.tolist(), np.asarray(final_best)[at].tolist(), strict=True))

    def _first_priorities(
        self,
        priorities: Priorities,
        acting_values: ActingValues,
        slot: Array,
        before: Array,
        start: Array,
        finals: dict[int, float],
    ) -> None:
        """Set the priorities of what is complete now, and empty the places of what is not yet."""
        done, head = self._done[slot], self._lanes.heads[slot]
        pending = _ranges(slot, np.maximum(done, start), head)
        priorities.clear(self._lanes.leaf(*pending))
        slot, k = _ranges(slot, np.maximum(before, self._lanes.oldest[slot]), done)
        told = self._steps(slot, k)
        after = k + told.length
        value = acting_values.best(slot, after).astype(np.float64)
        cut = (self._lanes.flags(slot, after - 1) & TRUNCATED).nonzero()[0]
        ids = self._lanes.ids(slot[cut], after[cut] - 1).tolist()
        value[cut] = [finals.get(number, np.nan) for number in ids]
        target = told.reward + np.where(told.discount == 0, 0.0, told.discount * value)
        priorities.set(self._lanes.leaf(slot, k), np.abs(target - acting_values.taken(slot, k)))

    def _draw(self, count: int) -> tuple[Array, Array, Array]:
        if self._priorities is not None:
            return super()._draw(count)
        upto = np.cumsum(self._done - self._lanes.oldest)
        drawn = self._random.integers(upto[-1], size=count)
        slot = np.searchsorted(upto, drawn, side="right")
        return slot, self._done[slot] - (upto[slot] - drawn), np.ones(count, np.float32)

    def _cut(self, slot: Array, k: Array) -> Transitions:
        """The transitions that start with these steps."""
        told = self._steps(slot, k)
        after = k + told.length
        following = self._lanes.observations(slot, after)
        cut = ((self._lanes.flags(slot, after - 1) & TRUNCATED != 0) & (told.discount > 0)).nonzero()[0]
        if len(cut):
            for leaf, last in zip(following, self._lanes.finals(slot[cut], after[cut] - 1), strict=True):
                leaf[cut] = last
        tree = self._lanes.tree
        obs = tree(self._lanes.observations(slot, k))
        return Transitions(obs, self._lanes.actions(slot, k), told.reward, told.discount, tree(following))

    def _steps(self, slot: Array, k: Array) -> NStep:
        slot, k = slot[:, None], k[:, None] + np.arange(self._n_step)
        flags = self._lanes.flags(slot, k)
        reward = self._lanes.rewards(slot, k)
        return nstep(reward, flags & TERMINATED != 0, flags & TRUNCATED != 0, self._gamma)


def _ranges(slot: Array, start: Array, stop: Array) -> tuple[Array, Array]:
    """Every step from start to stop of each slot, as two arrays.

    Example:
        >>> slot, k = _ranges(np.array([3, 4]), np.array([0, 7]), np.array([2, 8]))
        >>> slot.tolist(), k.tolist()
        ([3, 3, 4], [0, 1, 7])
    """
    counts = np.maximum(stop - start, 0)
    k = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(start, counts)
    return np.repeat(slot, counts), k
