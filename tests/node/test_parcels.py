"""Weights in pieces: whatever their size, they arrive whole, and what does not fit is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.errors import ProtocolError
from clusterenv.node import parcels
from clusterenv.node.parcels import PIECE_BYTES, Arriving, pieces_of

SIZES = [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES, 2000 * PIECE_BYTES]


@pytest.mark.parametrize("size", SIZES)
def test_it_arrives_whole(size: int) -> None:
    payload = (bytes(range(256)) * (size // 256 + 1))[:size]
    pieces = list(pieces_of(payload))
    assert 1 <= len(pieces) <= 1024
    assert size > 1024 * PIECE_BYTES or all(len(piece) <= PIECE_BYTES for _, piece in pieces)
    arriving = Arriving(size)
    for offset, piece in pieces[:-1]:
        assert arriving.take("version", offset, size, piece) is None
    assert arriving.take("version", pieces[-1][0], size, pieces[-1][1]) == payload


@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(1, 9))
def test_one_after_the_other(payloads: list[bytes], length: int) -> None:
    with pytest.MonkeyPatch().context() as small:
        small.setattr(parcels, "PIECE_BYTES", length)
        arriving = Arriving(40)
        for version, payload in enumerate(payloads):
            found = [arriving.take(version, at, len(payload), piece) for at, piece in pieces_of(payload)]
            assert found[-1] == payload
            assert found[:-1] == [None] * (len(found) - 1)


def test_another_version_makes_an_end_of_one_that_was_given_up() -> None:
    arriving = Arriving(10)
    assert arriving.take(1, 0, 4, b"ab") is None
    assert arriving.take(2, 0, 4, b"AB") is None
    assert arriving.take(2, 2, 4, b"CD") == b"ABCD"


BAD: dict[str, tuple[Any, int, int, bytes]] = {
    "a hole": (1, 3, 4, b"d"),
    "the same again": (1, 1, 4, b"b"),
    "another version": (2, 2, 4, b"cd"),
    "another size": (1, 2, 5, b"cde"),
    "too much": (1, 2, 4, b"cde"),
    "larger than it may be": (1, 2, 11, b"c"),
}


@pytest.mark.parametrize("piece", BAD.values(), ids=BAD.keys())
def test_pieces_that_do_not_fit(piece: tuple[Any, int, int, bytes]) -> None:
    arriving = Arriving(10)
    assert arriving.take(1, 0, 4, b"ab") is None
    with pytest.raises(ProtocolError, match=r"does not fit|at most 10"):
        arriving.take(*piece)


@pytest.mark.threat("T08")
def test_too_much_is_refused_before_it_is_kept() -> None:
    with pytest.raises(ProtocolError, match="11 bytes of weights were announced, and at most 10"):
        Arriving(10).take(1, 0, 11, b"a")
    with pytest.raises(ProtocolError, match="does not fit"):
        Arriving(10).take(1, 0, 2, b"abc")
