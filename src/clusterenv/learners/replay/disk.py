"""Arrays in a file in place of memory, and memories that are saved and loaded again."""

from __future__ import annotations

import bisect
import hashlib
import json
import math
import mmap
import os
import pathlib
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.errors import ConfigError, WeightsCorrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy.typing as npt

    Array = npt.NDArray[Any]

FORMAT = 1
_FACTS = "replay.json"
_CHUNK = 1 << 24


def zeros(shape: tuple[int, ...], dtype: np.dtype[Any], folder: str | os.PathLike[str] | None) -> Array:
    """An array of zeros, in memory or in a file of this folder.

    The file has no name: nobody else sees it, and it is gone with the process, however that ends. Its room is taken at
    once, since a disk that is full later would end the process in the middle of a write.
    """
    size = math.prod(shape) * dtype.itemsize
    if folder is None or not size:
        try:
            return np.zeros(shape, dtype)
        except (MemoryError, ValueError) as error:  # the latter if no address is that large
            raise ConfigError(
                f"a replay needs {size / 2**30:.1f} GiB of memory, and got: {error}. "
                "Lower the capacity, or name a folder for the observations, a learner's memory_folder."
            ) from error
    try:
        pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return np.frombuffer(mmap.mmap(file.fileno(), size), dtype).reshape(shape)
    except OSError as error:
        raise ConfigError(
            f"a replay needs {size / 2**30:.1f} GiB in {os.fspath(folder)}, and got: {error.strerror}. "
            "Lower the capacity, or name another folder."
        ) from error


def refuse_too_large(size: Callable[[int], int], *, slots: int, steps: int, free: int | None) -> None:
    """Raise if a memory does not fit: its pages are given out one by one, so that the run would be killed later.

    Args:
        size: the bytes that lanes of so many steps take; more for more steps.
        slots: how many lanes.
        steps: of each lane.
        free: the bytes that there are, or None if nobody knows.

    Example:
        >>> refuse_too_large(lambda steps: 2**30 * steps, slots=2, steps=8, free=5 * 2**30)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        clusterenv.errors.ConfigError: a replay needs 8589934592 bytes of memory (8.0 GiB), and 5368709120 (5.0 GiB) ...
    """
    needed = size(steps)
    if free is None or needed <= free:
        return
    # No lane has more steps than there are bytes, however many were asked for.
    fits = bisect.bisect_right(range(min(steps, free) + 1), free, key=size) - 1
    raise ConfigError(
        f"a replay needs {needed} bytes of memory ({needed / 2**30:.1f} GiB), and {free} ({free / 2**30:.1f} GiB) are "
        f"available: a capacity of at most {max(fits, 0) * slots} fits. Lower the capacity, or name a folder "
        "for the observations, a learner's memory_folder."
    )


def save(folder: str | os.PathLike[str], settings: Mapping[str, Any], facts: Any, arrays: Mapping[str, Array]) -> None:
    """Write a memory into a folder: aside first, forced to the disk, and renamed; then the one before it goes.

    Args:
        folder: made if it is not there.
        settings: what a memory must have in common with it to take it in; anything that JSON holds.
        facts: anything else that JSON holds.
        arrays: by name.
    """
    root = pathlib.Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    before = _kept(root)
    number = int(before[-1].name) + 1 if before else 1
    for left in root.glob(".*.new"):  # of a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    aside = pathlib.Path(tempfile.mkdtemp(prefix=".", suffix=".new", dir=root))
    try:
        table = {name: _write(aside / name, array) for name, array in arrays.items()}
        about = {"format": FORMAT, "settings": settings, "facts": facts, "arrays": table}
        about["hash"] = _hash_of(about)
        _forced(aside / _FACTS, [json.dumps(about).encode()])
        aside.rename(root / f"{number:06d}")
        _force_names(root)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    for old in before:
        shutil.rmtree(old, ignore_errors=True)


def is_saved(folder: str | os.PathLike[str]) -> bool:
    """Whether a memory was saved there, sound or not."""
    return bool(_kept(pathlib.Path(folder)))


class Saved:
    """A memory that was saved: sound, since every byte was looked at.

    Args:
        folder: where it was saved.
        settings: of the memory that is to take it in.

    Raises:
        ConfigError: there is none, or it has other settings.
        WeightsCorrupt: it is damaged.
    """

    def __init__(self, folder: str | os.PathLike[str], settings: Mapping[str, Any]) -> None:
        kept = _kept(pathlib.Path(folder))
        if not kept:
            raise ConfigError(f"no memory was saved in {os.fspath(folder)}.")
        self._folder = kept[-1]
        self._about = self._checked()
        saved = self._about["settings"]
        for name, value in json.loads(json.dumps(settings)).items():
            if saved.get(name) != value:
                raise ConfigError(
                    f"the memory in {self._folder} was saved with {name}={saved.get(name)}, and this one has "
                    f"{name}={value}. Make it with the same settings, or leave it empty."
                )

    @property
    def facts(self) -> Any:
        """What was saved beside the arrays."""
        return self._about["facts"]

    def read(self, name: str) -> Array:
        """An array."""
        told = self._about["arrays"][name]
        array = np.zeros(told["shape"], told["dtype"])
        self.read_into(name, array)
        return array

    def read_into(self, name: str, array: Array) -> None:
        """The same, into memory that is there; its shape must be that of the array."""
        if list(array.shape) != self._about["arrays"][name]["shape"]:
            raise ConfigError(f"{name} of the memory in {self._folder} has another shape than {array.shape}.")
        with open(self._folder / name, "rb") as file:
            for part in _parts(array):
                file.readinto(part)

    def _checked(self) -> dict[str, Any]:
        try:
            about: dict[str, Any] = json.loads((self._folder / _FACTS).read_bytes())
            sound = about.pop("hash") == _hash_of(about) and about["format"] == FORMAT
            sound = sound and all(_hash_file(self._folder / n) == told["hash"] for n, told in about["arrays"].items())
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WeightsCorrupt(f"the memory in {self._folder} cannot be read: {error}.") from error
        if not sound:
            raise WeightsCorrupt(
                f"the memory in {self._folder} is damaged, or of another version: its content does not have the hash "
                "that was saved with it."
            )
        return about


def _kept(root: pathlib.Path) -> list[pathlib.Path]:
    """The memories in a folder, oldest first."""
    return sorted(path for path in root.glob("[0-9]*") if path.name.isdecimal())


def _parts(array: Array) -> Iterator[memoryview]:
    """The bytes of an array, without a copy of it: rows that lie in one piece."""
    if array.flags.c_contiguous:
        if array.size:
            yield array.reshape(-1).view(np.uint8).data
        return
    for row in array:
        yield from _parts(row)


def _write(path: pathlib.Path, array: Array) -> dict[str, Any]:
    state = hashlib.blake2b(digest_size=16)
    parts = list(_parts(array))
    for part in parts:
        state.update(part)
    _forced(path, parts)
    return {"shape": list(array.shape), "dtype": array.dtype.str, "hash": state.hexdigest()}


def _forced(path: pathlib.Path, parts: list[Any]) -> None:
    with open(path, "wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def _force_names(folder: pathlib.Path) -> None:
    """A new name is on the disk only once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _hash_of(about: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=16).hexdigest()


def _hash_file(path: pathlib.Path) -> str:
    state = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            state.update(chunk)
    return state.hexdigest()
