"""Guesses between measurements: calibrated, robust, and asking for measurements at a bounded rate."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.sync.distance import Distance, distance_squared, should_measure
from clusterenv.sync.weights import Flat


def test_without_a_measurement_there_is_no_guess() -> None:
    assert Distance().predict(1.0) is None


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(1e-6, 1e3))
def test_one_measurement_gives_the_square_law(factor: float, near: float, far: float) -> None:
    distance = Distance()
    distance.learn(factor * near, near)
    assert distance.predict(far) == pytest.approx(factor * far)


@pytest.mark.parametrize("unit", ["share", "distance"])
def test_other_units_grow_with_the_distance_itself(unit: str) -> None:
    distance = Distance(unit)
    distance.learn(0.1, 4.0)
    assert distance.predict(16.0) == pytest.approx(0.2)


def test_an_outlier_changes_little() -> None:
    distance = Distance()
    for measured in (1.0, 1.1, 0.9, 500.0, 1.0):
        distance.learn(measured, 1.0)
    assert distance.predict(1.0) == 1.0


def test_old_measurements_are_forgotten() -> None:
    distance = Distance(window=5)
    for measured in [1.0] * 100 + [2.0] * 3:
        distance.learn(measured, 1.0)
    assert distance.predict(1.0) == 2.0
    assert len(distance._factors) == 5


@pytest.mark.parametrize(
    ("measured", "squared"), [(0.0, 1.0), (1e-12, 1.0), (math.nan, 1.0), (math.inf, 1.0), (1.0, 0.0)]
)
def test_nothing_is_learnt_from_rounding_or_nonsense(measured: float, squared: float) -> None:
    distance = Distance()
    distance.learn(measured, squared)
    assert distance.predict(1.0) is None


def test_the_distance_of_weights() -> None:
    left, right = (Flat(np.array(values, np.float32), b"x") for values in ([1, 2, 3], [1, 4, 0]))
    assert distance_squared(left, right) == 13.0
    assert distance_squared(left, left) == 0.0
    assert distance_squared(Flat(np.empty(0, np.float32), b""), Flat(np.empty(0, np.float32), b"")) == 0.0


def test_the_square_law_holds_for_a_softmax_policy() -> None:
    # What the guess rests on: along a direction, the divergence of a small step grows with its square.
    rng = np.random.default_rng(0)
    base, direction = rng.normal(0, 1, 5), rng.normal(0, 1, 5)

    def divergence(size: float) -> float:
        p, q = (np.exp(x) / np.exp(x).sum() for x in (base, base + size * direction))
        return float((p * np.log(p / q)).sum())

    distance = Distance()
    distance.learn(divergence(0.05), 0.05**2)
    assert distance.predict(0.1**2) == pytest.approx(divergence(0.1), rel=0.1)


def test_new_data_is_always_measured() -> None:
    assert should_measure(0.0, 0.05, 1, fresh=True)


@pytest.mark.parametrize(
    ("predicted", "first"), [(None, 4), (0.0, 16), (0.0249, 16), (0.025, 4), (0.5, 4)], ids=lambda value: str(value)
)
def test_without_new_data_measurements_are_rare(predicted: float | None, first: int) -> None:
    asked = [should_measure(predicted, 0.05, since, fresh=False) for since in range(1, 20)]
    assert asked.index(True) + 1 == first
    assert all(asked[first - 1 :])


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=64, max_size=64))
def test_a_batch_with_many_versions_costs_a_quarter_of_them_at_most(guesses: list[float | None]) -> None:
    since = measured = 0
    for index, guess in enumerate(guesses):
        since += 1
        if should_measure(guess, 0.05, since, fresh=index == 0):
            measured, since = measured + 1, 0
    assert 4 <= measured <= 1 + 63 // 4
