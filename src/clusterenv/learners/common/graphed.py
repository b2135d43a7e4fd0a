"""An actor's forward pass as a CUDA graph: the same kernels, launched at once instead of one after the other.

A small network on a GPU spends its time in launching kernels. A graph is recorded for one size, so smaller batches are
filled up with rows of nobody. Whether it pays depends on network, batch and machine: `fastest` measures.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch

from clusterenv.errors import ConfigError
from clusterenv.policy.runtime import input_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from torch import Tensor

    from clusterenv.learners.common.acting import HeadActor

    Array = npt.NDArray[Any]

Graphs = Literal["auto", "on", "off"]

_WARM_UP, _TRIES = 3, 20

_logger = logging.getLogger(__name__)


class Run(Protocol):
    """Parameters and values for some slots, as `HeadActor.__call__` gives them."""

    def __call__(self, slots: Array, obs: Sequence[Array], *, first: Array, at: Array) -> tuple[Array, Array | None]:
        """Act for these slots."""


class Graphed:
    """Runs an actor on a GPU for at most `size` slots at a time.

    Args:
        actor: whose weights and memory it uses. Weights may be changed in place, never replaced.
        size: of the batch that is recorded.
    """

    def __init__(self, actor: HeadActor, size: int) -> None:
        self._actor, self._size = actor, size
        inputs = [*actor.blank(size), np.full(size, actor.nobody), np.ones(size, np.bool_), np.zeros(size, np.intp)]
        self._host = [torch.from_numpy(array.astype(input_dtype(array.dtype))).pin_memory() for array in inputs]
        self._rows = [tensor.numpy() for tensor in self._host]
        self._device = [tensor.to(actor.device) for tensor in self._host]
        self._stream = torch.cuda.Stream(actor.device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(actor.device))
        with torch.cuda.stream(self._stream), torch.no_grad():
            for _ in range(_WARM_UP):  # what is set up by a first call cannot be recorded
                self._forward()
        self._stream.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=self._stream), torch.no_grad():
            self._answer = self._forward()
        self._told = torch.empty(self._answer.shape, dtype=self._answer.dtype, pin_memory=True)
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def _forward(self) -> Tensor:
        params, value = self._actor.forward(self._device[:-3], self._device[-3:])
        return params if value is None else torch.cat([params, value[:, None]], 1)

    def __call__(self, slots: Array, obs: Sequence[Array], *, first: Array, at: Array) -> tuple[Array, Array | None]:
        """As `HeadActor.__call__`."""
        count = len(slots)
        if count > self._size:
            raise ConfigError(f"{count} slots in a batch, but its graph was recorded for {self._size}.")
        for rows, array in zip(self._rows, (*obs, slots, first, at), strict=True):
            rows[:count] = array
        self._rows[-3][count:] = self._actor.nobody
        stream = torch.cuda.current_stream(self._actor.device)
        for tensor, host in zip(self._device, self._host, strict=True):
            tensor.copy_(host, non_blocking=True)
        self._graph.replay()
        self._told.copy_(self._answer, non_blocking=True)
        self._done.record(stream)
        self._done.synchronize()
        told = self._told[:count].numpy().copy()
        size = self._actor.distribution.size
        return told[:, :size], told[:, size] if told.shape[1] > size else None


def fastest(actor: HeadActor, size: int, graphs: Graphs) -> Run:
    """The actor itself or its graph, whichever is faster for a full batch; off the GPU, and with "off", itself.

    Example:
        >>> from gymnasium.spaces import Box, Discrete
        >>> from clusterenv.learners.common.acting import HeadActor
        >>> from clusterenv.learners.common.networks import make_network
        >>> space = Box(-1, 1, (4,))
        >>> actor = HeadActor(make_network(space, Discrete(2)), space, slots=4, device="cpu")
        >>> fastest(actor, 4, "auto") is actor
        True
    """
    if graphs == "off" or actor.device.type != "cuda":
        return actor
    try:
        graphed = Graphed(actor, size)
    except RuntimeError as error:  # a kernel that cannot be recorded, in a network of the user's
        if graphs == "on":
            raise ConfigError(f"{type(actor.module).__name__} cannot be run as a CUDA graph: {error}") from error
        _logger.warning("%s is run without a CUDA graph: %s", type(actor.module).__name__, error)
        return actor
    if graphs == "on":
        return graphed
    plain_s, graphed_s = _seconds(actor, actor, size), _seconds(graphed, actor, size)
    _logger.info("%d rows: %.0f us, as a graph %.0f us", size, plain_s * 1e6, graphed_s * 1e6)
    return graphed if graphed_s < plain_s else actor


def _seconds(run: Run, actor: HeadActor, size: int) -> float:
    """The median of some calls, for rows of nobody."""
    nobody, obs = np.full(size, actor.nobody), actor.blank(size)
    first, at = np.ones(size, np.bool_), np.zeros(size, np.intp)
    taken = []
    for _ in range(_WARM_UP + _TRIES):
        began = time.perf_counter()
        run(nobody, obs, first=first, at=at)
        taken.append(time.perf_counter() - began)
    return float(np.median(taken[_WARM_UP:]))
