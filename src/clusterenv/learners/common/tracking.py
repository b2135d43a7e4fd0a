"""From batches and the cluster's own counters to metrics and a summary. Time comes in as an argument."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.learners.common.tasks import task_of
from clusterenv.metrics import keys
from clusterenv.sync.codec import encode, rounded
from clusterenv.sync.versions import Version
from clusterenv.sync.weights import WeightSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterenv.env.batch import Batch

WINDOW = 100  # episodes in the mean return
# What learners tell that grows over the run: a mean would be a total of some time ago.
_TOTALS = (keys.DROPPED.name,)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What came of a run.

    Steps, seconds, episodes and returns are those of the whole run. What is told of updates, weights, lag, divergence
    and restarts is counted from where it was last resumed: a run that was killed could not save its last counts.

    Attributes:
        env_id: the environment, or those of several tasks.
        seed: of the run.
        steps: environment steps, over all workers.
        resumed_at: after how many of them it was last resumed; 0 if never.
        seconds: from the first to the last.
        episodes: that finished.
        final_return: mean over the last 100 of them; NaN if none finished.
        updates: how often the learner learned; 0 if its memory never held enough.
        publishes: versions that the learner made.
        syncs: how often weights moved to a worker or node.
        sync_reasons: why, with counts.
        bytes: of weights that moved.
        always_bytes: what sending all weights to every host at every version would have moved.
        lag_mean: versions between the newest policy and the one that acted, over all transitions.
        lag_max: the largest of these.
        divergence_mean: of the workers' policies from the newest one, over all measurements, each at a publish and
            before weights moved because of it; NaN if there were none.
        divergence_max: the largest of these.
        restarts: workers that were lost and started afresh.
        interrupted: whether it was stopped from outside.
        task_returns: of several tasks, the mean return of each over its last 100 episodes; NaN if none finished.
    """

    env_id: str
    seed: int
    steps: int
    seconds: float
    episodes: int
    final_return: float
    updates: int
    publishes: int
    syncs: int
    sync_reasons: dict[str, int] = field(default_factory=dict)
    bytes: int
    always_bytes: int
    lag_mean: float
    lag_max: int
    divergence_mean: float
    divergence_max: float
    restarts: int = 0
    interrupted: bool = False
    task_returns: dict[str, float] = field(default_factory=dict)
    resumed_at: int = 0

    @property
    def steps_per_second(self) -> float:
        """Over the whole run."""
        return self.steps / self.seconds if self.seconds > 0 else math.nan

    @property
    def saved(self) -> float:
        """Share of the bytes that were saved, against sending all weights at every version."""
        return saved_share(self.bytes, self.always_bytes)


