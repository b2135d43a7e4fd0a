"""Amounts of memory as people write them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.amounts import parse_bytes
from clusterenv.errors import ConfigError, ConfigTypeError


@pytest.mark.parametrize(
    ("text", "size"),
    [("1MB", 10**6), ("2GiB", 2**31), ("0.5GiB", 2**29), ("1.5GB", 1_500_000_000), ("1TiB", 2**40), ("64MiB", 2**26)],
)
def test_with_a_unit(text: str, size: int) -> None:
    assert parse_bytes("worker_memory", text) == size


@pytest.mark.parametrize(
    "text", ["", "2", "2G", "2 GiB", "-1GiB", "0MB", "1e3MB", "GiB", "nanMB", "2gib", "1" * 7 + "MB"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"worker_memory=.* must be an amount with its unit, as in '512MiB'"):
        parse_bytes("worker_memory", text)


@pytest.mark.parametrize("value", [2**31, None, b"2GiB", 2.0])
def test_only_texts(value: object) -> None:
    with pytest.raises(ConfigTypeError, match="must be a text"):
        parse_bytes("worker_memory", value)


@given(st.text(max_size=30))
def test_any_text_is_an_amount_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert parse_bytes("worker_memory", text) > 0
