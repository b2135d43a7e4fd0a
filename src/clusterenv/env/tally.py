"""What has been counted while a policy acts on the workers: the numbers of `stats()`."""

from __future__ import annotations

import collections
import contextlib
import time
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from clusterenv.env.batch import Batch
    from clusterenv.worker.actor import Fragment

# The upper ends of the histograms' bins; one more bin takes what is above.
LAG_BINS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
DIVERGENCE_BINS = (0.0, 1e-4, 1e-3, 3e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
# How many of the last measurements are told one by one: more than one row of metrics is about.
_RECENT = 64
# How many values percentiles are made of, and how many versions may wait for somebody to act with them.
_KEPT = 1_000


class Histogram:
    """Counts, mean and maximum, in constant memory.

    Example:
        >>> lags = Histogram((0, 1, 2))
        >>> lags.add(np.array([0, 0, 2, 7]))
        >>> lags.summary()
        {'mean': 2.25, 'max': 7.0, 'histogram': {'<=0': 2, '<=1': 0, '<=2': 1, '>2': 1}}
    """

    def __init__(self, bins: tuple[float, ...]) -> None:
        self._bins = np.array(bins, dtype=np.float64)
        self._counts = np.zeros(len(bins) + 1, dtype=np.int64)
        self._sum, self._count, self._max = 0.0, 0, 0.0

    def add(self, values: npt.NDArray[Any]) -> None:
        """Count these values."""
        flat = values.ravel()
        if not flat.size:
            return
        self._counts += np.bincount(np.searchsorted(self._bins, flat), minlength=len(self._counts))
        self._sum += float(flat.sum())
        self._count += flat.size
        self._max = max(self._max, float(flat.max()))

    def summary(self) -> dict[str, Any]:
        """Mean, maximum and the counts by bin."""
        names = [f"<={edge:g}" for edge in self._bins] + [f">{self._bins[-1]:g}"]
        return {
            "mean": self._sum / max(1, self._count),
            "max": self._max,
            "histogram": dict(zip(names, self._counts.tolist(), strict=True)),
        }


class Latest:
    """The last thousand values of something, for its percentiles.

    Example:
        >>> times = Latest()
        >>> times.summary()
        {}
        >>> for value in (1.0, 2.0, 3.0):
        ...     times.add(value)
        >>> times.summary()
        {'p50': 2.0, 'p99': 2.98}
    """

    def __init__(self) -> None:
        self._values: collections.deque[float] = collections.deque(maxlen=_KEPT)

    def add(self, value: float) -> None:
        """One more; the oldest may go for it."""
        self._values.append(value)

    def summary(self) -> dict[str, float]:
        """The median, and what one in a hundred exceeds; nothing before there is a value."""
        if not self._values:
            return {}
        p50, p99 = np.percentile(self._values, [50, 99])
        return {"p50": float(p50), "p99": float(p99)}


class Tally:
    """Counters since `attach`."""

    def __init__(self) -> None:
        self.steps = self.episodes = self.publishes = self.dropped_steps = self.measurements = 0
        self.sync_reasons: collections.Counter[str] = collections.Counter()
        self.weight_bytes: collections.Counter[str] = collections.Counter()
        self._lag, self._divergence = Histogram(LAG_BINS), Histogram(DIVERGENCE_BINS)
        self._recent: collections.deque[tuple[float, float]] = collections.deque(maxlen=_RECENT)
        self._ess_sum, self._ess_count, self._ess_least = 0.0, 0, 1.0
        self._step_s, self._apply_s = Latest(), Latest()
        self._step_s_of: dict[int, float] = {}  # the last of each worker
        # Versions that nobody has acted with, as far as is known, and since when. Bounded: with `never` nobody will.
        self._unapplied: collections.deque[tuple[int, float]] = collections.deque(maxlen=_KEPT)
        self._time_s = dict.fromkeys(("env", "policy", "idle", "wait", "encode", "estimate"), 0.0)

    @contextlib.contextmanager
    def time(self, what: str) -> Iterator[None]:
        """Add the time that passes inside to what the head spends on this."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._time_s[what] += time.perf_counter() - began

    def published(self, number: int, now_s: float) -> None:
        """A new version exists since `now_s`."""
        self.publishes += 1
        self._unapplied.append((number, now_s))

    def applied(self, number: int, now_s: float) -> None:
        """Somebody has acted with this version, and therefore with none of those before it any more."""
        while self._unapplied and self._unapplied[0][0] <= number:
            self._apply_s.add(now_s - self._unapplied.popleft()[1])

    def straggler_ratio(self, workers: Iterable[int]) -> float | None:
        """The step of the slowest of these workers over that of the one in the middle, by the last fragment of each."""
        known = [self._step_s_of[worker] for worker in workers if worker in self._step_s_of]
        middle = float(np.median(known)) if known else 0.0
        return max(known) / middle if middle else None

    def fragment(self, worker: int, fragment: Fragment) -> None:
        """A fragment of this worker has arrived."""
        if fragment.steps:
            self._step_s_of[worker] = (fragment.env_s + fragment.policy_s) / fragment.steps
            self._step_s.add(self._step_s_of[worker])
        self._time_s["env"] += fragment.env_s
        self._time_s["policy"] += fragment.policy_s
        self._time_s["idle"] += fragment.idle_s

    def batch(self, batch: Batch) -> None:
        """A batch goes to the learner."""
        self.steps += batch.steps
        self.episodes += len(batch.episodes.returns)
        self._lag.add(batch.lag)

    def measured(self, divergence: npt.NDArray[np.float64], ess: npt.NDArray[np.float64] | None) -> None:
        """The divergence of a host's workers has been measured, and the effective sample size; NaN is not known."""
        self.measurements += 1
        found = divergence[~np.isnan(divergence)]
        self._divergence.add(found)
        if found.size:
            self._recent.append((float(found.mean()), float(found.max())))
        known = [] if ess is None else ess[~np.isnan(ess)].tolist()
        self._ess_sum += sum(known)
        self._ess_count += len(known)
        self._ess_least = min([self._ess_least, *known])

    def sync(self, reason: str, kind: str, nbytes: int) -> None:
        """Weights have moved to a node."""
        self.sync_reasons[reason] += 1
        self.weight_bytes[kind] += nbytes

    def summary(self) -> dict[str, Any]:
        """Everything, as a plain dict."""
        return {
            "steps": self.steps,
            "episodes": self.episodes,
            "dropped_steps": self.dropped_steps,
            "publishes": self.publishes,
            "syncs": sum(self.sync_reasons.values()),
            "sync_reasons": dict(self.sync_reasons),
            "weight_bytes": {**self.weight_bytes, "total": sum(self.weight_bytes.values())},
            "lag": self._lag.summary(),
            "divergence": {**self._divergence.summary(), "recent": [list(each) for each in self._recent]},
            "ess": {"mean": self._ess_sum / self._ess_count if self._ess_count else 1.0, "min": self._ess_least},
            "measurements": self.measurements,
            "publish_to_apply_s": self._apply_s.summary(),
            "step_s": self._step_s.summary(),
            "time_s": dict(self._time_s),
        }
