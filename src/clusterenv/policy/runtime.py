"""Runs a policy on NumPy arrays: by torch, or by the user's own NumPy code. `onnx_runtime` runs graphs.

A runtime has no weights until `load`, and each call gives fresh arrays, which the caller may keep or change.
Importing this module does not import torch.
"""

from __future__ import annotations

import io
import pickle
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from clusterenv import spaces
from clusterenv.errors import ConfigError, named
from clusterenv.policy.protocol import Output

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterenv.policy.modules import TorchActor
    from clusterenv.policy.protocol import Array


def checked_weight(weights: Mapping[str, Array], name: str, shape: tuple[int, ...]) -> Array:
    """The weight of this name, which must have this shape, in C order; copied only if it lies in another."""
    if name not in weights:
        raise ConfigError(f"the weight {name!r} is missing. The policy needs all that its weights() gives.")
    if weights[name].shape != shape:
        raise ConfigError(
            f"the weight {name!r} has shape {weights[name].shape}, but the attached policy has {shape}. "
            "Attach the policy again after changing its layers."
        )
    return np.require(weights[name], requirements=["C", "ALIGNED"])


class TorchRuntime:
    """Runs the user's own torch module, on one thread.

    For modules that cannot be exported. It costs a worker 1.3 s and 217 MB to import torch, and several times as long
    per call as the graph.

    Args:
        actor: the module, on the CPU, for this runtime alone.
    """

    def __init__(self, actor: TorchActor) -> None:
        self._actor = actor
        self._actor.module.eval()
        self._loaded = False

    def load(self, weights: Mapping[str, Array]) -> None:
        """Copy these weights into the module."""
        import torch

        with torch.no_grad():
            for name, tensor in self._actor.tensors().items():
                weight = checked_weight(weights, name, tuple(tensor.shape))
                tensor.copy_(torch.from_numpy(weight if weight.flags.writeable else weight.copy()))
        self._loaded = True

    def __call__(self, leaves: Sequence[Array], state: tuple[Array, ...]) -> Output:
        """Act on the leaf arrays of n observations."""
        import torch

        if not self._loaded:
            raise ConfigError("this policy has no weights yet. Call load(weights) before it acts.")
        # The head's learner may use all cores: we take one for the length of this call (a quarter of a microsecond).
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.no_grad():
                params, value, after = self._actor(as_tensors(_own(leaves)), as_tensors(state))
        finally:
            torch.set_num_threads(threads)
        return Output(_copied(params), None if value is None else _copied(value), tuple(map(_copied, after)))


def _own(leaves: Sequence[Array]) -> list[Array]:
    """Copies: a policy may change what it is given, and these are views of what the learner will get."""
    return [leaf.copy() for leaf in leaves]


def as_tensors(arrays: Sequence[Array]) -> list[Any]:
    """These arrays as torch tensors, not copied if they can be shared."""
    import torch

    inputs = [array.astype(input_dtype(array.dtype), copy=False) for array in arrays]
    return [torch.from_numpy(array if array.flags.writeable else array.copy()) for array in inputs]


def input_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which numbers of `dtype` go into a module: torch and ONNX know few unsigned types."""
    wider = {"uint16": np.int32, "uint32": np.int64, "uint64": np.int64}
    return np.dtype(wider.get(dtype.name, dtype))


def _copied(tensor: Any) -> Array:
    array: Array = tensor.numpy().copy()  # a module may hand back its input, or a tensor that it keeps
    return array


class NumpyRuntime:
    """Runs a NumPy policy of the user.

    Args:
        policy: an object with `forward(weights, obs, state) -> (params, value or None, state)`.
        observation_space: how the leaf arrays make up an observation.
    """

    def __init__(self, policy: Any, observation_space: Any) -> None:
        self._policy = policy
        self._space = observation_space
        self._weights: dict[str, Array] | None = None

    def load(self, weights: Mapping[str, Array]) -> None:
        """Take these weights, without copying them."""
        self._weights = dict(weights)

    def __call__(self, leaves: Sequence[Array], state: tuple[Array, ...]) -> Output:
        """Act on the leaf arrays of n observations."""
        if self._weights is None:
            raise ConfigError("this policy has no weights yet. Call load(weights) before it acts.")
        obs = spaces.assemble(self._space, _own(leaves))
        params, value, after = self._policy.forward(self._weights, obs, state)
        if value is not None:
            value = np.asarray(value, np.float32).reshape(-1)
        return Output(np.asarray(params, np.float32), value, tuple(after))


@dataclass(frozen=True)
class TorchSpec:
    """A torch module on its way to a worker of the same host.

    Attributes:
        payload: the pickled module. It becomes code where it is opened, so it never goes over a socket.
    """

    payload: bytes

    @classmethod
    def of(cls, actor: TorchActor) -> TorchSpec:
        """Pack this module; what lies on another device is packed as if it lay on the CPU."""
        return cls(pack(actor))

    def make(self) -> TorchRuntime:
        """Build the runtime here; imports torch."""
        return TorchRuntime(pickle.loads(self.payload))


@dataclass(frozen=True)
class NumpySpec:
    """A NumPy policy on its way to a worker of the same host.

    Attributes:
        payload: the pickled policy and observation space. It never goes over a socket.
    """

    payload: bytes

    @classmethod
    def of(cls, policy: Any, observation_space: Any) -> NumpySpec:
        """Pack this policy."""
        return cls(pack((policy, observation_space)))

    def make(self) -> NumpyRuntime:
        """Build the runtime here."""
        return NumpyRuntime(*pickle.loads(self.payload))


def pack(value: Any) -> bytes:
    """Pickle `value`, with every torch tensor in it on the CPU. ConfigError if it cannot be pickled."""
    into = io.BytesIO()
    try:
        _CpuPickler(into).dump(value)
    except Exception as error:  # whatever the user's object raises when it is taken apart
        raise ConfigError(
            f"the policy cannot travel to a worker: {named(error)}. Keep environments, files, locks "
            "and threads out of its attributes."
        ) from error
    return into.getvalue()


class _CpuPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A worker must not touch the learner's accelerator, and may not have one."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor) and value.device.type != "cpu":
            moved = value.detach().cpu()
            if isinstance(value, torch.nn.Parameter):
                moved = torch.nn.Parameter(moved, requires_grad=value.requires_grad)
            return moved.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(value)
