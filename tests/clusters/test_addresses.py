"""Addresses of hosts."""

from __future__ import annotations

import pytest

from clusterenv.clusters import Address, split_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("a", Address("", "a", 0)),
        ("10.0.0.1:5555", Address("", "10.0.0.1", 5555)),
        ("[::1]:22", Address("", "::1", 22)),
        ("u.v-w@a_b.c-d:1", Address("u.v-w", "a_b.c-d", 1)),
    ],
)
def test_addresses_are_taken_apart(text: str, address: Address) -> None:
    assert split_address(text, user=True) == address
