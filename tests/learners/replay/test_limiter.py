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


def test_each_side_waits_for_the_other() -> None:
    limiter = RateLimiter(1.0, start=4, slack=10)
    assert not limiter.may_sample(1), "nothing is there"
    limiter.inserted(5)
    assert limiter.may_sample(1)
    assert not limiter.may_sample(2), "one item came after the first four"
    assert limiter.may_insert
    limiter.inserted(10)
    assert not limiter.may_insert, "eleven samples are due, and ten is the slack"
    limiter.sampled(2)
    assert limiter.may_insert


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"samples_per_insert": 0.0}, "samples_per_insert=0.0"), ({"start": -1}, "start=-1"), ({"slack": 0.0}, "slack")],
)
def test_numbers_that_make_no_sense_are_refused(changes: dict[str, float], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        RateLimiter(**{"samples_per_insert": 1.0, "start": 1, "slack": 1.0, **changes})  # type: ignore[arg-type]
