"""Where sequences start, against layouts that were worked out beforehand."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.learners.replay.cutting import Cutting
from tests.learners.kit import vectors

VECTORS = vectors("r2d2_sequences")


@st.composite
def cuttings(draw: st.DrawFn) -> Cutting:
    length = draw(st.integers(1, 8))
    return Cutting(length, draw(st.integers(0, 8)), draw(st.integers(0, length - 1)))


@pytest.mark.parametrize("layout", VECTORS["layouts"], ids=lambda layout: str(layout["episode_length"]))
def test_starts_are_those_worked_out_beforehand(layout: dict[str, Any]) -> None:
    cutting = Cutting(VECTORS["m"], VECTORS["burn_in"], VECTORS["overlap"])
    starts = cutting.complete(0, 0, layout["episode_length"], ended=True)
    assert starts == [sequence["train_start"] for sequence in layout["sequences"]]


@given(cuttings(), st.integers(1, 60), st.integers(0, 60))
def test_every_step_is_in_a_sequence_and_none_is_without_a_step_of_its_own(
    cutting: Cutting, steps: int, at: int
) -> None:
    at = min(at, steps)
    early = cutting.complete(0, 0, at, ended=False)
    starts = early + cutting.complete(0, len(early) * cutting.stride, steps, ended=True)
    # It does not matter in how many parts an episode came.
    assert starts == cutting.complete(0, 0, steps, ended=True)
    spans = [range(start, min(start + cutting.length, steps)) for start in starts]
    assert sorted(set().union(*spans)) == list(range(steps))
    for before, span in itertools.pairwise(spans):
        assert span.stop > before.stop
        assert span.start - before.start == cutting.stride
        assert len(before) == cutting.length


def test_what_was_not_seen_from_its_start_begins_with_a_burn_in() -> None:
    cutting = Cutting(length=4, burn_in=3, overlap=1)
    assert cutting.origin(10, seen=True) == 10
    assert cutting.origin(10, seen=False) == 13
    assert cutting.complete(13, 13, 12, ended=True) == []
    assert cutting.complete(13, 13, 14, ended=True) == [13]
