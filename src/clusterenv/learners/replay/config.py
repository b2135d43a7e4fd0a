"""The settings that learners with a memory share."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from clusterenv.errors import ConfigError
from clusterenv.learners.common.config import LearnerConfig, Mode, check


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(LearnerConfig):
    """What every learner with a memory asks beside the rest."""

    # Nothing ties the network to the policy that acted: it does not stand still until workers have newer weights.
    aps_stall_after: ClassVar[int | None] = None

    mode: Mode = "stream"
    """stream: nobody waits but for the rate of samples; lock step: workers wait while the learner learns"""
    rollout_steps: int = 10
    """steps of each environment that are sent at a time"""
    anneal: bool = False
    """let the learning rate fall to zero over the step budget"""
    max_grad_norm: float = 40.0
    """a longer gradient is cut to this"""
    record_every: int = 100
    """updates between two rows of metrics"""

    capacity: int = 100_000
    """steps that are kept; the oldest go first"""
    memory_folder: str | None = None
    """keep observations in a file there, and not in memory; it is gone with the run"""
    keep_memory: bool = False
    """save the memory beside every checkpoint too, so that a run which is resumed need not fill it anew"""
    learning_starts: int = 1_000
    """items in the memory before the first update"""
    sample_size: int = 64
    """items in one sample, which is one update"""
    samples_per_insert: float = 8.0
    """how often each item is learned from, on average; the faster side waits for the slower"""
    prioritized: bool = True
    """sample what surprised more often, rather than everything evenly"""
    priority_exponent: float = 0.6
    """how much more often: 0 is evenly"""
    importance_exponent: float = 0.4
    """how much of the bias that this brings is corrected by weights, 1 for all of it"""
    n_step: int = 3
    """rewards that are counted before the value of what follows"""
    target_every: int = 100
    """updates between two moves of the target network"""
    target_rate: float = 1.0
    """how far it moves towards the network then; 1 copies it"""
    publish_every: int = 10
    """updates between two versions"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("capacity", "sample_size", "n_step", "target_every", "publish_every"):
            check(name, getattr(self, name), least=1)
        check("learning_starts", self.learning_starts, least=0)
        check("samples_per_insert", self.samples_per_insert, above=0)
        for name in ("priority_exponent", "importance_exponent"):
            check(name, getattr(self, name), least=0, most=1)
        check("target_rate", self.target_rate, above=0, most=1)
        self._check_memory()

    @property
    def slack(self) -> float:
        """Samples that the learner may be behind before new steps wait: those of two batches, and one sample."""
        return self.samples_per_insert * 2 * self.batch_size + self.sample_size

    @property
    def steps_before_learning(self) -> int:
        """About how many steps the items are that the memory holds at the first update."""
        return self.learning_starts

    @property
    def first_items(self) -> int:
        """Items that go in up to the first update: those to start with, and as many as allow one sample."""
        most = self.total_steps  # with next to no samples per insertion it would be more than any number
        return self.learning_starts + math.ceil(min(most, self.sample_size / self.samples_per_insert))

    @property
    def first_steps(self) -> int:
        """Steps up to the first update, if episodes are long: the last of each slot have made no whole item yet."""
        unfinished = self.n_step if self.prioritized else self.n_step - 1  # a first priority needs the next value too
        return self.first_items + self.num_envs * unfinished

    @property
    def least_capacity(self) -> int:
        """Steps without which nothing could be learned from."""
        return self.num_envs * max(self.rollout_steps, 2 * self.n_step)

    def for_playing(self) -> ReplayConfig:
        """The same with a memory that holds next to nothing."""
        return replace(self, capacity=self.least_capacity, learning_starts=0, memory_folder=None, keep_memory=False)

    def memory_settings(self) -> dict[str, Any]:
        """What every memory is made with."""
        return {
            "slots": self.num_envs,
            "capacity": self.capacity,
            "prioritized": self.prioritized,
            "alpha": self.priority_exponent,
            "beta": self.importance_exponent,
            "seed": self.seed,
            "folder": self.memory_folder,
            "about": {"reward": self.reward, "reward_scale": self.reward_scale},
        }

    def _check_memory(self) -> None:
        needed, starts = self.steps_before_learning, f"learning_starts={self.learning_starts}"
        if needed > self.capacity:
            raise ConfigError(
                f"{starts} takes about {needed} steps, more than capacity={self.capacity}: the first update would "
                "never come. Raise capacity or lower learning_starts."
            )
        played = self.total_steps // self.batch_size * self.batch_size
        if self.first_steps > played:
            raise ConfigError(
                f"{starts} with num_envs={self.num_envs} takes about {self.first_steps} steps up to the first update, "
                f"and of total_steps={self.total_steps} whole batches of {self.batch_size} are played, {played} steps: "
                "nothing would be learned. Raise total_steps or lower learning_starts."
            )
        if self.capacity < self.least_capacity:
            raise ConfigError(
                f"capacity={self.capacity} is shared by num_envs={self.num_envs}, each of which sends rollout_steps="
                f"{self.rollout_steps} at a time, and needs room for two items. Raise it to at least "
                f"{self.least_capacity}."
            )
