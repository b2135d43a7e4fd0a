"""The settings of SAC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from clusterenv.learners.common.config import check
from clusterenv.learners.replay.config import ReplayConfig


@dataclass(frozen=True, kw_only=True)
class SACConfig(ReplayConfig):
    """Train an agent with continuous actions by soft actor-critic, with a temperature that is learned.

    Example:
        >>> SACConfig(samples_per_insert=512.0).sample_size  # so that each step brings two updates
        256
    """

    # A memory is full of what older policies played, so that it hardly matters how old the acting one is. With 0.3 and
    # with 1.0 Pendulum-v1 ends with the return of workers that fetch every version; with 1.0 they fetch at the 64th
    # version, and hardly ever because of their drift, so that more would save nothing (docs/results/learners.md).
    aps_threshold: ClassVar[float] = 1.0

    env_id: str = "Pendulum-v1"
    """the environment; its actions are a Box with bounds"""
    num_envs: int = 8
    """number of environments (slots)"""
    rollout_steps: int = 16
    """steps of each environment that are sent at a time"""
    learning_rate: float = 3e-4
    """of the policy"""
    max_grad_norm: float = 1000.0
    """a longer gradient, of the policy or of the Q functions, is cut to this"""

    capacity: int = 1_000_000
    """steps that are kept; the oldest go first"""
    learning_starts: int = 5_000
    """steps in the memory before the first update; until then the policy acts nearly uniformly"""
    sample_size: int = 256
    """transitions in one sample, which is one update"""
    samples_per_insert: float = 256.0
    """how often each transition is learned from, on average; as much as `sample_size` is one update per step"""
    prioritized: bool = False
    """sample what surprised more often, rather than everything evenly"""
    n_step: int = 1
    """rewards that are counted before the value of what follows"""
    target_every: int = 1
    """updates between two moves of the target networks"""
    target_rate: float = 0.005
    """how far they move towards the Q functions then"""
    publish_every: int = 1
    """updates between two versions"""

    critic_rate: float = 1e-3
    """learning rate of the Q functions"""
    temperature: float = 1.0
    """what a nat of entropy is worth in reward, at the start"""
    temperature_rate: float = 1e-3
    """learning rate of the temperature, which is steered to `target_entropy`; 0 leaves it as it is"""
    target_entropy: float | None = None
    """the entropy that is wanted, in nats, of actions in units in which the bounds are -1 and 1; None for minus the
    number of their dimensions"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("critic_rate", "temperature"):
            check(name, getattr(self, name), above=0)
        check("temperature_rate", self.temperature_rate, least=0)
        if self.target_entropy is not None:
            check("target_entropy", self.target_entropy)
