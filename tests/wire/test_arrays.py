"""Arrays as parts: sizes and types are checked by themselves, before NumPy is asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clusterenv.errors import ProtocolError, ResultError
from clusterenv.wire import arrays


@pytest.mark.parametrize(
    "data",
    [
        ["<f4", [2], b"1234"],
        ["<f4", [1], b"12345678"],
        ["<f4", [0], b"1234"],
        ["<f4", [], b""],
        ["<f4", [2**40], b"1234"],
        ["<f4", [1], bytearray(b"1234")],
        ["<f4", [1]],
        "<f4",
    ],
)
def test_bytes_that_are_not_those_of_the_shape(data: Any) -> None:
    with pytest.raises(ProtocolError, match=r"other bytes than it takes|must come in 3 parts"):
        arrays.array_from_data(data)


@pytest.mark.parametrize("shape", [[True], [1.0], ["1"], [-1], [2**63], [None], 3, "12", {1: 2}, [1] * 33])
def test_what_is_no_shape(shape: Any) -> None:
    with pytest.raises(ProtocolError, match="is no shape"):
        arrays.shape_from_data(shape)


@pytest.mark.parametrize(
    "text", ["|O", "O", "f4", "<f4 ", "<f4,<f4", "2<f4", "<f", "<f0", "|T16", "<M8[s", "", None, 4]
)
def test_what_is_no_dtype(text: Any) -> None:
    with pytest.raises(ProtocolError, match="is no dtype that travels"):
        arrays.dtype_from_text(text)


def test_arrays_that_do_not_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ResultError, match="not plain"):
        arrays.array_to_data(np.zeros(1, "O"))
    monkeypatch.setattr(arrays, "_MAX_DIMS", 2)  # NumPy 1 has no more than the real limit
    with pytest.raises(ResultError, match="3 dimensions"):
        arrays.array_to_data(np.zeros((1, 1, 1)))
    with pytest.raises(ResultError, match="elements of 5000 bytes"):
        arrays.array_to_data(np.zeros(0, "S5000"))


def test_a_large_value_is_shown_in_few_words() -> None:
    assert arrays.shown(b"x" * 10**6) == repr(b"x" * 40)
    assert arrays.shown([[1] * 10**6]) == "a list"
    assert len(arrays.shown(2**4000)) == 80
    assert arrays.shown(None) == "None"
