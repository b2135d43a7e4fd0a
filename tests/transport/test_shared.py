"""Arrays in shared memory: one layout on both sides, nothing overlaps, nothing is left."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterenv import cgroups
from clusterenv.errors import ConfigError
from clusterenv.transport import shared
from clusterenv.transport.shared import Field, SharedArrays
from tests.transport.peers import other_process

FIELDS = st.tuples(
    st.lists(st.integers(0, 5), max_size=3).map(tuple), st.sampled_from(["|u1", "<i2", "<f4", "<f8", "<i8", "|b1"])
)
LAYOUTS = st.lists(FIELDS, max_size=5).map(
    lambda fields: [Field(f"field{i}", shape, dtype) for i, (shape, dtype) in enumerate(fields)]
)


@settings(max_examples=40)
@given(LAYOUTS)
def test_every_field_has_its_shape_and_a_place_of_its_own(layout: list[Field]) -> None:
    arrays = SharedArrays.create(layout)
    try:
        for field in layout:
            array = arrays[field.name]
            assert (array.shape, array.dtype.str, array.nbytes) == (field.shape, field.dtype, field.nbytes)
            assert array.flags.writeable
            assert not array.any(), "memory starts as zeros"
            assert array.size == 0 or array.ctypes.data % 64 == 0, "on a cache line of its own"
        for left, right in itertools.combinations([arrays[field.name] for field in layout], 2):
            assert not np.shares_memory(left, right)
    finally:
        arrays.close()


def test_both_sides_see_the_same_memory() -> None:
    layout = [Field("small", (3,), "|u1"), Field("table", (2, 2), "<f8")]
    here = SharedArrays.create(layout)
    there = SharedArrays.attach(layout, os.dup(here.fd))
    here["table"][1, 0] = 2.5
    there["small"][2] = 7
    assert there["table"].tolist() == [[0.0, 0.0], [2.5, 0.0]]
    assert here["small"].tolist() == [0, 0, 7]
    here.close()
    there.close()


PROGRAM = """
import sys
from clusterenv.transport.shared import Field, SharedArrays
arrays = SharedArrays.attach([Field("count", (4,), "<i8")], int(sys.argv[1]))
arrays["count"][:] += 1
"""


def test_another_process_maps_it_by_its_descriptor() -> None:
    arrays = SharedArrays.create([Field("count", (4,), "<i8")])
    arrays["count"][:] = [1, 2, 3, 4]
    with other_process(PROGRAM, arrays.fd, fds=(arrays.fd,)):
        pass
    assert arrays["count"].tolist() == [2, 3, 4, 5]
    arrays.close()


def test_views_outlive_the_descriptor() -> None:
    arrays = SharedArrays.create([Field("count", (4,), "<i8")])
    view, fd = arrays["count"], arrays.fd
    arrays.close()
    arrays.close()
    assert arrays.fd == -1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    view[:] = 5
    assert view.sum() == 20


def test_the_descriptor_is_closed_with_the_object() -> None:
    arrays = SharedArrays.create([Field("count", (4,), "<i8")])
    fd = arrays.fd
    del arrays
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.fault("F44")
def test_memory_that_the_host_does_not_have_is_refused_with_its_largest_part() -> None:
    before = os.listdir("/proc/self/fd")
    layout = [Field("small", (3,), "|u1"), Field("obs0", (10**6, 10**6, 10**6), "<f8")]
    with pytest.raises(ConfigError, match=r"GiB of shared memory are needed \(the largest part is 'obs0'") as caught:
        SharedArrays.create(layout)
    assert "Use fewer steps or fewer environments." in str(caught.value)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_so_is_memory_that_the_container_may_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "memory_left", lambda: 2**20)
    SharedArrays.create([Field("small", (2**19,), "|u1")]).close()
    with pytest.raises(ConfigError, match="the largest part is 'large'"):
        SharedArrays.create([Field("large", (2**20 + 1,), "|u1")])


@pytest.mark.parametrize("told", [None, 5])
def test_a_host_that_does_not_tell_may_use_all_of_its_memory(told: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "free_memory", lambda: told)
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert shared.host_memory() == (whole if told is None else told)


def test_a_size_past_64_bits_does_not_run_over() -> None:
    assert Field("huge", (2**40, 2**40), "<f8").nbytes == 2**83
