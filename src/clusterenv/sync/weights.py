"""Which tensors a policy has, and how they lie in flat memory.

Tensors of float32 lie one after the other in one vector, which the codec may round. All others (float64, float16,
integers, booleans) lie byte by byte in a tail that is never rounded: a step counter or a mask must not change.
Everything is little-endian, whatever the host.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clusterenv.errors import ConfigError, ConfigTypeError, WeightsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Array = npt.NDArray[Any]

_FLOAT32 = "<f4"
# All that a tensor may be, so that a text from elsewhere means a number of a known size or is refused.
_DTYPES = frozenset(["|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16"])


class TensorSpec(NamedTuple):
    """Name, shape and dtype of one tensor. The dtype is NumPy's short text, as in "<f4"."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """How many elements it has: 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes its elements take."""
        return self.size * np.dtype(self.dtype).itemsize


class Flat(NamedTuple):
    """Weights in flat memory: the float32 tensors in one vector, the bytes of all others in the tail."""

    vector: npt.NDArray[np.float32]
    tail: bytes


@dataclass(frozen=True)
class WeightSpec:
    """The tensors of a policy, in a fixed order.

    Example:
        >>> spec = WeightSpec.of({"w": np.ones((2, 3), np.float32), "steps": np.int64(7)})
        >>> spec.floats, spec.tail_bytes
        (6, 8)
        >>> spec.unflatten(spec.flatten({"w": np.ones((2, 3), np.float32), "steps": np.int64(8)}))["steps"]
        array(8)
    """

    tensors: tuple[TensorSpec, ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for tensor in self.tensors:
            if tensor.name in seen:
                raise ConfigError(f"two tensors are named {tensor.name!r}; every name must be there once.")
            seen.add(tensor.name)
            if tensor.dtype not in _DTYPES:
                raise ConfigError(
                    f"tensor {tensor.name!r} has dtype {tensor.dtype[:20]!r}, which is no number that can travel. "
                    "Leave it out of weights()."
                )
            if any(size < 0 for size in tensor.shape):
                raise ConfigError(f"tensor {tensor.name!r} has shape {tensor.shape}; sizes must not be negative.")

    @classmethod
    def of(cls, weights: Mapping[str, Array]) -> WeightSpec:
        """The spec of these weights, in their order."""
        if not isinstance(weights, Mapping):
            raise ConfigTypeError(
                f"weights() gave a {type(weights).__name__}; it must give a dictionary of arrays by name."
            )
        arrays = {name: np.asarray(value) for name, value in weights.items()}
        return cls(tuple(TensorSpec(name, array.shape, _little(array.dtype)) for name, array in arrays.items()))

    @functools.cached_property
    def floats(self) -> int:
        """How many float32 numbers the vector holds."""
        return sum(tensor.size for tensor in self.tensors if tensor.dtype == _FLOAT32)

    @functools.cached_property
    def tail_bytes(self) -> int:
        """How many bytes the tail holds."""
        return sum(tensor.nbytes for tensor in self.tensors if tensor.dtype != _FLOAT32)

    @functools.cached_property
    def hash(self) -> bytes:
        """Eight bytes that differ for other names, shapes, dtypes or another order."""
        return hashlib.blake2b(json.dumps(self.tensors).encode(), digest_size=8).digest()

    def check(self, weights: Mapping[str, Array]) -> None:
        """Raise WeightsError unless these are the attached tensors, and every number in them is finite."""
        for name in weights:
            if name not in self._by_name:
                raise WeightsError(f"tensor {name!r} was not there when the policy was attached. {_ATTACH_AGAIN}")
        for tensor in self.tensors:
            if tensor.name not in weights:
                raise WeightsError(f"tensor {tensor.name!r} of the attached policy is missing. {_ATTACH_AGAIN}")
            _check_tensor(tensor, np.asarray(weights[tensor.name]))

    def flatten(self, weights: Mapping[str, Array]) -> Flat:
        """Copy weights that passed `check` into flat memory."""
        vector = np.empty(self.floats, dtype=_FLOAT32)
        tail: list[bytes] = []
        at = 0
        for tensor in self.tensors:
            array = np.asarray(weights[tensor.name])
            if tensor.dtype == _FLOAT32:
                vector[at : at + tensor.size] = array.ravel()
                at += tensor.size
            else:
                tail.append(array.astype(tensor.dtype, copy=False).tobytes())
        return Flat(vector, b"".join(tail))

    def unflatten(self, flat: Flat) -> dict[str, Array]:
        """The weights by name. Tensors of float32 are views of `flat.vector`; the others are copies."""
        if flat.vector.size != self.floats or len(flat.tail) != self.tail_bytes:
            raise WeightsError(
                f"{flat.vector.size} floats and {len(flat.tail)} bytes cannot be split into tensors that take "
                f"{self.floats} floats and {self.tail_bytes} bytes. The weights belong to another policy."
            )
        return dict(self._pieces(flat))

    def _pieces(self, flat: Flat) -> Iterator[tuple[str, Array]]:
        at = tail_at = 0
        for name, shape, dtype in self.tensors:
            tensor = self._by_name[name]
            if dtype == _FLOAT32:
                yield name, flat.vector[at : at + tensor.size].reshape(shape)
                at += tensor.size
            else:
                # A copy, because a slice of bytes may lie at an address that does not suit the dtype.
                piece = np.frombuffer(flat.tail, dtype, tensor.size, tail_at) if tensor.size else np.empty(0, dtype)
                yield name, piece.reshape(shape).copy()
                tail_at += tensor.nbytes

    @functools.cached_property
    def _by_name(self) -> dict[str, TensorSpec]:
        return {tensor.name: tensor for tensor in self.tensors}


_ATTACH_AGAIN = "A published policy must have the tensors of the attached one: detach() and attach() the new one."


def _check_tensor(tensor: TensorSpec, array: Array) -> None:
    if array.shape != tensor.shape:
        raise WeightsError(
            f"tensor {tensor.name!r} has shape {array.shape}, and had {tensor.shape} when it was attached. "
            f"{_ATTACH_AGAIN}"
        )
    if _little(array.dtype) != tensor.dtype:
        raise WeightsError(
            f"tensor {tensor.name!r} has dtype {array.dtype}, and had {np.dtype(tensor.dtype)} when it was attached. "
            f"{_ATTACH_AGAIN}"
        )
    if array.dtype.kind in "fc" and not (finite := np.isfinite(array)).all():
        bad = array.size - int(np.count_nonzero(finite))
        raise WeightsError(
            f"tensor {tensor.name!r} has {bad} of {array.size} values that are not finite. Nothing was published. "
            "Lower the learning rate or clip the gradients; the workers go on with the last good version."
        )


def _little(dtype: np.dtype[Any]) -> str:
    return dtype.newbyteorder("<").str
