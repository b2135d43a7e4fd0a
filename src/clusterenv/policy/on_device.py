"""The learner's own device runs the policy on the head, where there is a better one than the CPU."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from clusterenv.policy.protocol import Output
from clusterenv.policy.runtime import as_tensors, pack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterenv.policy.modules import TorchActor
    from clusterenv.policy.protocol import Array


class DeviceRuntime:
    """Runs a copy of the user's torch module on its device.

    How far the workers have drifted is measured on the head, beside the learning, with a few hundred observations at a
    time. What takes an accelerator a millisecond holds a core that learns for as long as a whole update if the
    observations are images. Its numbers are not those of the workers' CPUs to the last bit; the difference is far below
    any drift that matters.

    Args:
        actor: the user's module.
        device: where it runs.
    """

    def __init__(self, actor: TorchActor, device: Any) -> None:
        self._actor: TorchActor = pickle.loads(pack(actor))  # the learner goes on changing its own
        self._actor.module.to(device).eval()
        self._device = device

    def load(self, weights: Mapping[str, Array]) -> None:
        """Copy these weights into the module. Tensors that acting does not need may be missing."""
        import torch

        tensors = self._actor.tensors()
        with torch.no_grad():
            for name, weight in weights.items():
                tensors[name].copy_(torch.from_numpy(weight.copy()))

    def __call__(self, leaves: Sequence[Array], state: tuple[Array, ...]) -> Output:
        """Act on the leaf arrays of n observations."""
        import torch

        with torch.no_grad():
            inputs = [tensor.to(self._device) for tensor in as_tensors(leaves)]
            params, value, after = self._actor(inputs, [tensor.to(self._device) for tensor in as_tensors(state)])
        return Output(_array(params), None if value is None else _array(value), tuple(map(_array, after)))


def device_of(actor: TorchActor) -> Any:
    """The device of the module's parameters; None if they are on the CPU, or on several, or if there are none."""
    devices = {tensor.device for tensor in actor.module.parameters()}
    return devices.pop() if len(devices) == 1 and all(device.type != "cpu" for device in devices) else None


def _array(tensor: Any) -> Array:
    array: Array = tensor.cpu().numpy().copy()
    return array
