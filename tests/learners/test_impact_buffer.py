"""The circular buffer: a script worked out beforehand, and what holds whatever happens."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.learners.impact.buffer import CircularBuffer
from tests.learners.kit import vectors

SCRIPT = vectors("impact_circular_buffer")


def content(buffer: CircularBuffer[Any]) -> list[list[Any]]:
    return [[kept.item, kept.uses] for kept in buffer.kept]


def test_follows_the_script() -> None:
    buffer: CircularBuffer[str] = CircularBuffer(SCRIPT["N"], SCRIPT["K"])
    dropped = 0
    for line in SCRIPT["trace"]:
        action, name = line["op"].split()
        names = [kept.item for kept in buffer.kept]
        if action == "add":
            buffer.add(name)
            if line["evicted"]:
                dropped += SCRIPT["K"] - line["evicted"]["uses"]
        elif "error" in line:
            assert name not in names
            continue
        else:
            used = buffer.use(names.index(name))
            assert (used.item, used.uses == SCRIPT["K"]) == (name, line["retired"] == name)
        assert content(buffer) == line["content"]
        assert buffer.dropped_uses == dropped


def test_an_empty_one_says_what_to_do() -> None:
    with pytest.raises(LookupError, match="Add one first"):
        CircularBuffer(2, 2).take(torch.Generator())


@given(st.integers(1, 4), st.integers(1, 4), st.lists(st.booleans(), max_size=40), st.integers(0, 2**31))
def test_no_use_is_invented_or_forgotten(batches: int, uses: int, adds: list[bool], seed: int) -> None:
    buffer: CircularBuffer[int] = CircularBuffer(batches, uses)
    source, used, added = torch.Generator().manual_seed(seed), collections.Counter[int](), 0
    for add in adds:
        if add or not len(buffer):
            buffer.add(added)
            added += 1
        else:
            used[buffer.take(source).item] += 1
        assert len(buffer) <= batches
        assert max(used.values(), default=0) <= uses
        left = sum(uses - kept.uses for kept in buffer.kept)
        assert added * uses == used.total() + buffer.dropped_uses + left


def test_a_batch_is_drawn_by_the_uses_it_has_left() -> None:
    drawn, source = collections.Counter[str](), torch.Generator().manual_seed(0)
    for _ in range(300):
        buffer: CircularBuffer[str] = CircularBuffer(2, 3)
        buffer.add("old")
        buffer.use(0)
        buffer.use(0)
        buffer.add("new")
        drawn[buffer.take(source).item] += 1
    assert drawn["new"] / 300 == pytest.approx(3 / 4, abs=0.1)
