"""When workers fetch new weights, as settings that fit a command line and a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from clusterenv.errors import ConfigError
from clusterenv.learners.common.settings import fit
from clusterenv.sync.aps import APS
from clusterenv.sync.parse import parse_sync

if TYPE_CHECKING:
    from clusterenv.sync.rules import Rule


@dataclass(frozen=True, kw_only=True)
class SyncConfig:
    """When workers fetch new weights.

    Example:
        >>> SyncConfig(rule="every", every=4).make()
        Every(versions=4)
    """

    rule: Literal["aps", "always", "every", "on-change", "never"] = "aps"
    """aps: when the policy has drifted; always: before every batch, changed or not; every: at every k-th version;
    on-change: when a version is new; never: only once, at the start"""
    threshold: float | None = None
    """aps: how far a worker's policy may drift from the newest one, in nats; None for what suits the learner"""
    every: int | None = None
    """every: how many versions lie between two fetches"""
    max_lag: int | None = None
    """aps: the most versions that a worker may lie behind"""
    target_ess: float | None = None
    """aps: steer the threshold so that this share of the data stays effective (0 to 1)"""
    bandwidth: str | None = None
    """aps: spend about this much on weights, as in "500 KiB/s", instead of a threshold"""

    def __post_init__(self) -> None:
        fit(self, "sync")
        self._check_where_it_belongs()
        if self.rule == "every" and self.every is None:
            raise ConfigError("sync.rule='every' needs sync.every: how many versions lie between two fetches.")
        steered = [name for name in ("threshold", "target_ess", "bandwidth") if getattr(self, name) is not None]
        if len(steered) > 1:
            raise ConfigError(
                f"sync.{steered[0]} and sync.{steered[1]} cannot both be given: each of them decides the threshold."
            )
        self.make()  # the rule checks its own numbers, now and not after the workers have started

    def _check_where_it_belongs(self) -> None:
        for name in ("threshold", "every", "max_lag", "target_ess", "bandwidth"):
            owner = "every" if name == "every" else "aps"
            if getattr(self, name) is not None and self.rule != owner:
                raise ConfigError(
                    f"sync.{name}={getattr(self, name)!r} means nothing to sync.rule={self.rule!r}. "
                    f"Leave it out, or use sync.rule={owner!r}."
                )

    def make(self, *, threshold: float | None = None, by_clock: bool = True, stall_after: int | None = 4) -> Rule:
        """The rule itself.

        Args:
            threshold: for APS, if the settings name neither a threshold nor anything that steers it.
            by_clock: whether the rule may look at the clock. A run that is to be repeated exactly must not; the limits
                in versions and batches remain.
            stall_after: for APS: the batches after which weights move because the learner is held back.
        """
        if self.rule != "aps":
            return parse_sync(f"every:{self.every}" if self.rule == "every" else self.rule)
        given = {name: getattr(self, name) for name in ("threshold", "max_lag", "target_ess", "bandwidth")}
        chosen = {name: value for name, value in given.items() if value is not None}
        if not chosen.keys() & {"threshold", "target_ess", "bandwidth"}:
            chosen["threshold"] = threshold
        chosen["stall_after"] = stall_after
        return APS(**chosen) if by_clock else APS(**chosen, max_age_s=None)
