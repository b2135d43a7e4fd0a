"""Runs the graph of a policy with ONNX Runtime.

A graph takes its weights as inputs, so a new version is a new binding, which costs nothing. But what may change with
every call cannot be prepared: convolutions over weights that stay as they are run twice as fast, since ONNX Runtime
lays weights and images out for them once. To prepare takes milliseconds. So it is done for graphs with convolutions,
once it is likely to pay: when the same weights have been used a number of times.

Importing this module does not import onnxruntime.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from clusterenv.errors import ConfigError, named
from clusterenv.policy.protocol import Output
from clusterenv.policy.runtime import checked_weight

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterenv.policy.graph import GraphSpec
    from clusterenv.policy.protocol import Array

_logger = logging.getLogger(__name__)

# After so many calls with the same weights they are prepared. With images of 84 x 84 in fours that takes 2 to 10 ms and
# saves 0.25 to 2 ms a call, so it never costs much more than it can save. Calls count, not rows or seconds: lock step
# gives the same numbers for any number of workers, and each time.
PREPARED_AFTER = 16


class OnnxRuntime:
    """Runs an exported graph on one thread.

    Args:
        spec: the graph and the names and shapes that go with it.
        prepared_after: how many calls with the same weights it takes before they are prepared.
    """

    def __init__(self, spec: GraphSpec, prepared_after: int = PREPARED_AFTER) -> None:
        self._spec, self._prepared_after = spec, prepared_after
        self._prepared_graph = spec.prepared_graph
        self._open = self._session = _Session(spec, spec.graph)
        self._weights: dict[str, Array] = {}
        self._calls_left = 0

    def load(self, weights: Mapping[str, Array]) -> None:
        """Take these weights. They are not copied where their layout allows it."""
        shapes = self._open.shapes
        self._weights = {name: checked_weight(weights, name, shapes[name]) for name in self._spec.weights}
        self._open.bind(self._weights)
        self._session = self._open
        self._calls_left = self._prepared_after if self._prepared_graph else -1

    def __call__(self, leaves: Sequence[Array], state: tuple[Array, ...]) -> Output:
        """Act on the leaf arrays of n observations."""
        if len(self._weights) != len(self._spec.weights):
            raise ConfigError("this policy has no weights yet. Call load(weights) before it acts.")
        if self._calls_left == 0:
            self._prepare()
        self._calls_left -= 1
        return self._session(leaves, state)

    def _prepare(self) -> None:
        try:
            self._session = _Session(self._spec, self._prepared_graph, self._weights)
        except Exception as error:  # for want of memory, or by a version of ONNX Runtime that cannot do it
            self._prepared_graph = b""  # it would fail again with the next weights
            _logger.warning("weights could not be prepared for convolutions, which run slower now: %s", named(error))


class _Session:
    """A session of ONNX Runtime with buffers of its own.

    Inputs and outputs lie in buffers that are bound once per batch size, and weights are bound once per version: a call
    then only copies rows in, runs, and copies rows out. That costs 26 us for an actor-critic with two layers of 64 and
    32 rows, where `session.run` with the arrays takes 44.

    Args:
        spec: the names and shapes that go with the graph.
        graph: the ONNX model.
        constants: the weights, if the graph has them as constants.

    Attributes:
        shapes: of the graph's inputs.
    """

    def __init__(self, spec: GraphSpec, graph: bytes, constants: Mapping[str, Array] | None = None) -> None:
        import onnxruntime  # type: ignore[import-untyped]

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # a worker has one core
        for pool in ("intra_op", "inter_op"):
            options.add_session_config_entry(f"session.{pool}.allow_spinning", "0")
        options.log_severity_level = 4  # its errors are raised as well; they need not be printed too
        if constants is not None:
            values = [onnxruntime.OrtValue.ortvalue_from_numpy(weight) for weight in constants.values()]
            options.add_external_initializers(list(constants), values)
            self._kept = constants, values  # nobody says for how long the session looks at them
        self._session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        self._binding = self._session.io_binding()
        self._spec = spec
        self.shapes = {node.name: tuple(node.shape) for node in self._session.get_inputs()}
        self._rows = -1

    def bind(self, weights: dict[str, Array]) -> None:
        """Use these weights from now on."""
        for name, weight in weights.items():
            self._binding.bind_cpu_input(name, weight)
        self._bound = weights  # the binding holds only their addresses

    def __call__(self, leaves: Sequence[Array], state: tuple[Array, ...]) -> Output:
        rows = len(leaves[0])
        if rows != self._rows:
            self._resize(rows)
        for buffer, array in zip(self._inputs, (*leaves, *state), strict=True):
            buffer[...] = array
        self._session.run_with_iobinding(self._binding)
        value = None if self._value is None else self._value.copy()
        return Output(self._params.copy(), value, tuple([array.copy() for array in self._state]))

    def _resize(self, rows: int) -> None:
        """Make and bind buffers for this many rows."""
        spec = self._spec
        self._inputs = [np.zeros((rows, *leaf.shape), leaf.dtype) for leaf in (*spec.leaves, *spec.state)]
        for name, array in zip(spec.inputs, self._inputs, strict=True):
            if name in self.shapes:  # the exporter leaves out what the policy does not look at
                self._binding.bind_cpu_input(name, array)
        self._params = np.zeros((rows, spec.size), np.float32)
        self._value = np.zeros(rows, np.float32) if spec.has_value else None
        self._state = [np.zeros((rows, *leaf.shape), leaf.dtype) for leaf in spec.state]
        values = [] if self._value is None else [self._value]
        for name, array in zip(spec.outputs, [self._params, *values, *self._state], strict=True):
            self._binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        self._rows = rows
