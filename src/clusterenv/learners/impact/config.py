"""The settings of IMPACT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from clusterenv.errors import ConfigError
from clusterenv.learners.common.config import VTraceConfig, check


@dataclass(frozen=True, kw_only=True)
class IMPACTConfig(VTraceConfig):
    """Train an agent with IMPACT: old batches are used several times, anchored by a target network.

    Its three parts can be left out one by one: `target_every=0` has no target network, `buffer_batches=1` with
    `uses=1` no reuse, `rho=None` no truncated ratio.

    Example:
        >>> IMPACTConfig(num_envs=32).batch_size
        320
    """

    aps_threshold: ClassVar[float] = 0.01

    buffer_batches: int = 4
    """batches that are kept; in lock step there is never more than one, as workers play the next when it is used up"""
    uses: int = 2
    """how often a batch is learned from"""
    overwrite: bool = False
    """let new batches take the place of the oldest even if these have uses left, as published: workers wait only for a
    gradient step in which they fill all stream_buffers, and a learner that is slower than they are learns from less of
    what they play; in lock step it does nothing"""
    target_every: int = 16
    """updates between two copies of the network into the target network; 0 for none, which anchors each batch at the
    policy that acted, as PPO does"""
    rho: float | None = 2.0
    """a ratio of actor to target above this is cut; None cuts nothing, which leaves the ratio of learner to target"""
    clip: float = 0.3
    """how far the ratio may move from 1 before its gradient is cut"""
    normalize_advantage: bool = False
    """give the advantages of each batch mean 0 and deviation 1"""
    kl_coef: float = 0.0
    """weight of the divergence from the target network at the start; it follows `kl_target`"""
    kl_target: float = 0.04
    """mean divergence from the target network that `kl_coef` is steered towards, in nats; only with `kl_coef`"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("buffer_batches", "uses"):
            check(name, getattr(self, name), least=1)
        for name in ("target_every", "kl_coef"):
            check(name, getattr(self, name), least=0)
        for name in ("clip", "kl_target"):
            check(name, getattr(self, name), above=0)
        if self.rho is not None:
            check("rho", self.rho, above=0)
        if self.kl_coef == 0 and self.kl_target != IMPACTConfig.kl_target:
            raise ConfigError(
                f"kl_target={self.kl_target} with kl_coef=0 would do nothing: it is what a kl_coef above 0 is steered "
                "towards. Set kl_coef too, such as 1, or leave kl_target out."
            )
