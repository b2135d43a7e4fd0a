"""How much each slot explores."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from clusterenv.learners.common.exploration import epsilon_ladder, greediest
from tests.learners.kit import vectors

TABLES = vectors("apex_epsilon")


@pytest.mark.parametrize(("slots", "expected"), [(int(slots), table) for slots, table in TABLES["tables"].items()])
def test_the_ladder_is_that_of_the_tables(slots: int, expected: list[float]) -> None:
    assert epsilon_ladder(slots) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("spot", TABLES["spot_checks"], ids=str)
def test_single_rungs_of_long_ladders(spot: dict[str, Any]) -> None:
    assert epsilon_ladder(spot["N"])[spot["i"]] == pytest.approx(spot["epsilon"], rel=1e-12)


@given(slots=st.integers(1, 50), epsilon=st.floats(0, 1), power=st.floats(0, 20))
def test_every_rung_is_a_share_and_no_later_one_is_higher(slots: int, epsilon: float, power: float) -> None:
    ladder = epsilon_ladder(slots, epsilon, power)
    assert len(ladder) == slots
    assert ladder[0] == epsilon
    assert all(0 <= value <= 1 for value in ladder)
    assert list(ladder) == sorted(ladder, reverse=True)


@given(slots=st.integers(1, 50))
def test_the_last_third_of_the_slots_tells_how_good_the_policy_is(slots: int) -> None:
    scored = greediest(slots)
    assert scored.stop == slots
    assert 1 <= len(scored) < slots / 3 + 1
