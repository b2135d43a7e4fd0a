"""Probabilities, weights, and what may not be a priority."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clusterenv.errors import ConfigError
from clusterenv.learners.replay.priorities import Priorities, importance, refuse_bad
from tests.learners.kit import vectors

VECTORS = vectors("prioritized_replay")


@pytest.mark.parametrize("case", VECTORS["results"], ids=lambda case: f"alpha={case['alpha']}")
def test_weights_are_those_worked_out_beforehand(case: dict[str, Any]) -> None:
    drawn = np.array(case["probabilities"])[case["sampled_indices"]]
    weights = importance(drawn, len(VECTORS["priorities"]), case["beta"])
    assert weights == pytest.approx(case["weights_normalised_by_batch_max"], rel=1e-6)
    assert weights.dtype == np.float32


@pytest.mark.parametrize("case", VECTORS["results"], ids=lambda case: f"alpha={case['alpha']}")
def test_chances_are_those_worked_out_beforehand(case: dict[str, Any]) -> None:
    priorities = Priorities(6, alpha=case["alpha"], beta=case["beta"])
    priorities.set(np.arange(6), np.array(VECTORS["priorities"]))
    places, chances = priorities.draw(20_000, np.random.default_rng(0))
    expected = np.array(case["probabilities"])
    # A priority of 0 counts as a millionth, so that it is not lost for ever.
    assert chances == pytest.approx(expected[places], rel=1e-3, abs=1e-3)
    assert np.bincount(places, minlength=6) / 20_000 == pytest.approx(expected, abs=1e-3)


def test_what_is_not_known_gets_the_largest_so_far() -> None:
    priorities = Priorities(3, alpha=1.0, beta=1.0)
    priorities.set(np.array([0]), np.array([4.0]))
    priorities.set(np.array([0, 1]), np.array([2.0, np.nan]))
    assert priorities.largest == 4.0
    _, chances = priorities.draw(300, np.random.default_rng(0))
    assert set(chances.round(4)) == {0.3333, 0.6667}
    assert priorities.holds(np.arange(3)).tolist() == [True, True, False]
    priorities.clear(np.array([1]))
    assert priorities.holds(np.arange(3)).tolist() == [True, False, False]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -0.5])
def test_bad_priorities_are_refused(bad: float) -> None:
    with pytest.raises(ConfigError, match=rf"index 1 is {bad}"):
        refuse_bad(np.arange(2), np.array([1.0, bad]))


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_bad_exponents_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=1.5"):
        Priorities(4, **{"alpha": 0.5, "beta": 0.5, name: 1.5})
