"""Which worker steps which slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def share(num_envs: int, wanted: Sequence[int]) -> list[int]:
    """How many workers each host gets: those that it wants or, if there are too few slots for that, its share of them.

    Example:
        >>> share(100, [4, 2]), share(3, [4, 2]), share(1, [2, 2])
        ([4, 2], [2, 1], [1, 0])
    """
    total = sum(wanted)
    if num_envs >= total:
        return list(wanted)
    exact = [count * num_envs / total for count in wanted]
    shares = [int(part) for part in exact]
    by_rest = sorted(range(len(wanted)), key=lambda host: shares[host] - exact[host])
    for host in by_rest[: num_envs - sum(shares)]:
        shares[host] += 1
    return shares


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
