"""Rows of an arena as frames for one node, and back: the right rows, once, and nothing of what does not fit."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.errors import ConfigError, ProtocolError
from clusterenv.node.rows import WholeNode, check_sizes, copy_block, copy_rows, results, step_frames
from clusterenv.spaces import Leaf
from clusterenv.transport.arena import Arena, ArenaSpec
from clusterenv.wire.frames import frame_of

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM_ENVS = 6
MINE = range(2, 5)
SPEC = ArenaSpec(NUM_ENVS, 2, (Leaf((2,), np.dtype("f4")), Leaf((), np.dtype("i8"))), (Leaf((3,), np.dtype("f4")),))


@contextlib.contextmanager
def arena() -> Iterator[Arena]:
    made = Arena.create(SPEC)
    try:
        yield made
    finally:
        made.close()


def frames_for(count: int, numbers: list[int], value: float = 7.0) -> list[Any]:
    arrays: list[Any] = [
        np.array(numbers, np.uint32),
        np.full((count, 2), value, np.float32),
        np.full(count, 9, np.int64),
    ]
    return [frame_of(each) for each in (*arrays, np.full(count, value), np.ones(count, bool), np.zeros(count, bool))]


def picture(of: Arena) -> list[bytes]:
    return [array.tobytes() for array in (*results(of), of.have, of.want)]


def test_whole_rows() -> None:
    with arena() as mine:
        mine.want[:] = 4
        assert copy_rows(mine, MINE, frames_for(3, [4, 4, 4]), whole=True).tolist() == [2, 3, 4]
        assert mine.reward.tolist() == [0, 0, 7, 7, 7, 0]
        assert mine.have.tolist() == [0, 0, 4, 4, 4, 0]
        assert mine.observation[1].tolist() == [0, 0, 9, 9, 9, 0]


@given(st.lists(st.sampled_from([3, 4, 5]), min_size=3, max_size=3), st.lists(st.booleans(), min_size=3, max_size=3))
def test_old_and_repeated_rows_change_nothing(numbers: list[int], had: list[bool]) -> None:
    with arena() as mine:
        mine.want[:] = 4
        mine.have[2:5][had] = 4
        new = [slot for slot, number, has in zip(MINE, numbers, had, strict=True) if number == 4 and not has]
        assert copy_rows(mine, MINE, frames_for(3, numbers), whole=True).tolist() == new
        assert np.flatnonzero(mine.reward).tolist() == new
        before = picture(mine)
        assert copy_rows(mine, MINE, frames_for(3, numbers, 8.0), whole=True).tolist() == []
        assert picture(mine) == before, "what comes twice changes nothing"


@given(st.permutations([0, 1, 2]).flatmap(lambda order: st.integers(0, 3).map(lambda count: order[:count])))
def test_some_rows_in_any_order(rows: list[int]) -> None:
    with arena() as mine:
        mine.want[:] = 4
        frames = [frame_of(np.array(rows, np.int32)), *frames_for(len(rows), [4] * len(rows))]
        assert copy_rows(mine, MINE, frames, whole=False).tolist() == [2 + row for row in rows]
        assert np.flatnonzero(mine.reward).tolist() == sorted(2 + row for row in rows)


BAD: dict[str, tuple[list[Any], bool]] = {
    "nothing": ([], True),
    "a frame less": (frames_for(3, [4] * 3)[:-1], True),
    "a frame more": ([*frames_for(3, [4] * 3), b""], True),
    "too few rows": (frames_for(2, [4] * 2), True),
    "too many rows": (frames_for(4, [4] * 4), True),
    "a row beyond": ([frame_of(np.array([3], np.int32)), *frames_for(1, [4])], False),
    "a row before": ([frame_of(np.array([-1], np.int32)), *frames_for(1, [4])], False),
    "a row far before": ([frame_of(np.array([-(2**31)], np.int32)), *frames_for(1, [4])], False),
    "half a row": ([b"\x00\x00\x00", *frames_for(0, [])], False),
    "more rows than values": ([frame_of(np.array([0, 1], np.int32)), *frames_for(1, [4])], False),
}


@pytest.mark.parametrize(("frames", "whole"), BAD.values(), ids=BAD.keys())
def test_rows_that_do_not_fit_change_nothing(frames: list[Any], whole: bool) -> None:
    with arena() as mine:
        mine.want[:] = 4
        before = picture(mine)
        with pytest.raises(ProtocolError):
            copy_rows(mine, MINE, frames, whole=whole)
        assert picture(mine) == before


@given(st.lists(st.sampled_from([3, 4, 5]), min_size=3, max_size=3), st.lists(st.booleans(), min_size=3, max_size=3))
def test_an_answer_is_taken_whole_or_not_at_all(numbers: list[int], had: list[bool]) -> None:
    with arena() as mine, arena() as twin:
        for each in (mine, twin):
            each.want[:] = 4
            each.have[2:5][had] = 4
        before = picture(mine)
        taken = WholeNode(mine, MINE).take_answer(frames_for(3, numbers))
        assert taken == (numbers == [4, 4, 4] and not any(had)), "all rows wait for this, or it is for `copy_rows`"
        if taken:
            copy_rows(twin, MINE, frames_for(3, numbers), whole=True)
        assert picture(mine) == (picture(twin) if taken else before)


@pytest.mark.parametrize("frames", [frames for frames, whole in BAD.values() if whole])
def test_an_answer_that_does_not_fit_changes_nothing(frames: list[Any]) -> None:
    with arena() as mine:
        mine.want[:] = 4
        before = picture(mine)
        with pytest.raises(ProtocolError, match="rows"):
            WholeNode(mine, MINE).take_answer(frames)
        assert picture(mine) == before


def test_a_request_brings_actions_and_numbers_to_the_rows_of_the_node() -> None:
    theirs = ArenaSpec(len(MINE), 1, SPEC.observation, SPEC.action, MINE.start)
    with arena() as heads, contextlib.closing(Arena.create(theirs)) as nodes:
        heads.want[:] = [1, 1, 7, 8, 9, 1]
        heads.action[0][:] = np.arange(NUM_ENVS)[:, None]
        node = WholeNode(nodes, MINE)
        node.take_request([bytes(frame) for frame in WholeNode(heads, MINE).asked])
        assert nodes.want.tolist() == [7, 8, 9]
        assert nodes.action[0][:, 0].tolist() == [2, 3, 4]
        with pytest.raises(ProtocolError, match="a step"):
            node.take_request([b"\0" * 12, b"\0" * 35])
        assert nodes.want.tolist() == [7, 8, 9]
        nodes.have[:], nodes.reward[:] = nodes.want, 7.0
        assert WholeNode(heads, MINE).take_answer(node.answered)
        assert heads.reward.tolist() == [0, 0, 7, 7, 7, 0]
        del node


def test_the_last_frame_is_checked_before_the_first_is_copied() -> None:
    with arena() as mine:
        mine.want[:] = 4
        before = picture(mine)
        with pytest.raises(ProtocolError):
            copy_rows(mine, MINE, [*frames_for(3, [4] * 3)[:-1], b"xx"], whole=True)
        assert picture(mine) == before


def test_rows_of_a_reset() -> None:
    with arena() as mine:
        copy_block(mine, MINE, frames_for(3, [0] * 3)[1:])
        assert mine.reward.tolist() == [0, 0, 7, 7, 7, 0]
        with pytest.raises(ProtocolError):
            copy_block(mine, MINE, frames_for(2, [0] * 2)[1:])
        with pytest.raises(ProtocolError):
            copy_block(mine, MINE, frames_for(3, [0] * 3))


@given(st.lists(st.booleans(), min_size=NUM_ENVS, max_size=NUM_ENVS), st.lists(st.booleans(), min_size=3, max_size=3))
def test_what_goes_to_a_node(asked: list[bool], alive: list[bool]) -> None:
    with arena() as mine:
        mine.want[asked] = 1
        mine.action[0][:] = np.arange(NUM_ENVS)[:, None]
        numbers, actions = WholeNode(mine, MINE).asked
        assert np.frombuffer(numbers, np.uint32).tolist() == mine.want[2:5].tolist()
        assert np.frombuffer(actions, np.float32).reshape(-1, 3)[:, 0].tolist() == [2, 3, 4]
        rows, _, actions = step_frames(mine, MINE, np.array(alive))
        wanted = [row for row in range(3) if asked[2 + row] and alive[row]]
        assert np.frombuffer(rows, np.int32).tolist() == wanted
        assert np.frombuffer(actions, np.float32).reshape(-1, 3)[:, 0].tolist() == [2 + row for row in wanted]
        del numbers, actions, rows


# Of the three slots: 24 bytes of observations in each of two arrays, 36 of actions.
@pytest.mark.parametrize(
    ("most", "says"),
    [
        (35, "36 bytes of actions in a step, more than the 35 that go over .* at most 2 environments each"),
        (23, "24 bytes of observations in a step, more than the 23 that go over .* at most 2 environments each"),
        (7, "24 bytes of observations in a step, more than the 7 that go over .* Use smaller observations"),
    ],
)
def test_rows_that_do_not_fit_a_message_are_refused(monkeypatch: pytest.MonkeyPatch, most: int, says: str) -> None:
    monkeypatch.setattr("clusterenv.node.rows.MAX_FRAME_BYTES", most)
    with arena() as mine, pytest.raises(ConfigError, match=f"the 3 environments of node n0 have {says}"):
        check_sizes(mine, MINE, "n0")


def test_rows_that_just_fit_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterenv.node.rows.MAX_FRAME_BYTES", 36)
    with arena() as mine:
        check_sizes(mine, MINE, "n0")
