"""The arena: one layout on both sides, nothing overlaps, nothing has a name."""

from __future__ import annotations

import itertools
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv import cgroups
from clusterenv.errors import ConfigError
from clusterenv.spaces import Leaf
from clusterenv.transport.arena import Arena, ArenaSpec, Word, layout_size
from tests.transport.peers import other_process
from tests.zoo import shared_files

if TYPE_CHECKING:
    from collections.abc import Iterator

LEAVES = st.builds(
    lambda shape, dtype: Leaf(tuple(shape), np.dtype(dtype)),
    st.lists(st.integers(0, 5), max_size=3),
    st.sampled_from(["u1", "i2", "f4", "f8", "i8", "?", "c16"]),
)
SPECS = st.builds(
    lambda n, workers, observation, action: ArenaSpec(n, workers, tuple(observation), tuple(action)),
    st.integers(1, 70),
    st.integers(1, 5),
    st.lists(LEAVES, max_size=3),
    st.lists(LEAVES, max_size=3),
)
SMALL = ArenaSpec(3, 2, (Leaf((2,), np.dtype("f4")), Leaf((), np.dtype("u1"))), (Leaf((), np.dtype("i8")),))


@contextmanager
def created(spec: ArenaSpec) -> Iterator[Arena]:
    arena = Arena.create(spec)
    try:
        yield arena
    finally:
        arena.close()


def arrays(arena: Arena) -> list[Any]:
    return [
        np.frombuffer(arena.words, np.int32),
        np.frombuffer(arena.bell, np.int32),
        arena.want,
        arena.have,
        arena.reward,
        arena.terminated,
        arena.truncated,
        *arena.observation,
        *arena.action,
    ]


def extent(array: Any) -> tuple[int, int]:
    start = array.__array_interface__["data"][0]
    return start, start + array.nbytes


@given(SPECS)
def test_every_array_has_its_own_cache_lines(spec: ArenaSpec) -> None:
    with created(spec) as arena:
        extents = sorted(extent(array) for array in arrays(arena) if array.nbytes)
        base = min(extents)[0]
        assert all(start % 64 == 0 for start, _ in extents)
        for (_, stop), (start, _) in itertools.pairwise(extents):
            assert stop <= start
        assert extents[-1][1] - base <= layout_size(spec) == os.fstat(arena.fd).st_size


@given(SPECS)
def test_shapes_dtypes_and_zeros(spec: ArenaSpec) -> None:
    with created(spec) as arena:
        assert [(a.shape, a.dtype) for a in arena.observation] == [
            ((spec.num_envs, *leaf.shape), leaf.dtype) for leaf in spec.observation
        ]
        assert [(a.shape, a.dtype) for a in arena.action] == [
            ((spec.num_envs, *leaf.shape), leaf.dtype) for leaf in spec.action
        ]
        kinds = [array.dtype.str for array in (arena.reward, arena.want, arena.have, arena.terminated, arena.truncated)]
        assert kinds == ["<f8", "<u4", "<u4", "|b1", "|b1"]
        assert not any(array.any() for array in arrays(arena))


@given(SPECS)
def test_both_sides_see_the_same_bytes(spec: ArenaSpec) -> None:
    with created(spec) as head:
        worker = Arena.attach(spec, os.dup(head.fd))
        for number, array in enumerate(arrays(head)):
            array[...] = number % 2 + 1
        for mine, theirs in zip(arrays(head), arrays(worker), strict=True):
            assert (mine == theirs).all()
        worker.close()


HEADS_WORDS = {Word.GO, Word.COMMAND}


def test_words_of_different_writers_are_on_different_lines() -> None:
    with created(SMALL) as arena:
        writers: dict[int, set[tuple[int, bool]]] = {}
        for worker, word in itertools.product(range(SMALL.num_workers), Word):
            line = 4 * arena.word(worker, word) // 64
            writers.setdefault(line, set()).add((worker, word in HEADS_WORDS))
        assert all(len(writer) == 1 for writer in writers.values())


def test_addresses_are_those_of_the_arrays() -> None:
    with created(SMALL) as arena:
        assert arena.words_address == np.frombuffer(arena.words, np.int32).__array_interface__["data"][0]
        bell = arena.bell_signal(spare_core=False)
        assert not bell.wait_while(0, 0.0)
        arena.bell[0] = 1
        assert bell.wait_while(0, 0.0)


