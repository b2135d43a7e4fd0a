"""What a process has for itself."""

from __future__ import annotations

import mmap

from clusterenv.worker.memory import OwnMemory

MANY = 64 * 2**20


def test_what_is_taken_is_counted_and_what_is_shared_is_not() -> None:
    memory = OwnMemory()
    before = memory.used()
    with mmap.mmap(-1, MANY) as shared:
        shared[:] = b"x" * 1 * MANY
        after_shared = memory.used()
        assert after_shared - before < MANY // 2
        # A map of its own: an allocator may have that much at hand from what was freed before.
        with mmap.mmap(-1, MANY, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as taken:
            taken[:] = b"x" * 1 * MANY
            assert memory.used() - after_shared >= MANY // 2
