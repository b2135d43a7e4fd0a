"""Where the policy shall act, how many workers, environments and rows: a decision from measurements, without any I/O.

Workers that act by themselves wait for nobody, and a small network costs a core less than the way to the head and
back. A network that is too large for a core runs faster on the head's device, where all environments share one batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from clusterenv.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

# The head must be this much faster to be chosen: it needs every step's observation to come to it, over any network.
_MARGIN = 1.1
# Of the largest rate, what a smaller batch may cost: small ones keep the data younger.
_GOOD_ENOUGH = 0.95
# A sync that takes longer than this makes the workers' policy old, whatever the rule.
_LONG_SYNC_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """What was measured, on the machines of the run.

    Attributes:
        workers: how many there can be.
        cores: how many of them can run at the same time; None if each has a core of its own.
        step_s: one step of one environment, on one core.
        worker_s: the policy on a worker, seconds by the number of rows.
        head_s: the policy on the head's device, the way of the observations to it and back included.
        exchange_s: what the head spends to take that many answers and to send as many actions.
        stepping_rate: steps per second of all workers with actions that cost nothing, by `send` and `recv`.
        round_trip_s: from `send` to `recv` of a slot, without the step itself.
        observation_bytes: one observation.
        weights_bytes: all weights, encoded.
        link_bytes_s: what goes over the link to a host per second; None if there is none.
    """

    workers: int
    step_s: float
    worker_s: Mapping[int, float]
    head_s: Mapping[int, float]
    exchange_s: Mapping[int, float]
    stepping_rate: float
    round_trip_s: float
    observation_bytes: int
    weights_bytes: int
    link_bytes_s: float | None = None
    cores: int | None = None

    def __post_init__(self) -> None:
        if not self.worker_s or not self.head_s or self.head_s.keys() != self.exchange_s.keys():
            raise ConfigError(
                f"worker_s={dict(self.worker_s)}, head_s={dict(self.head_s)}, exchange_s={dict(self.exchange_s)}: each "
                "needs a size, and the last two the same ones."
            )

    @property
    def sync_s(self) -> float:
        """How long the weights take to a host."""
        return self.weights_bytes / self.link_bytes_s if self.link_bytes_s else 0.0

    @property
    def at_once(self) -> int:
        """How many workers run at the same time: those that share a core take turns."""
        return self.workers if self.cores is None else min(self.workers, self.cores)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to do.

    Attributes:
        inference: where the policy acts.
        workers: how many.
        envs_per_worker: of each.
        inference_batch: rows in an inference batch on the head; None on workers.
        rate: the steps per second that this should give, before the learner's own limit.
        other_rate: those of the other placement.
        reasons: why, in sentences.
    """

    inference: Literal["worker", "head"]
    workers: int
    envs_per_worker: int
    inference_batch: int | None
    rate: float
    other_rate: float
    reasons: tuple[str, ...]


