"""The weights of a node: one copy in shared memory for all its workers, in a double buffer.

The writer fills the half that is not in use and then counts up `done`, in one store: a reader finds either the old
version or the new one. A reader copies what it takes. Should the writer come round to the same half meanwhile, the
reader sees that by `begun` and takes again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from clusterenv.sync.weights import Flat
from clusterenv.transport.shared import Field, SharedArrays

if TYPE_CHECKING:
    from clusterenv.sync.versions import Version
    from clusterenv.sync.weights import WeightSpec

_BEGUN, _DONE = 0, 8  # words of `counts`, on different cache lines
_ATTEMPTS = 1000


def weights_layout(spec: WeightSpec) -> list[Field]:
    """The fields for weights of this kind."""
    size = 4 * spec.floats + spec.tail_bytes
    return [Field("counts", (16,), "<i8"), Field("version", (2, 2), "<i8"), Field("data", (2, size), "|u1")]


class WeightBuffer:
    """Version and bytes, read and written together."""

    def __init__(self, memory: SharedArrays) -> None:
        self.memory = memory
        self._counts = memory["counts"].data
        self._version, self._data = memory["version"], memory["data"]

    @property
    def count(self) -> int:
        """How many versions have been put here; cheap enough to look at before every step."""
        return int(self._counts[_DONE])

    def put(self, version: Version, flat: Flat) -> None:
        """Fill the idle half and flip. Only one process may call this."""
        begun = int(self._counts[_DONE]) + 1
        self._counts[_BEGUN] = begun
        half = begun & 1
        vector = flat.vector.view(np.uint8)
        self._data[half, : len(vector)] = vector
        self._data[half, len(vector) :] = np.frombuffer(flat.tail, np.uint8)
        self._version[half] = version
        self._counts[_DONE] = begun

    def take(self, floats: int) -> tuple[int, int, Flat]:
        """(count, number, a copy of the weights) of the newest version, whose vector holds `floats` numbers."""
        for _ in range(_ATTEMPTS):
            count = int(self._counts[_DONE])
            half = count & 1
            data, number = self._data[half].copy(), int(self._version[half, 1])
            if self._counts[_BEGUN] < count + 2:
                return count, number, Flat(data[: 4 * floats].view(np.float32), data[4 * floats :].tobytes())
        raise RuntimeError(f"the weights changed under each of {_ATTEMPTS} attempts to read them")
