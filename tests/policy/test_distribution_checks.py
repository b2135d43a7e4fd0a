"""Wrong values and wrong shapes: each is refused with the value, the rule and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces

from clusterenv.errors import ConfigError
from clusterenv.policy.distributions import (
    Bernoulli,
    Categorical,
    Deterministic,
    DiagGaussian,
    EpsilonGreedy,
    MultiCategorical,
    TanhGaussian,
    distribution_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable

inf, nan = float("inf"), float("nan")
bad: Any = None  # what a type checker would refuse

WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: Categorical(0), r"n=0 must be a whole number of at least 1"),
    (lambda: Categorical(True), r"n=True must be a whole number"),
    (lambda: Categorical(bad), r"n=None must be a whole number"),
    (lambda: Categorical(2, start=1.5), r"start=1\.5 must be a whole number"),  # type: ignore[arg-type]
    (lambda: Categorical(2, dtype="float32"), r"dtype='float32' must be an integer type"),
    (lambda: Categorical(2, dtype="whole"), r"dtype='whole' must be an integer type"),
    (lambda: MultiCategorical(()), r"nvec=\(\) is empty"),
    (lambda: MultiCategorical((2, 0)), r"nvec=0 must be a whole number of at least 1"),
    (lambda: MultiCategorical((2, 3), start=(1, 2, 3)), r"start=\(1, 2, 3\) must be one whole number, or 2"),
    (lambda: MultiCategorical((2, 3), shape=(3,)), r"shape=\(3,\) holds 3 number\(s\), but nvec makes it 2"),
    (lambda: Bernoulli(-1), r"n=-1 must be a whole number of at least 1"),
    (lambda: Bernoulli(4, shape=(2, 3)), r"shape=\(2, 3\) holds 6 number\(s\), but n=4 makes it 4"),
    (lambda: EpsilonGreedy(2, -0.1), r"epsilon=-0\.1 must lie in \[0, 1\]"),
    (lambda: EpsilonGreedy(2, 1.5), r"epsilon=1\.5 must lie in \[0, 1\]"),
    (lambda: EpsilonGreedy(2, nan), r"epsilon=nan must lie in \[0, 1\]"),
    (lambda: EpsilonGreedy(2, bad), r"epsilon=None must lie in \[0, 1\]"),
    (lambda: DiagGaussian(0), r"dim=0 must be a whole number of at least 1"),
    (lambda: DiagGaussian(2, low=1, high=-1), r"low=1\.0, high=-1\.0 \(dimension 0\): low must be below high"),
    (lambda: DiagGaussian(2, low=(0, 1), high=(1, 1)), r"low=1\.0, high=1\.0 \(dimension 1\)"),
    (lambda: DiagGaussian(2, low=inf), r"low=inf, high=inf"),
    (lambda: DiagGaussian(2, low=(0, 1, 2)), r"low=\(0, 1, 2\) must be one number, or one per dimension"),
    (lambda: DiagGaussian(2, high="much"), r"high='much' must be one number"),
    (lambda: DiagGaussian(2, low=(0, nan)), r"must hold no NaN"),
    (lambda: DiagGaussian(2, dtype="int8"), r"dtype='int8' must be a float type"),
    (lambda: TanhGaussian(-inf, 1), r"TanhGaussian needs finite bounds.*use DiagGaussian"),
    (lambda: TanhGaussian((-1, -1), (1, inf)), r"TanhGaussian needs finite bounds"),
    (lambda: TanhGaussian(bad, 1), r"low=None, high=1: TanhGaussian needs finite bounds"),
    (lambda: TanhGaussian(3, 3), r"low=3\.0, high=3\.0 \(dimension 0\)"),
    (lambda: TanhGaussian((-1, -1), (1, 1, 1)), r"must have the same shape"),
    (lambda: TanhGaussian(1e8, 1e8 + 1), r"are the same in float32"),
    (lambda: TanhGaussian(-1, 1, shape=(0,)), r"shape=0 must be a whole number of at least 1"),
    (lambda: Deterministic(-inf, inf), r"Deterministic needs finite bounds"),
    (lambda: Deterministic(-1, 1, noise_std=-0.5), r"noise_std=-0\.5 must be a finite number of at least 0"),
    (lambda: Deterministic(-1, 1, noise_std=inf), r"noise_std=inf must be a finite number"),
    (lambda: Deterministic(-1, 1, noise_std=bad), r"noise_std=None must be a finite number"),
]


@pytest.mark.parametrize(("make", "message"), WRONG, ids=[message[:50] for _, message in WRONG])
def test_wrong_values_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(3),
        spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]),
        spaces.Dict(a=spaces.Discrete(2)),
        spaces.Box(0, 255, (3,), np.uint8),
    ],
    ids=lambda space: type(space).__name__,
)
def test_a_space_without_a_usual_distribution_is_refused(space: spaces.Space[Any]) -> None:
    with pytest.raises(ConfigError, match=r"has no usual distribution; Discrete.*TransformAction"):
        distribution_for(space)


KIND = MultiCategorical((2, 3))


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: KIND.sample(zeros(4, 6), zeros(4, 2)), r"params have shape \(4, 6\).* takes 5 numbers per action"),
        (lambda: KIND.mode(np.array(1.0)), r"params have shape \(\)"),
        (lambda: KIND.entropy(zeros(4, 6)), r"params have shape \(4, 6\)"),
        (lambda: KIND.divergence(zeros(4, 5), zeros(4, 6)), r"params have shape \(4, 6\)"),
        (lambda: KIND.sample(zeros(4, 5), zeros(4, 1)), r"noise has shape \(4, 1\).*take \(4, 2\): 2 uniform number"),
        (lambda: KIND.sample(zeros(4, 5), zeros(3, 2)), r"noise has shape \(3, 2\)"),
        (lambda: KIND.log_prob(zeros(4, 5), zeros(4)), r"actions have shape \(4,\).*go with \(4, 2\)"),
        (lambda: KIND.log_prob(zeros(1, 5), np.array([[0, 3]])), r"the actions hold a 3.*counted from 0"),
        (lambda: KIND.log_prob(zeros(1, 5), np.array([[2, 0]])), r"the actions hold a 2"),
        (lambda: Categorical(2).log_prob(zeros(1, 2), np.array([-1])), r"the actions hold a -1"),
        (lambda: EpsilonGreedy(2, 0.1).log_prob(zeros(1, 2), np.array([2])), r"the actions hold a 2"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


def test_bounds_may_be_arrays_lists_or_one_number() -> None:
    by_array = TanhGaussian(np.array([-1, -1], np.float32), np.array([1, 1]))
    assert by_array == TanhGaussian([-1, -1], (1, 1)) == TanhGaussian(-1, 1, shape=(2,))
    assert DiagGaussian(4, low=np.zeros((2, 2)), shape=(2, 2)) == DiagGaussian(4, low=0, high=inf, shape=(2, 2))
    assert by_array != TanhGaussian((-1, -1), (1, 2))