def test_a_signal_is_on_the_word_it_names() -> None:
    with created(SMALL) as arena:
        signal = arena.signal(1, Word.GO, Word.SLEEPS, spare_core=False)
        assert not signal.wait_while(0, 0.0)
        arena.words[arena.word(0, Word.GO)] = 1
        assert not signal.wait_while(0, 0.0), "that was the word of another worker"
        arena.words[arena.word(1, Word.GO)] = 1
        assert signal.wait_while(0, 0.0)


def test_two_workers_share_no_word() -> None:
    with created(SMALL) as arena:
        indices = [arena.word(worker, word) for worker, word in itertools.product(range(2), Word)]
        assert len(set(indices)) == len(indices)
        assert max(indices) < len(arena.words)


@pytest.mark.parametrize("shape", [(10**5, 10**5), (2**40,), (2**32, 2**32)])
def test_more_than_the_memory_of_this_host_is_refused(shape: tuple[int, ...]) -> None:
    spec = ArenaSpec(4, 1, (Leaf(shape, np.dtype("f4")),), ())
    with pytest.raises(ConfigError, match=r"4 slots need [0-9.]+ GiB .* this host has [0-9.]+ GiB"):
        Arena.create(spec)


def test_more_than_the_container_may_still_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "memory_left", lambda: 2**20)
    fits, larger = (ArenaSpec(4, 1, (Leaf((size,), np.dtype("u1")),), ()) for size in (2**17, 2**18))
    with created(fits):
        pass
    with pytest.raises(ConfigError, match=r"this host has 0\.0 GiB left for this process"):
        Arena.create(larger)


def test_sizes_do_not_overflow() -> None:
    spec = ArenaSpec(10**6, 1, (Leaf((10**10,), np.dtype("f8")),), ())
    assert layout_size(spec) > 8 * 10**16


def test_a_failed_creation_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(fd: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "ftruncate", no_space)
    with pytest.raises(OSError, match="No space left"):
        Arena.create(SMALL)


@pytest.mark.threat("T13")
def test_there_is_no_name_to_leave_behind() -> None:
    before = shared_files()
    with created(SMALL) as arena:
        assert shared_files() == before
        assert os.readlink(f"/proc/self/fd/{arena.fd}").startswith("/memfd:clusterenv")
        assert os.fstat(arena.fd).st_nlink == 0


def test_the_descriptor_is_not_inherited_by_chance() -> None:
    with created(SMALL) as arena:
        assert not os.get_inheritable(arena.fd)


def test_closing_twice_closes_one_descriptor() -> None:
    arena = Arena.create(SMALL)
    number = arena.fd
    arena.close()
    other = os.open("/dev/null", os.O_RDONLY)
    try:
        assert other == number, "the number is free again"
        arena.close()
        os.fstat(other)
    finally:
        os.close(other)


def test_views_outlive_the_descriptor() -> None:
    with created(SMALL) as arena:
        observation = arena.observation[0]
    observation[:] = 3.0
    assert (observation == 3.0).all()


WORKER = """
import sys, numpy as np
from clusterenv.spaces import Leaf
from clusterenv.transport.arena import Arena, ArenaSpec, Word
spec = ArenaSpec(3, 2, (Leaf((2,), np.dtype("f4")), Leaf((), np.dtype("u1"))), (Leaf((), np.dtype("i8")),))
arena = Arena.attach(spec, int(sys.argv[1]))
arena.observation[0][1] = arena.action[0][1]
arena.observation[1][2] = 200
arena.reward[2] = -1.5
arena.truncated[0] = True
arena.have[:] = arena.want
arena.words[arena.word(1, Word.SLOT)] = 2
arena.bell[0] = 9
"""


def test_another_process_shares_the_memory() -> None:
    with created(SMALL) as arena:
        arena.action[0][:] = [5, 6, 7]
        arena.want[:] = [1, 2, 3]
        with other_process(WORKER, arena.fd, fds=(arena.fd,)):
            pass
        assert arena.observation[0].tolist() == [[0, 0], [6, 6], [0, 0]]
        assert arena.observation[1].tolist() == [0, 0, 200]
        assert arena.reward.tolist() == [0, 0, -1.5]
        assert arena.truncated.tolist() == [True, False, False]
        assert not arena.terminated.any()
        assert arena.have.tolist() == [1, 2, 3]
        assert arena.words[arena.word(1, Word.SLOT)] == 2
        assert arena.words[arena.word(0, Word.SLOT)] == 0
        assert arena.bell[0] == 9
