"""Which worker steps which slots."""

from __future__ import annotations


def split(num_envs: int, workers: int) -> list[range]:
    """Contiguous, nearly equal blocks of slots, one per worker. No worker is left without a slot.

    Example:
        >>> split(10, 4)
        [range(0, 3), range(3, 6), range(6, 8), range(8, 10)]
        >>> split(2, 4)
        [range(0, 1), range(1, 2)]
    """
    workers = min(workers, num_envs)
    size, larger = divmod(num_envs, workers)
    blocks, start = [], 0
    for worker in range(workers):
        stop = start + size + (1 if worker < larger else 0)
        blocks.append(range(start, stop))
        start = stop
    return blocks
