"""Limits for one wait: what they may be, and what their errors say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clusterenv.env.checks import wait_limit
from clusterenv.errors import ConfigError, ConfigTypeError


@pytest.mark.parametrize("none_to_wait", [0, 0.0, np.float32(0)])
def test_a_limit_of_zero_is_a_look(none_to_wait: Any) -> None:
    assert wait_limit(none_to_wait) == 0.0


def test_a_limit_may_be_a_number_of_numpy() -> None:
    limit = wait_limit(np.float32(0.5))
    assert limit == 0.5
    assert type(limit) is float
    assert wait_limit(None) is None


@pytest.mark.parametrize("bad", [-1, float("nan"), 1e9, 10**400], ids=["negative", "NaN", "years", "past every float"])
def test_a_limit_that_is_no_time_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigError, match=r"linger=.* more than 0 and less than 1e9, or None for the default"):
        wait_limit(bad, "linger")


@pytest.mark.parametrize("bad", ["1", True, False, [1.0]])
def test_a_limit_that_is_no_number_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigTypeError, match=r"timeout=.* number of seconds, or None for the default"):
        wait_limit(bad)