@dataclass
class Tracker:
    """Counts what goes by.

    Attributes:
        workers: how many there are if none is lost, on all hosts together.
        full_bytes: the size of all weights, encoded without a base.
        scored: the slots whose returns count; None for all.
        tasks: the names of several, () if there is one.
        steps: so far.
        episodes: finished so far.
        updates: from which something was learned, since it was resumed.
        resumed_at: after how many steps it was resumed.
    """

    workers: int
    full_bytes: int
    scored: range | None = None
    tasks: tuple[str, ...] = ()
    steps: int = 0
    episodes: int = 0
    updates: int = 0
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    lengths: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def __post_init__(self) -> None:
        self.by_task: list[deque[float]] = [deque(maxlen=WINDOW) for _ in self.tasks]
        self._lag_sum, self._lag_max, self._seen = 0.0, 0, 0
        self._batch_values: dict[str, float] = {}
        self._before: Mapping[str, Any] = {}
        self._steps_before, self._seconds_before, self._waited_s = self.steps, 0.0, 0.0
        self.resumed_at = 0

    @property
    def mean_return(self) -> float:
        """Mean return of the last 100 finished episodes; NaN before the first."""
        return float(np.mean(self.returns)) if self.returns else math.nan

    @property
    def task_returns(self) -> dict[str, float]:
        """Of several tasks, the mean return of each over its last 100 finished episodes; NaN before the first."""
        means = [float(np.mean(returns)) if returns else math.nan for returns in self.by_task]
        return dict(zip(self.tasks, means, strict=True))

    def resume(self, steps: int, seconds: float) -> None:
        """Go on after so many steps and seconds of an earlier run: the first interval begins here."""
        self.steps = self._steps_before = self.resumed_at = steps
        self._seconds_before = seconds

    def take(self, batch: Batch, waited_s: float) -> None:
        """Count a batch for which the learner waited this long."""
        self.steps += batch.steps
        self._waited_s += waited_s
        episodes = batch.episodes
        self.episodes += len(episodes.returns)
        counts = slice(None) if self.scored is None else np.isin(episodes.slots, self.scored)
        self.returns.extend(np.asarray(episodes.returns, float)[counts].tolist())
        self.lengths.extend(np.asarray(episodes.lengths, float)[counts].tolist())
        if self.tasks:
            for told, slot in zip(episodes.returns, episodes.slots, strict=True):
                self.by_task[task_of(int(slot), len(self.tasks))].append(float(told))
        self._seen += batch.lag.size
        self._lag_sum += float(batch.lag.sum())
        self._lag_max = max(self._lag_max, int(batch.lag.max()))
        self._batch_values = {
            keys.POLICY_LAG_MIN.name: float(batch.lag.min()),
            keys.POLICY_LAG_MEAN.name: float(batch.lag.mean()),
            keys.POLICY_LAG_MAX.name: float(batch.lag.max()),
        }

    def metrics(self, stats: Mapping[str, Any], seconds: float) -> dict[str, float]:
        """The metrics of the interval since the last call, from the counters of `ClusterEnv.stats()`."""
        passed = seconds - self._seconds_before
        syncs, publishes = self._since(stats, "syncs"), self._since(stats, "publishes")
        values = {
            **self._batch_values,
            keys.EPISODES.name: self.episodes,
            keys.SYNC_COUNT.name: syncs,
            keys.SYNC_PUBLISHES.name: publishes,
            keys.SYNC_BYTES.name: total_bytes(stats) - total_bytes(self._before),
            keys.SYNC_SKIPPED.name: max(0.0, publishes * stats.get("hosts", 1) - syncs),
            keys.SYNC_SAVED.name: saved_share(total_bytes(stats), self.always_bytes(stats)),
            keys.WORKERS.name: self.workers,
            keys.WORKERS_READY.name: stats.get("workers_ready", self.workers),
            keys.RESTARTS.name: stats.get("restarts", 0),
            **self._reasons(stats),
            **self._divergence(stats),
            **_milliseconds(stats.get("publish_to_apply_s"), keys.PUBLISH_TO_APPLY_P50, keys.PUBLISH_TO_APPLY_P99),
            **_milliseconds(stats.get("step_s"), keys.STEP_P50, keys.STEP_P99),
            **_inference(stats.get("inference")),
        }
        if stats.get("straggler_ratio") is not None:
            values[keys.STRAGGLER_RATIO.name] = stats["straggler_ratio"]
        if self.returns:
            values |= {keys.EPISODIC_RETURN.name: self.mean_return}
            values |= {keys.EPISODIC_LENGTH.name: float(np.mean(self.lengths))}
            values |= {f"{keys.TASK_RETURN_PREFIX}{name}": mean for name, mean in self.task_returns.items()}
        if passed > 0:
            values[keys.SPS.name] = (self.steps - self._steps_before) / passed
            values[keys.LEARNER_WAIT.name] = min(1.0, self._waited_s / passed)
            values |= self._network(stats, passed)
            if "idle" in stats.get("time_s", {"idle": 0.0}):  # workers tell it only if the policy acts there
                values[keys.WORKER_WAIT.name] = min(1.0, self._idle_s(stats) / (passed * max(1, self.workers)))
        self._before, self._seconds_before, self._steps_before = dict(stats), seconds, self.steps
        self._waited_s = 0.0
        return {name: float(value) for name, value in values.items() if not math.isnan(value)}

    def always_bytes(self, stats: Mapping[str, Any]) -> int:
        """What sending all weights to every host at every version would have moved, the first version included."""
        versions = int(stats.get("publishes", 0)) + bool(stats.get("syncs"))
        return versions * int(stats.get("hosts", 1)) * self.full_bytes

    def summary(self, stats: Mapping[str, Any], *, env_id: str, seed: int, seconds: float) -> Summary:
        """What came of it all."""
        return Summary(
            env_id=env_id,
            seed=seed,
            steps=self.steps,
            seconds=seconds,
            episodes=self.episodes,
            final_return=self.mean_return,
            updates=self.updates,
            publishes=int(stats.get("publishes", 0)),
            syncs=int(stats.get("syncs", 0)),
            sync_reasons=dict(stats.get("sync_reasons", {})),
            bytes=total_bytes(stats),
            always_bytes=self.always_bytes(stats),
            lag_mean=self._lag_sum / self._seen if self._seen else math.nan,
            lag_max=self._lag_max,
            divergence_mean=stats["divergence"]["mean"] if stats.get("measurements") else math.nan,
            divergence_max=stats["divergence"]["max"] if stats.get("measurements") else math.nan,
            restarts=int(stats.get("restarts", 0)),
            task_returns=self.task_returns,
            resumed_at=self.resumed_at,
        )

    def _since(self, stats: Mapping[str, Any], name: str) -> float:
        return float(stats.get(name, 0) - self._before.get(name, 0))

    def _reasons(self, stats: Mapping[str, Any]) -> dict[str, float]:
        before = self._before.get("sync_reasons", {})
        counts = stats.get("sync_reasons", {})
        return {f"{keys.REASON_PREFIX}{reason}": count - before.get(reason, 0) for reason, count in counts.items()}

    def _network(self, stats: Mapping[str, Any], passed: float) -> dict[str, float]:
        """Messages per second since the last call. Not of the first interval: what came before it was counted, too."""
        now, before = stats.get("network_bytes"), self._before.get("network_bytes")
        if now is None or before is None:
            return {}
        ways = {keys.BYTES_IN.name: "received", keys.BYTES_OUT.name: "sent"}
        return {name: (now[way] - before[way]) / passed for name, way in ways.items()}

    def _divergence(self, stats: Mapping[str, Any]) -> dict[str, float]:
        """Of the measurements since the last call; they were made before weights moved because of them."""
        recent = stats.get("divergence", {}).get("recent", ())
        new = list(recent)[-int(self._since(stats, "measurements")) :] if self._since(stats, "measurements") else []
        if not new:
            return {}
        mean = float(np.mean([each for each, _ in new]))
        return {keys.DIVERGENCE_MEAN.name: mean, keys.DIVERGENCE_MAX.name: max(largest for _, largest in new)}

    def _idle_s(self, stats: Mapping[str, Any]) -> float:
        """The time for which all workers together had nothing to play, as told since the last call."""
        now, before = stats.get("time_s", {}), self._before.get("time_s", {})
        return float(now.get("idle", 0.0) - before.get("idle", 0.0))


