"""A small fuzzer, for where atheris is not: it changes the seeds at random, in the same way each time."""

from __future__ import annotations

import contextlib
import random
import signal
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

MAX_BYTES = 4096
# Numbers at which decoders go wrong: the ends of ranges, and the first bytes of MessagePack's types.
_TELLING = (0, 1, 0x7F, 0x80, 0x90, 0xC0, 0xC1, 0xC4, 0xC7, 0xCB, 0xCF, 0xD3, 0xD9, 0xDD, 0xDF, 0xFF)


@dataclass(frozen=True, slots=True)
class Finding:
    """An input that a target did not refuse as it should, with what came out in its place."""

    data: bytes
    error: BaseException
    text: str


class Hang(Exception):
    """A target took too long for one input."""


def mutated(seeds: Sequence[bytes], rng: random.Random) -> bytes:
    """One of the seeds, changed at a few places.

    Example:
        >>> mutated([b"seed"], random.Random(1)) == mutated([b"seed"], random.Random(1))
        True
    """
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        rng.choice(_CHANGES)(data, seeds, rng)
    return bytes(data[:MAX_BYTES])


def search(
    target: Callable[[bytes], None],
    seeds: Sequence[bytes],
    *,
    seed: int = 0,
    count: int | None = None,
    seconds: float | None = None,
    hang_s: float = 10.0,
) -> tuple[int, Finding | None]:
    """Try the seeds and then changes of them, until something is found or enough were tried: (how many, finding)."""
    rng, end = random.Random(seed), None if seconds is None else time.monotonic() + seconds
    tried = 0
    with _alarm() as within:
        while (count is None or tried < count) and (end is None or time.monotonic() < end):
            data = seeds[tried] if tried < len(seeds) else mutated(seeds, rng)
            tried += 1
            try:
                with within(hang_s):
                    target(data)
            except Exception as error:
                return tried, Finding(data, error, "".join(traceback.format_exception(error)))
    return tried, None


@contextlib.contextmanager
def _alarm() -> Iterator[Callable[[float], contextlib.AbstractContextManager[None]]]:
    """A limit in time for what runs in Python; a hang within C ends with the process that watches this one."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Hang("an input took too long.")

    @contextlib.contextmanager
    def within(seconds: float) -> Iterator[None]:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield within
    finally:
        signal.signal(signal.SIGALRM, before)


def _flip(data: bytearray, seeds: Sequence[bytes], rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _put(data: bytearray, seeds: Sequence[bytes], rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice(_TELLING)


def _insert(data: bytearray, seeds: Sequence[bytes], rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.randrange(1, 9))


def _cut(data: bytearray, seeds: Sequence[bytes], rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at : at + rng.choice((1, 2, 8, MAX_BYTES))]


def _repeat(data: bytearray, seeds: Sequence[bytes], rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = data[at : at + rng.randrange(1, 17)] * rng.choice((1, 2, 16, 200))


def _splice(data: bytearray, seeds: Sequence[bytes], rng: random.Random) -> None:
    other = rng.choice(seeds)
    at, start = rng.randrange(len(data) + 1), rng.randrange(len(other) + 1)
    data[at : at + rng.randrange(9)] = other[start : start + rng.randrange(1, 33)]


_CHANGES = (_flip, _put, _insert, _cut, _repeat, _splice)
