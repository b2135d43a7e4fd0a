"""Whoever is ahead waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.errors import ConfigError
from clusterenv.learners.replay.limiter import RateLimiter


@given(
    ratio=st.floats(0.1, 20.0),
    start=st.integers(0, 50),
    insert=st.integers(1, 40),
    sample=st.integers(1, 64),
    eager=st.booleans(),
)
def test_the_ratio_holds_and_nobody_is_stuck(ratio: float, start: int, insert: int, sample: int, eager: bool) -> None:
    slack = ratio * 2 * insert + sample
    limiter = RateLimiter(ratio, start, slack)
    for _ in range(400):
        can_sample, can_insert = limiter.may_sample(sample), limiter.may_insert
        assert can_sample or can_insert
        if can_insert and (eager or not can_sample):
            limiter.inserted(insert)
        else:
            limiter.sampled(sample)
        assert limiter.samples <= ratio * max(0, limiter.inserts - start)
        # Insertions end when sampling is `slack` behind; the last one may bring what one insertion brings.
        assert ratio * max(0, limiter.inserts - start) - limiter.samples <= slack + ratio * insert
    assert limiter.samples > 0


def test_it_says_who_waits_for_what() -> None:
    limiter = RateLimiter(1.0, start=4, slack=10)
    assert limiter.why(2) == "sampling waits: 0 of the 4 items before the first sample were inserted"
    limiter.inserted(5)
    assert limiter.why(2) == "sampling waits: 0 samples for 5 insertions, at most 1 for each after the first 4"
    assert limiter.why(1) == ""
    limiter.inserted(10)
    assert not limiter.may_insert
    assert (
        limiter.why(1)
        == "insertions wait: 0 samples for 15 insertions, which is 10 or more short of 1 for each after the first 4"
    )


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"samples_per_insert": 0.0}, "samples_per_insert=0.0"), ({"start": -1}, "start=-1"), ({"slack": 0.0}, "slack")],
)
def test_numbers_that_make_no_sense_are_refused(changes: dict[str, float], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        RateLimiter(**{"samples_per_insert": 1.0, "start": 1, "slack": 1.0, **changes})  # type: ignore[arg-type]
