"""What the policy thought while it acted, for the first priorities of sequences: nothing has to be computed again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from clusterenv.learners.common.rescaling import squash, unsquash
from clusterenv.learners.common.returns import n_step_returns
from clusterenv.learners.r2d2.loss import ends, priority

if TYPE_CHECKING:
    import numpy.typing as npt

    from clusterenv.env.batch import Batch
    from clusterenv.learners.r2d2.config import R2D2Config

    Array = npt.NDArray[Any]


class Acted:
    """The Q-values of the last steps of every slot, with what came of them.

    The policy that acted stands for the target network too. What it would have thought of an observation that it never
    acted on, the last of a truncated episode or of a fragment, is not known: the step before that has no error yet.

    Args:
        config: the settings.
    """

    def __init__(self, config: R2D2Config) -> None:
        self._config = config
        # A sequence is complete with the step that ends it, in a batch that may hold all fragments of a worker. Of what
        # is older still nothing is known.
        self._steps = config.length + config.rollout_steps * (config.stream_buffers + 1)
        shape = (config.num_envs, self._steps)
        self._taken, self._best, self._reward = np.zeros((3, *shape), np.float32)
        self._terminated, self._truncated = np.zeros((2, *shape), np.bool_)
        self._heads = np.zeros(config.num_envs, np.int64)
        self._seen = [b""] * config.num_envs  # what each slot was shown last, byte by byte

    def add(self, batch: Batch) -> None:
        """Take in the steps of a batch of arrays, whose `params` are Q-values."""
        taken = np.take_along_axis(batch.params, batch.action[..., None], -1)[..., 0]
        best = batch.params.max(-1)
        for column, slot in enumerate(batch.slot.tolist()):
            head = self._heads[slot]
            # A fragment that begins with something else than what was seen last comes after steps that nobody told of:
            # there the replay ends the episode, and so must we.
            is_torn = self._seen[slot] != _bytes(batch.obs, 0, column)
            if head and (is_torn or batch.first[0, column] or batch.worker_lost[column]):
                # Nobody goes on with what was there.
                last = (head - 1) % self._steps
                self._truncated[slot, last] = ~self._terminated[slot, last]
            where = (head + np.arange(batch.T)) % self._steps
            self._taken[slot, where], self._best[slot, where] = taken[:, column], best[:, column]
            self._reward[slot, where] = batch.reward[:, column]
            self._terminated[slot, where] = batch.terminated[:, column]
            self._truncated[slot, where] = batch.truncated[:, column]
            self._heads[slot] += batch.T
            self._seen[slot] = _bytes(batch.obs, batch.T, column)

    def priorities(self, slot: Array, start: Array) -> Array:
        """How much sequences surprised the policy that acted, [B] float64; NaN where nothing is known.

        Args:
            slot: [B], whose they are.
            start: [B], the first step of each that is learned from, counted from the first of its slot.
        """
        config = self._config
        k = start + np.arange(config.length + 1)[:, None]  # [m + 1, B]
        where, next_is_there = (slot, k % self._steps), k[1:] < self._heads[slot]

        def part(array: Array) -> torch.Tensor:
            return torch.from_numpy(array[where])

        terminated, truncated = part(self._terminated)[:-1], part(self._truncated)[:-1]
        over = (terminated | truncated).cumsum(0) - (terminated | truncated).long() > 0
        known = terminated | (torch.from_numpy(next_is_there) & ~truncated)
        kept = (k[:-1] < self._heads[slot]) & (start >= self._heads[slot] - self._steps)
        mask = torch.from_numpy(kept) & ~over & known
        follows = unsquash(part(self._best)[1:], config.rescaling).masked_fill(terminated, 0.0)
        ended = ends(terminated, truncated, mask)
        returns = n_step_returns(part(self._reward)[:-1], follows, ended, gamma=config.gamma, n=config.n_step)
        error = squash(returns, config.rescaling) - part(self._taken)[:-1]
        told = priority(error, mask, config.eta).double().masked_fill(~mask.any(0), torch.nan)
        surprise: Array = told.numpy()
        return surprise


def _bytes(obs: Any, step: int, column: int) -> bytes:
    """One observation of a batch; what is the same is the same bytes, also if it is not a number.

    Example:
        >>> _bytes({"a": np.uint8([[1, 2]]), "b": (np.uint8([[3, 4]]),)}, 0, 1).hex()
        '0204'
    """
    if isinstance(obs, dict):
        obs = tuple(obs.values())
    if isinstance(obs, tuple):
        return b"".join(_bytes(part, step, column) for part in obs)
    shown: bytes = obs[step, column].tobytes()
    return shown
