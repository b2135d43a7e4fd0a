"""The settings of R2D2."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from clusterenv.errors import ConfigError
from clusterenv.learners.common.config import check, input_wrappers
from clusterenv.learners.replay.q_learning import QConfig

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, kw_only=True)
class R2D2Config(QConfig):
    """Train an agent with R2D2: Q-learning from sequences, with a memory whose state is stored beside them.

    Items of the memory are sequences: `learning_starts`, `sample_size` and `samples_per_insert` count those, and
    `capacity` counts steps. What makes R2D2 can be left out: `stored_state=False` starts every sequence from zero,
    `burn_in=0` trusts the stored state as it is, `lstm=0` has no memory at all.

    Example:
        >>> R2D2Config(length=20, overlap=10, num_envs=8, rollout_steps=10, mode="lock step").sequences_per_batch
        8
    """

    aps_threshold: ClassVar[float] = 0.05

    learning_rate: float = 1e-3
    """of Adam"""
    gamma: float = 0.997
    """discount"""
    n_step: int = 5
    """rewards that are counted before the value of what follows"""
    learning_starts: int = 100
    """sequences in the memory before the first update"""
    sample_size: int = 32
    """sequences in one sample, which is one update"""
    priority_exponent: float = 0.9
    """how much more often what surprised is sampled: 0 is evenly"""
    importance_exponent: float = 0.6
    """how much of the bias that this brings is corrected by weights, 1 for all of it"""

    length: int = 20
    """steps of a sequence that are learned from"""
    burn_in: int = 10
    """steps before them that only bring the memory of the network up to date"""
    overlap: int = 10
    """steps that a sequence shares with the one before it"""
    stored_state: bool = True
    """start sequences from the memory that the policy had when it acted; False starts them from zero"""
    eta: float = 0.9
    """share of the largest error of a sequence in its priority; the rest is their mean"""
    adam_epsilon: float = 1e-5
    """of Adam: a small one makes large steps where gradients are small"""
    rescaling: float = 1e-3
    """slope at large returns of the squashed scale on which Q-values are learned"""

    lstm: int = 64
    """size of the LSTM behind it; 0 for none"""
    last_inputs: bool = False
    """show the policy its last action and reward too, beside the observation"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check("length", self.length, least=1)
        for name in ("burn_in", "overlap", "lstm"):
            check(name, getattr(self, name), least=0)
        check("eta", self.eta, least=0, most=1)
        for name in ("rescaling", "adam_epsilon"):
            check(name, getattr(self, name), above=0)
        if self.overlap >= self.length:
            raise ConfigError(
                f"overlap={self.overlap} must be less than length={self.length}: each sequence must bring new steps."
            )

    @property
    def least_capacity(self) -> int:
        """Steps without which nothing could be learned from."""
        return self.num_envs * max(self.rollout_steps, 2 * (self.burn_in + self.length))

    @property
    def sequences_per_batch(self) -> int:
        """About how many sequences a batch completes, if episodes are long."""
        return max(1, self.batch_size // (self.length - self.overlap))

    @property
    def slack(self) -> float:
        """Samples that the learner may be behind before new steps wait: those of two batches, and one sample."""
        return self.samples_per_insert * 2 * self.sequences_per_batch + self.sample_size

    @property
    def steps_before_learning(self) -> int:
        """About how many steps the sequences are that the memory holds at the first update."""
        return self.learning_starts * max(1, self.length - self.overlap)

    @property
    def first_steps(self) -> int:
        """Steps up to the first update, if episodes are long: the first sequence of a slot takes its whole length."""
        each = math.ceil(self.first_items / self.num_envs)
        return self.num_envs * (self.length + (each - 1) * max(1, self.length - self.overlap))

    def wrappers(self) -> tuple[Callable[[Any], Any], ...]:
        """What is put around each environment, on its worker."""
        return input_wrappers(self.last_inputs)