def _milliseconds(told: Mapping[str, float] | None, p50: keys.Metric, p99: keys.Metric) -> dict[str, float]:
    """Percentiles that were told in seconds."""
    return {p50.name: told["p50"] * 1000, p99.name: told["p99"] * 1000} if told else {}


def _inference(told: Mapping[str, Any] | None) -> dict[str, float]:
    """What is told of inference on the head, since the last time."""
    if not told or not told["batches"]:
        return {}
    return {
        keys.INFERENCE_BATCH.name: told["rows"] / told["batches"],
        keys.INFERENCE_FULL.name: told["full"] / told["batches"],
        keys.INFERENCE_P50.name: told["p50_s"] * 1000,
        keys.INFERENCE_P99.name: told["p99_s"] * 1000,
    }


class Means:
    """Means of what is told more often than it is written down; of totals the last.

    Example:
        >>> means = Means()
        >>> means.add({"loss": 1.0, "rate": 0.5})
        >>> means.add({"loss": 3.0})
        >>> means.take(), means.take()
        ({'loss': 2.0, 'rate': 0.5}, {})
    """

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def add(self, values: Mapping[str, float]) -> None:
        """Keep these; what is not a number is not known."""
        for name, value in values.items():
            if not math.isnan(value):
                self._values.setdefault(name, []).append(value)

    def take(self) -> dict[str, float]:
        """The mean of each since the last call, or the last."""
        values, self._values = self._values, {}
        return {name: float(told[-1] if name in _TOTALS else np.mean(told)) for name, told in values.items()}


def full_bytes(weights: Mapping[str, Any], encoding: str) -> int:
    """The size of all weights in this encoding, for a receiver that holds none.

    Example:
        >>> full_bytes({"w": np.zeros((2, 3), np.float32)}, "fp32")
        24
    """
    spec = WeightSpec.of(weights)
    return encode(spec, rounded(spec.flatten(weights), Version(0, 0), encoding), encoding).nbytes


def total_bytes(stats: Mapping[str, Any]) -> int:
    """Bytes of weights that have moved, of all encodings."""
    return int(stats.get("weight_bytes", {}).get("total", 0))


def saved_share(sent: int, always: int) -> float:
    """Share of `always` that was not sent; NaN before anything could be.

    Example:
        >>> saved_share(12, 100)
        0.88
    """
    return 1.0 - sent / always if always else math.nan