def decide(measured: Measurements, *, most_envs: int) -> Plan:
    """The placement that gives the most steps per second, with the smallest batch that does.

    Args:
        measured: what was measured.
        most_envs: how many environments there may be, over all workers.

    Raises:
        ConfigError: not even the smallest sizes that were measured fit into `most_envs`.

    Example:
        >>> small = Measurements(
        ...     workers=4, step_s=1e-4, worker_s={1: 3e-5, 16: 6e-5}, head_s={32: 1e-3}, exchange_s={32: 2e-4},
        ...     stepping_rate=30_000, round_trip_s=1e-4, observation_bytes=16, weights_bytes=40_000,
        ... )
        >>> plan = decide(small, most_envs=64)
        >>> plan.inference, plan.workers, plan.envs_per_worker
        ('worker', 4, 16)
    """
    blocks, batches = _fitting(measured, most_envs)
    block, worker_rate = _smallest({rows: worker_rate_of(measured, rows) for rows in blocks})
    batch, head_rate = _smallest({rows: head_rate_of(measured, rows) for rows in batches})
    reasons = _reasons(measured, block, batch)
    slow_link = measured.sync_s > _LONG_SYNC_S
    if not (head_rate > worker_rate * _MARGIN or (slow_link and head_rate > worker_rate / 2)):
        if head_rate > worker_rate:
            reasons.append("That is too little more to send every observation to the head.")
        return Plan(
            inference="worker",
            workers=measured.workers,
            envs_per_worker=block,
            inference_batch=None,
            rate=worker_rate,
            other_rate=head_rate,
            reasons=tuple(reasons),
        )
    workers = _enough_workers(measured, batch)
    if workers < measured.workers:
        reasons.append(f"{workers} worker(s) keep the head busy; more would wait for it.")
    return Plan(
        inference="head",
        workers=workers,
        # Two batches: one is inferred while the other steps. Rounded down where that would be one environment too many.
        envs_per_worker=min(-(-2 * batch // workers), most_envs // workers),
        inference_batch=batch,
        rate=head_rate,
        other_rate=worker_rate,
        reasons=tuple(reasons),
    )


def _reasons(measured: Measurements, block: int, batch: int) -> list[str]:
    """What was measured of either place, with the sizes that suit it best, in words."""
    worker_rate, head_rate = worker_rate_of(measured, block), head_rate_of(measured, batch)
    reasons = [
        f"A step of the environment takes {_time(measured.step_s)}; the policy takes "
        f"{_time(measured.worker_s[block])} for {block} rows on a worker and {_time(measured.head_s[batch])} for "
        f"{batch} rows on the head.",
        f"On {measured.workers} worker(s) the policy would give {worker_rate:,.0f} steps per second, on the head "
        f"{head_rate:,.0f}: there {_bottleneck(measured, batch)}.",
    ]
    if measured.at_once < measured.workers:
        reasons.append(f"The {measured.workers} workers share {measured.cores} core(s): more of them are not faster.")
    if measured.sync_s > _LONG_SYNC_S:
        reasons.append(
            f"The weights ({_size(measured.weights_bytes)}) would take {measured.sync_s:.1f} s to a host; on the head "
            "they move nowhere."
        )
    return reasons


def worker_rate_of(measured: Measurements, rows: int) -> float:
    """Steps per second if each worker acts for a block of this many environments."""
    return measured.at_once / (measured.step_s + measured.worker_s[rows] / rows)


def head_rate_of(measured: Measurements, rows: int) -> float:
    """Steps per second if the head acts for batches of this many, two of which are under way."""
    return min(_head_limits(measured, rows).values())


def _head_limits(measured: Measurements, rows: int) -> dict[str, float]:
    busy_s = measured.head_s[rows] + measured.exchange_s[rows]
    stepping_s = rows * measured.step_s / measured.at_once
    return {
        "the head's inference is the limit": rows / busy_s,
        "the environments are the limit": measured.stepping_rate,
        "the way there and back is the limit": 2 * rows / (busy_s + stepping_s + measured.round_trip_s),
    }


def _bottleneck(measured: Measurements, rows: int) -> str:
    limits = _head_limits(measured, rows)
    return min(limits, key=lambda name: limits[name])


def _fitting(measured: Measurements, most_envs: int) -> tuple[list[int], list[int]]:
    """The blocks of a worker and the batches of the head for which there are environments enough."""
    blocks = [rows for rows in measured.worker_s if rows * measured.workers <= most_envs]
    batches = [rows for rows in measured.head_s if 2 * rows <= most_envs]
    if blocks and batches and measured.workers <= most_envs:
        return blocks, batches
    raise ConfigError(
        f"most_envs={most_envs} must be at least {min(measured.worker_s)} for each of {measured.workers} worker(s), "
        f"and at least two batches of {min(measured.head_s)} for the head. Allow more environments, "
        "or measure smaller sizes."
    )


def _smallest(rates: Mapping[int, float]) -> tuple[int, float]:
    """The smallest size that is good enough, and its rate."""
    best = max(rates.values())
    size = min(rows for rows, rate in rates.items() if rate >= best * _GOOD_ENOUGH)
    return size, rates[size]


def _enough_workers(measured: Measurements, rows: int) -> int:
    """Those that step as fast as the head infers."""
    of_one = measured.stepping_rate / measured.workers
    rate = rows / (measured.head_s[rows] + measured.exchange_s[rows])
    return max(1, min(measured.workers, math.ceil(rate / of_one)))


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:,.1f} ms"


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:,.1f} kB"
