"""A network that acts for the slots of all workers, on the learner's device, and remembers for each of them.

`HeadActor` runs it: arrays in, arrays out. The recurrent states of all slots lie in tables on the device and never
leave it, apart from those before an unroll, which the learner wants. `Handover` brings new weights from another thread.

The actor has its own copy of the network and takes new weights into it in place, between two batches. The learner does
not write there, but into a spare copy, so neither waits for more than a copy of the weights: with one copy and a lock
the learner would wait for the batch under way, and with two that change places a CUDA graph, which knows its weights by
their addresses, would be needed for each.
"""

from __future__ import annotations

import copy
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from clusterenv import spaces
from clusterenv.errors import ConfigError
from clusterenv.policy.protocol import Distribution
from clusterenv.policy.runtime import input_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from gymnasium import Space
    from torch import Tensor, nn

    Array = npt.NDArray[Any]
    Flags = npt.NDArray[np.bool_]
    Slots = npt.NDArray[np.intp]


class Handover:
    """New weights on their way from the thread that learns to the thread that acts.

    Args:
        module: with the first weights; it is not changed.

    Attributes:
        number: of the newest version.
    """

    def __init__(self, module: nn.Module) -> None:
        self._lock = threading.Lock()
        self._spare = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
        self.number = 0
        on_device = any(tensor.is_cuda for tensor in self._spare.values())
        self._written, self._read = (_event() if on_device else None for _ in range(2))

    def publish(self, module: nn.Module) -> int:
        """The weights of this module are the newest. Returns the number of their version."""
        new = module.state_dict()
        if new.keys() != self._spare.keys():
            raise ConfigError(
                f"the published network has the weights {sorted(new)[:4]}..., but the one that acts has "
                f"{sorted(self._spare)[:4]}.... Publish the network that the run began with."
            )
        with self._lock, torch.no_grad():
            if self._read is not None:
                self._read.wait()  # the device's turn, not ours: it orders the copies
            _copy(list(self._spare.values()), [new[name] for name in self._spare])
            if self._written is not None:
                self._written.record()
            self.number += 1
            return self.number

    def take(self, module: nn.Module) -> int:
        """Copy the newest weights into this module, in place. Returns the number of their version."""
        own = module.state_dict()
        with self._lock, torch.no_grad():
            if self._written is not None:
                self._written.wait()
            _copy([own[name] for name in self._spare], list(self._spare.values()))
            if self._read is not None:
                self._read.record()
            return self.number


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]


def _copy(into: list[Tensor], source: list[Tensor]) -> None:
    torch._foreach_copy_(into, source)


