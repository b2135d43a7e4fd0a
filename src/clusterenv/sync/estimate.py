"""How far is each worker's policy from the newest one? Measured on the head, without one extra byte on the wire.

The head already receives what workers saw and the distribution that they acted from. It keeps a small sample of that
for each worker, evaluates the newest policy on all samples in one batch, and compares. A mean over states is what
comes out, so the number of environments, or of other workers, does not change it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from clusterenv.errors import ConfigError, unknown
from clusterenv.sync.rules import check_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from clusterenv.sync.versions import Version

    Array = npt.NDArray[Any]
    Floats = npt.NDArray[np.float64]
    RuntimeParams = Callable[[Sequence[Array], tuple[Array, ...]], Array]

# What can be compared: the distributions themselves, or only the log-probabilities of the actions.
DIVERGENCES = ("auto", "logp")

_GOLDEN = 0.6180339887498949


class Distribution(Protocol):
    """What of an action distribution is needed here.

    One that tells slots apart has `at(slots)` too: the distribution of rows that belong to these.
    """

    def log_prob(self, params: Array, actions: Array) -> Array:
        """[n] log-probabilities of the actions."""

    def divergence(self, old: Array, new: Array) -> Array:
        """[n] how far `new` is from `old`, at least 0, and 0 for equal ones."""


class Measurement(NamedTuple):
    """What was measured.

    Attributes:
        divergence: [workers] mean over the worker's sample; 0 where there is none, so that nothing moves for it.
        ess: [workers] effective sample size over sample size, in (0, 1]; NaN where there is no sample, so that a mean
            can leave it out. 0 if the newest policy would take none of the actions.
        rows: [workers] how many rows each number comes from.
    """

    divergence: Floats
    ess: Floats
    rows: npt.NDArray[np.intp]


class Estimator:
    """The head's sample of what each worker saw and did, and the measurement on it.

    Args:
        workers: how many workers there are.
        distribution: the action distribution of the policy.
        per_worker: rows to keep of each worker. 64 are enough for a decision: measured on PPO, nine of ten estimates
            are within a factor of two of the truth, with 64 rows as with 1024.
        budget: rows to evaluate in one measurement, over all workers. If it does not go round, each keeps fewer.
        divergence: "auto" compares distributions; "logp" only the log-probabilities of the actions that were taken,
            by the mean of r - 1 - log r, which is never negative and has the divergence as its expectation.

    Example:
        >>> from clusterenv.policy.distributions import Categorical
        >>> estimator = Estimator(workers=2, distribution=Categorical(2))
        >>> ones = np.ones((4, 1), np.float32)
        >>> estimator.observe(0, [ones], (), np.zeros((4, 2), np.float32), np.zeros(4, int), np.full(4, np.log(0.5)))
        True
        >>> measured = estimator.measure(lambda leaves, state: np.tile(np.float32([0, 1]), (len(leaves[0]), 1)))
        >>> measured.divergence.round(2), measured.rows
        (array([0.12, 0.  ]), array([4, 0]))
    """

    def __init__(
        self,
        workers: int,
        distribution: Distribution,
        per_worker: int = 64,
        budget: int = 2048,
        divergence: str = "auto",
    ) -> None:
        for name, value in (("workers", workers), ("per_worker", per_worker), ("budget", budget)):
            check_whole(name, value)
        if budget < workers:
            raise ConfigError(f"budget={budget} rows cannot give each of {workers} workers one. Raise it.")
        if divergence not in DIVERGENCES:
            raise ConfigError(unknown("divergence", str(divergence), DIVERGENCES))
        self.rows_each = min(per_worker, budget // workers)
        self._distribution = distribution
        self._by_logp = divergence == "logp"
        self._count = np.zeros(workers, dtype=np.intp)
        self._version: list[Version | None] = [None] * workers
        self._kept: _Rows | None = None
        self._fresh = False

    @property
    def fresh(self) -> bool:
        """Whether data has come in since the last measurement."""
        return self._fresh

    def observe(
        self,
        worker: int,
        leaves: Sequence[Array],
        state: tuple[Array, ...],
        params: Array,
        actions: Array,
        logp: Array,
        *,
        version: Version | None = None,
        slots: Array | None = None,
    ) -> bool:
        """Replace the worker's sample by some of these rows, spread evenly over them. They are copied.

        All rows must come from one version, the one that the worker holds. Rows of an older version than the sample's
        are not taken: they were under way when the worker got new weights, and would show a drift that is over.

        Args:
            worker: whose rows they are.
            leaves: observations, one array [n, ...] per leaf.
            state: recurrent state before these steps, each [n, ...].
            params: [n, P] distribution parameters that the worker used.
            actions: [n, ...] what it did.
            logp: [n] the log-probabilities of that.
            version: the version that it acted with, if it is known.
            slots: [n] whose rows they are; needed if the distribution tells slots apart.

        Returns:
            Whether the sample was replaced.
        """
        held = self._version[worker]
        slots = np.zeros(len(params), np.intp) if slots is None else slots
        late = version is not None and held is not None and version < held
        if late or len(params) == 0:
            return False
        chosen = _spread(len(params), self.rows_each)
        seen = _Rows(list(leaves), state, params, actions, logp, slots)
        if self._kept is None:
            self._kept = seen.room_for(len(self._count) * self.rows_each)
        start = worker * self.rows_each
        self._kept.put(slice(start, start + len(chosen)), seen.at(chosen))
        self._count[worker] = len(chosen)
        self._version[worker] = version if version is not None else held
        self._fresh = True
        return True

    def spread(self, count: int) -> npt.NDArray[np.intp]:
        """Which of `count` rows `observe` would keep: for callers who can fetch those alone."""
        return _spread(count, self.rows_each)

    def measure(self, runtime_params: RuntimeParams) -> Measurement:
        """Compare every worker's policy with another one, in one batch.

        Args:
            runtime_params: gives the parameters [n, P] of that policy for leaves and state; called once, or not at all
                if there is no data.
        """
        self._fresh = False
        count = self._count.copy()
        rows = self._rows(range(len(count)))
        divergence, ess = np.zeros(len(count)), np.full(len(count), np.nan)
        if self._kept is None or not len(rows):
            return Measurement(divergence, ess, count)
        sample = self._kept.at(rows)
        distribution = self._for_slots(sample.slots)
        new = runtime_params(sample.leaves, sample.state)
        log_ratio = np.asarray(distribution.log_prob(new, sample.actions), np.float64) - sample.logp
        values = _divergence_by_logp(log_ratio) if self._by_logp else distribution.divergence(sample.params, new)
        known = count > 0
        divergence[known] = self._table(rows, values, 0.0).sum(axis=1)[known] / count[known]
        ess[known] = _effective(self._table(rows, log_ratio, -np.inf)[known]) / count[known]
        return Measurement(divergence, ess, count)

    def rebase(
        self, runtime_params: RuntimeParams, workers: Iterable[int] | None = None, version: Version | None = None
    ) -> None:
        """These workers (all if None) now hold another policy: compare with that one from now on.

        The observations stay. The actions do too, and count as taken by the new policy with its own probabilities: an
        approximation that only touches the effective sample size, until the worker's next rows arrive. With "logp" it
        would be the divergence itself, of actions that the new policy may hardly take: there the samples are dropped.

        Args:
            runtime_params: gives the parameters of the policy that they hold now, with weights as they decoded them.
            workers: who got it.
            version: its version; older rows will not be taken any more.
        """
        chosen = range(len(self._count)) if workers is None else list(workers)
        if self._by_logp:
            self._count[chosen] = 0
        rows = self._rows(chosen)
        if self._kept is not None and len(rows):
            sample = self._kept.at(rows)
            params = runtime_params(sample.leaves, sample.state)
            logp = self._for_slots(sample.slots).log_prob(params, sample.actions)
            self._kept.params[rows], self._kept.logp[rows] = params, logp
        for worker in chosen:
            self._version[worker] = version if version is not None else self._version[worker]

    def _for_slots(self, slots: Array) -> Distribution:
        """The distribution of rows that belong to these slots."""
        at = getattr(self._distribution, "at", None)
        found: Distribution = self._distribution if at is None else at(slots)
        return found

    def _rows(self, workers: Iterable[int]) -> npt.NDArray[np.intp]:
        """Where the samples of these workers lie in the kept arrays."""
        wanted = np.zeros((len(self._count), self.rows_each), dtype=np.bool_)
        for worker in workers:
            wanted[worker, : self._count[worker]] = True
        return np.flatnonzero(wanted)

    def _table(self, rows: npt.NDArray[np.intp], values: Array, otherwise: float) -> Floats:
        """Values by worker, so that each worker's sum depends on its own rows only, to the last bit."""
        table = np.full(len(self._count) * self.rows_each, otherwise, dtype=np.float64)
        table[rows] = values
        return table.reshape(len(self._count), self.rows_each)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Some rows of what workers saw and did: the arguments of `Estimator.observe`."""

    leaves: list[Array]
    state: tuple[Array, ...]
    params: Array
    actions: Array
    logp: Array
    slots: Array

    def at(self, rows: npt.NDArray[np.intp]) -> _Rows:
        """These rows, copied."""
        return self._each(lambda column: column[rows])

    def room_for(self, count: int) -> _Rows:
        """So many rows of this kind, of zeros."""
        return self._each(lambda column: np.zeros((count, *column.shape[1:]), column.dtype))

    def put(self, where: slice, other: _Rows) -> None:
        """Write other rows over these."""
        for mine, theirs in zip(self.columns(), other.columns(), strict=True):
            mine[where] = theirs

    def columns(self) -> list[Array]:
        """All arrays, with a row for each."""
        return [*self.leaves, *self.state, self.params, self.actions, self.logp, self.slots]

    def _each(self, change: Callable[[Array], Array]) -> _Rows:
        return _Rows(
            [change(leaf) for leaf in self.leaves],
            tuple(change(part) for part in self.state),
            change(self.params),
            change(self.actions),
            change(self.logp),
            change(self.slots),
        )


@functools.lru_cache(maxsize=64)
def _spread(count: int, most: int) -> npt.NDArray[np.intp]:
    """At most `most` of `count` rows, spread evenly.

    One row is taken from each of `most` equal stretches, at a place that wanders by the golden ratio. A plain stride
    would be a trap: rows come step by step, and a stride that is a multiple of the number of environments would see
    one of them only.
    """
    if count <= most:
        return np.arange(count)
    edges = (np.arange(most + 1) * count) // most
    places = (np.arange(most) * _GOLDEN) % 1.0
    return edges[:-1] + (places * np.diff(edges)).astype(np.intp)


def _divergence_by_logp(log_ratio: Floats) -> Floats:
    """For each row, r - 1 - log r: the mean of that is the divergence."""
    with np.errstate(over="ignore"):
        ratio = np.exp(log_ratio)
    return ratio - 1.0 - log_ratio


def _effective(log_ratio: Floats) -> Floats:
    """(sum of ratios) ** 2 / sum of squares, by row. Only relations matter, so the largest ratio is made 1."""
    largest = log_ratio.max(axis=1, keepdims=True)
    ratio = np.exp(log_ratio - np.where(np.isneginf(largest), 0.0, largest))
    squares = (ratio**2).sum(axis=1)
    effective: Floats = ratio.sum(axis=1) ** 2 / np.where(squares == 0.0, 1.0, squares)
    return effective
