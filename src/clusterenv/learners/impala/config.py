"""The settings of IMPALA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from clusterenv.errors import ConfigError
from clusterenv.learners.common.config import Mode, UnrollConfig, check


@dataclass(frozen=True, kw_only=True)
class IMPALAConfig(UnrollConfig):
    """Train an agent with IMPALA: workers play without a pause, V-trace corrects for the age of their data.

    Example:
        >>> IMPALAConfig(num_envs=32).batch_size
        320
    """

    # V-trace corrects for what workers are behind; at half of this CartPole was learned as fast, for more bytes.
    aps_threshold: ClassVar[float] = 0.02

    mode: Mode = "stream"
    """stream: nobody waits, data may be stale; lock step: workers wait while the learner learns"""
    rollout_steps: int = 20
    """steps of each environment in a batch"""
    learning_rate: float = 2e-3
    """of the optimiser"""
    max_grad_norm: float = 40.0
    """a longer gradient is cut to this"""
    record_every: int = 20
    """updates between two rows of metrics"""

    optimizer: Literal["rmsprop", "rmsprop-tf", "adam"] = "rmsprop"
    """rmsprop: as in TorchBeast; rmsprop-tf: as in the paper, whose mean of squares starts at 1; adam"""
    rmsprop_alpha: float = 0.99
    """rmsprop: how much of the mean of squares stays at each step"""
    rmsprop_eps: float = 0.01
    """rmsprop: added to the root of the mean of squares, or under it"""
    reduction: Literal["sum", "mean"] = "mean"
    """sum: the loss of a batch is that of all its steps together, as published; mean: it does not depend on how many"""
    correction: Literal["v-trace", "none"] = "v-trace"
    """none: learn from old data as if it were new, to see what the correction is worth"""
    rho_bar: float = 1.0
    """importance ratios above this are cut in the targets and advantages"""
    c_bar: float = 1.0
    """importance ratios above this are cut in the trace"""
    vtrace_lambda: float = 1.0
    """shortens the trace as in generalised advantage estimation; 1 as published"""
    publish_every: int = 1
    """updates between two versions"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check("vtrace_lambda", self.vtrace_lambda, least=0, most=1)
        check("rmsprop_alpha", self.rmsprop_alpha, least=0, most=1)
        for name in ("rmsprop_eps", "rho_bar", "c_bar"):
            check(name, getattr(self, name), above=0)
        check("publish_every", self.publish_every, least=1)
        if self.rho_bar < self.c_bar:
            raise ConfigError(
                f"rho_bar={self.rho_bar} is less than c_bar={self.c_bar}: then values would travel back further than "
                "they are weighed, and V-trace is not known to converge. Raise the one or lower the other."
            )