class HeadActor:
    """Runs a copy of a network for any of the slots.

    Args:
        module: with `distribution`, `forward(obs, state) -> (params, value or None, state)` and, if it has a memory,
            `state`.
        observation_space: of one slot.
        slots: how many there are.
        device: where it computes.
        keep: how many steps of each unroll it keeps the states before: 1 for the first only.

    Attributes:
        module: the copy.
        distribution: how actions follow from its parameters.
        state: the recurrent state of one slot.
        has_value: whether it gives values.

    Example:
        >>> from gymnasium.spaces import Box, Discrete
        >>> from clusterenv.learners.common.networks import make_network
        >>> space = Box(-1, 1, (4,))
        >>> actor = HeadActor(make_network(space, Discrete(2), lstm=8), space, slots=6, device="cpu")
        >>> some = np.array([4, 1])
        >>> params, value = actor(some, [np.zeros((2, 4), np.float32)], first=some > 0, at=np.zeros(2, int))
        >>> params.shape, value.shape, [state.shape for state in actor.states(some)]
        ((2, 2), (2,), [(1, 2, 8), (1, 2, 8)])
    """

    def __init__(
        self, module: nn.Module, observation_space: Space[Any], *, slots: int, device: str, keep: int = 1
    ) -> None:
        distribution = getattr(module, "distribution", None)
        if not isinstance(distribution, Distribution):
            raise ConfigError(
                f"{type(module).__name__} has no `distribution`, so inference='head' does not know how it acts. "
                "Use a network of clusterenv.learners, or inference='worker'."
            )
        self.distribution: Distribution = distribution
        self.state: tuple[spaces.Leaf, ...] = tuple(getattr(module, "state", ()))
        self.device = torch.device(device)
        self.module = copy.deepcopy(module).to(self.device).eval().requires_grad_(False)
        self._space = observation_space
        self._leaves = spaces.leaves_of(observation_space) or []
        # One row more than there are slots: rows that only fill a batch up are read from there and written there.
        self._now, self._kept, self._keep = self._tables(slots + 1), self._tables(keep, slots + 1), keep
        self.nobody = slots
        self.has_value = self._probe()

    def _tables(self, *sizes: int) -> list[Tensor]:
        return [torch.from_numpy(np.zeros((*sizes, *leaf.shape), leaf.dtype)).to(self.device) for leaf in self.state]

    def _probe(self) -> bool:
        """Act once for nobody."""
        nobody, start = np.array([self.nobody]), np.zeros(1, np.intp)
        params, value = self(nobody, self.blank(1), first=np.ones(1, np.bool_), at=start)
        if params.shape != (1, self.distribution.size):
            raise ConfigError(
                f"{type(self.module).__name__} gives parameters of shape {params.shape} for one observation, but "
                f"{self.distribution} takes {self.distribution.size}."
            )
        return value is not None

    def blank(self, rows: int) -> list[Array]:
        """Observations of nothing, to fill a batch up."""
        return [np.zeros((rows, *leaf.shape), leaf.dtype) for leaf in self._leaves]

    def __call__(self, slots: Slots, obs: Sequence[Array], *, first: Flags, at: Slots) -> tuple[Array, Array | None]:
        """Parameters [n, P] and values [n] for these slots; their memory goes on by a step.

        Args:
            slots: [n], none twice.
            obs: the leaves of what they see, each [n, ...].
            first: [n], where an episode begins: the memory is cleared before.
            at: [n], the step of their unrolls that they are at: the memory before the first is kept for `states`.
        """
        with torch.inference_mode():
            inputs = [self._moved(array) for array in obs]
            rows = [self._moved(array) for array in (slots, first, at)] if self.state else []
            params, value = self.forward(inputs, rows)
            return params.cpu().numpy(), None if value is None else value.cpu().numpy()

    def forward(self, obs: Sequence[Tensor], rows: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """The same on tensors that lie on the device; `rows` are slots, first and at, if there is a memory."""
        leaves = [leaf.float() if leaf.dtype in (torch.float64, torch.float16) else leaf for leaf in obs]
        seen = spaces.assemble(self._space, leaves)  # type: ignore[arg-type]  # it only moves them
        state: tuple[Tensor, ...] = ()
        if self.state:
            state = self._remember(*rows)
        params, value, after = self.module(seen, state)
        for table, part in zip(self._now, after, strict=True):
            table[rows[0]] = part.to(table.dtype)
        return params.float(), None if value is None else value.float().reshape(-1)

    def _remember(self, slots: Tensor, first: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        state = []
        for now, kept in zip(self._now, self._kept, strict=True):
            wide = [1] * (now.ndim - 1)
            part = now[slots].masked_fill(first.view(-1, *wide), 0)
            if self._keep > 1:
                kept[at, slots] = part
            else:  # without a decision that would wait for the device
                kept[0, slots] = torch.where((at == 0).view(-1, *wide), part, kept[0, slots])
            state.append(part)
        return tuple(state)

    def states(self, slots: Slots) -> list[Array]:
        """The states of these slots before the steps of their unrolls that are kept, each [keep, n, ...]."""
        index = torch.from_numpy(slots).to(self.device)
        with torch.inference_mode():
            return [table[:, index].cpu().numpy() for table in self._kept]

    def _moved(self, array: Array) -> Tensor:
        tensor = torch.from_numpy(array.astype(input_dtype(array.dtype), copy=False))
        return tensor if self.device.type == "cpu" else tensor.to(self.device, non_blocking=True)
