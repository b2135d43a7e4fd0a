"""Versions: their order, and that none goes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.errors import WeightsCorrupt
from clusterenv.sync.versions import Version, check_forward

VERSIONS = st.builds(Version, st.integers(0, 3), st.integers(0, 2**40))


@given(VERSIONS)
def test_the_next_version_is_newer_and_one_ahead(version: Version) -> None:
    assert version.next() > version
    assert version.lag(version.next()) == 1
    assert version.next().epoch == version.epoch


@given(VERSIONS, VERSIONS)
def test_a_later_epoch_is_newer_whatever_the_numbers(left: Version, right: Version) -> None:
    assert Version(left.epoch + 1, 0) > left
    assert (left < right) == ((left.epoch, left.number) < (right.epoch, right.number))


@pytest.mark.fault("F19", "F35")
@given(VERSIONS, VERSIONS)
def test_only_a_step_back_is_refused(held: Version, offered: Version) -> None:
    if offered < held:
        with pytest.raises(WeightsCorrupt, match="never go back"):
            check_forward(held, offered)
    else:
        assert check_forward(held, offered) is offered


def test_anything_is_newer_than_nothing() -> None:
    assert check_forward(None, Version(0, 0)) == Version(0, 0)


def test_the_message_names_both() -> None:
    with pytest.raises(WeightsCorrupt, match=r"^version 1\.4 was offered to a holder of version 1\.5,"):
        check_forward(Version(1, 5), Version(1, 4))
