"""How far the workers' policy is from the newest one: the estimator, fed with fragments, asked with every version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.errors import PolicyError, named
from clusterenv.sync.distance import Distance, distance_squared, should_measure
from clusterenv.sync.estimate import Estimator
from clusterenv.sync.versions import Version

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from clusterenv.policy.protocol import Distribution, Runtime
    from clusterenv.sync.codec import Decoded
    from clusterenv.sync.weights import WeightSpec
    from clusterenv.transport.fragments import Columns

    Array = npt.NDArray[Any]

# How many numbers the observations of one measurement may have, and how many rows of a worker it takes. It costs the
# head time for learning, so it takes fewer rows of large observations. More than 64 rows would not help: with 1,024
# just as many estimates (nine of ten) are within a factor of two.
_NUMBERS, _LEAST_ROWS, _MOST_ROWS = 4_000_000, 16, 64
# Where the rule has no threshold and the drift is measured all the same (`measure=True`).
_NO_THRESHOLD = 1e9


class Drift:
    """Runs the policy on the head, on observations that came from the workers.

    Args:
        workers: how many there are.
        distribution: of the policy.
        spec: of its weights.
        make_runtime: builds what runs it; best the same as on the workers, so that only the weights can differ.
        observation_size: how many numbers an observation has; of large ones fewer are taken.
        divergence: what is compared, see `APS`.
        name: of the policy, for errors.

    Attributes:
        divergence: [workers] for the rule: 0 where nothing is known, also when weights have just moved.
        ess: [workers] the same of the effective sample size; None if nothing is known.
        measured: [workers] what was measured last, for people: syncs leave it, so that it shows what they came from.
            NaN of workers of which nothing was known.
    """

    def __init__(
        self,
        workers: int,
        distribution: Distribution,
        spec: WeightSpec,
        make_runtime: Callable[[], Runtime],
        *,
        observation_size: int = 1,
        divergence: str = "auto",
        name: str = "the policy",
    ) -> None:
        self.divergence, self.measured = np.zeros(workers), np.full(workers, np.nan)
        self.ess: npt.NDArray[np.float64] | None = None
        self._estimator = Estimator(
            workers, distribution, per_worker=rows_each(workers, observation_size), divergence=divergence
        )
        self._distance = Distance(distribution.unit)
        self._spec, self._make_runtime = spec, make_runtime
        self._runtime: Runtime | None = None
        self._name = name
        self._publishes = 0
        # What the last measurement found of which version: weights that move because of it are those that it measured.
        self._found: tuple[Version, Array] | None = None

    def observe(self, worker: int, columns: Columns, epoch: int, slots_of: Array | None = None) -> None:
        """Keep some rows of a fragment: observations, with the distribution that the worker acted from.

        Args:
            worker: whose fragment it is.
            columns: its arrays.
            epoch: of its version.
            slots_of: [n], whose its columns are, for distributions that tell slots apart.
        """
        self._found = None  # it is not about these rows
        number = int(columns.version[-1, 0])
        first = int(np.argmax(columns.version[:, 0] == number))  # the worker may have changed its weights on the way
        steps, slots = columns.version.shape
        if columns.state and columns.states is None:
            # The state is known before the first step only.
            if first > 0:
                return
            times, rows = np.zeros(slots, dtype=np.intp), np.arange(slots)
            state = tuple(columns.state)
        else:
            chosen = self._estimator.spread((steps - first) * slots)
            times, rows = first + chosen // slots, chosen % slots
            state = tuple(part[times, rows] for part in columns.states or ())
        self._estimator.observe(
            worker,
            [array[times, rows] for array in columns.obs],
            state,
            columns.params[times, rows],
            columns.action[times, rows],
            columns.logp[times, rows],
            version=Version(epoch, number),
            slots=None if slots_of is None else slots_of[rows],
        )

    def update(self, newest: Decoded, held: Decoded, threshold: float | None) -> bool:
        """A version was published: measure, if that is worth its time. Returns whether anything was measured."""
        self._publishes += 1
        squared = distance_squared(newest.flat, held.flat)
        predicted = self._distance.predict(squared)
        bar = _NO_THRESHOLD if threshold is None else threshold
        if not should_measure(predicted, bar, self._publishes, fresh=self._estimator.fresh):
            return False
        measured = self._estimator.measure(self._params_of(newest))
        self.divergence, self.ess = measured.divergence, measured.ess
        self._distance.learn(float(measured.divergence.max()), squared)
        self._publishes = 0
        if not measured.rows.any():
            return False
        self.measured = np.where(measured.rows > 0, measured.divergence, np.nan)
        return True

    def rebase(self, held: Decoded) -> None:
        """The workers hold these weights now: no drift, and from here on it is measured from them."""
        self.divergence, self.ess = np.zeros_like(self.divergence), None
        self._publishes = 0
        self._estimator.rebase(self._params_of(held), version=held.version)

    def _params_of(self, weights: Decoded) -> Callable[[Sequence[Array], tuple[Array, ...]], Array]:
        def params(leaves: Sequence[Array], state: tuple[Array, ...]) -> Array:
            if self._found is not None and self._found[0] == weights.version:
                return self._found[1]
            try:
                if self._runtime is None:
                    self._runtime = self._make_runtime()
                self._runtime.load(self._spec.unflatten(weights.flat))
                found = self._runtime(leaves, state).params
            except Exception as error:  # the user's code
                raise PolicyError(
                    f"{self._name} failed on the head, on {len(leaves[0])} observations of the workers: {named(error)}"
                ) from error
            if np.isnan(found).any():  # it would pass for "no drift" in every comparison
                raise PolicyError(
                    f"{self._name} gives NaN for observations of the workers, in version {weights.version}."
                )
            self._found = weights.version, found
            return found

        return params


def rows_each(workers: int, observation_size: int) -> int:
    """How many observations of each worker a measurement takes, if each has so many numbers.

    Example:
        >>> rows_each(workers=2, observation_size=8), rows_each(workers=15, observation_size=4 * 84 * 84)
        (64, 16)
    """
    return min(_MOST_ROWS, max(_LEAST_ROWS, _NUMBERS // max(1, workers * observation_size)))
