"""Arrays in anonymous shared memory, laid out from a list of fields that both sides know."""

from __future__ import annotations

import itertools
import mmap
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clusterenv.cgroups import free_memory
from clusterenv.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

_LINE = 64  # every array begins on a cache line of its own
# Every memory of a process has a number, by which other hosts know it.
_numbers = itertools.count(1)


class Field(NamedTuple):
    """One array: its name, shape and dtype (as text, so that both sides get NumPy's own object for it)."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """The bytes it takes; Python integers, so that a huge shape gives a huge number and not a negative one."""
        size = np.dtype(self.dtype).itemsize
        for length in self.shape:
            size *= int(length)
        return size


class SharedArrays:
    """Named arrays in one block of memory without a name, so that nothing can be left behind in the file system.

    Example:
        >>> arrays = SharedArrays.create([Field("count", (2,), "<i8")])
        >>> arrays["count"][:] = [3, 4]
        >>> int(arrays["count"].sum())
        7
        >>> arrays.close()
    """

    def __init__(self, layout: Sequence[Field], memory: mmap.mmap, fd: int) -> None:
        self.fd = fd
        self.number = next(_numbers)
        self.layout = tuple(layout)
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        offset = 0
        for field in self.layout:
            kind = np.dtype(field.dtype)
            count = field.nbytes // kind.itemsize
            array = np.frombuffer(memory, dtype=kind, count=count, offset=offset).reshape(field.shape)
            self._arrays[field.name] = array
            offset += padded(field.nbytes)

    @classmethod
    def create(cls, layout: Sequence[Field]) -> SharedArrays:
        """Make the memory. Every byte starts as zero."""
        return cls(layout, *anonymous_memory(_checked_size(layout)))

    @classmethod
    def attach(cls, layout: Sequence[Field], fd: int) -> SharedArrays:
        """Map memory that another process made. The object owns the descriptor from here on."""
        return cls(layout, mmap.mmap(fd, _size(layout)), fd)

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays together."""
        return sum(field.nbytes for field in self.layout)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._arrays[name]

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Give the descriptor back. The memory lives until the last view of it is gone."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def anonymous_memory(size: int) -> tuple[mmap.mmap, int]:
    """Memory without a name, all zero, and its descriptor, by which another process can map it."""
    fd = os.memfd_create("clusterenv", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, size)
        return mmap.mmap(fd, size), fd
    except BaseException:
        os.close(fd)
        raise


def host_memory() -> int:
    """The bytes of memory that this host, or the container on it, can still give; all that it has if it tells no more.

    Pages are given out when they are first written: who asks for more than is left is not refused, but killed later.
    """
    free = free_memory()
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if free is None else free


def padded(size: int) -> int:
    """The size up to the end of its last cache line."""
    return -(-size // _LINE) * _LINE


def _size(layout: Sequence[Field]) -> int:
    return max(_LINE, sum(padded(field.nbytes) for field in layout))


def _checked_size(layout: Sequence[Field]) -> int:
    size, limit = _size(layout), host_memory()
    if size > limit:
        largest = max(layout, key=lambda field: field.nbytes)
        raise ConfigError(
            f"{size / 2**30:.1f} GiB of shared memory are needed (the largest part is {largest.name!r} with shape "
            f"{largest.shape}), but this host has {limit / 2**30:.1f} GiB left for this process. Use fewer steps or "
            "fewer environments."
        )
    return size
