"""The settings of IMPALA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from clusterenv.learners.common.config import VTraceConfig, check


@dataclass(frozen=True, kw_only=True)
class IMPALAConfig(VTraceConfig):
    """Train an agent with IMPALA: workers play without a pause, V-trace corrects for the age of their data.

    Example:
        >>> IMPALAConfig(num_envs=32).batch_size
        320
    """

    # V-trace corrects for what workers are behind; at half of this CartPole was learned as fast, for more bytes.
    aps_threshold: ClassVar[float] = 0.02

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

    def __post_init__(self) -> None:
        super().__post_init__()
        check("rmsprop_alpha", self.rmsprop_alpha, least=0, most=1)
        check("rmsprop_eps", self.rmsprop_eps, above=0)
