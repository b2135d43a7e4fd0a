"""Turns a torch module into an ONNX graph that carries no weights.

The weights are inputs of the graph from the beginning: while the exporter watches, the module works with tensors that
were handed in beside the observations. So no exporter can fold, rename or transpose them, their names are those of the
state dict, and a new version of the policy is a new binding of the same graph.

The older, tracing exporter goes first: it takes 0.02 to 0.2 s where the newer one takes 5, and gives a 2 KB graph where
the other gives 11. The newer one is asked where the first fails, or where the module decides by the values it sees.
Whatever comes out is run with other weights and other batch sizes and compared with torch, before anybody acts with it.

Importing this module imports neither torch nor onnx.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import logging
import math
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.errors import ConfigError, words_of
from clusterenv.policy.modules import evaluation
from clusterenv.policy.onnx_runtime import OnnxRuntime
from clusterenv.policy.runtime import as_tensors, input_dtype
from clusterenv.spaces import Leaf

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from clusterenv.policy.modules import TorchActor
    from clusterenv.policy.protocol import Array

_TRACED_ROWS = 2  # a batch of 1 could be mistaken for a fixed size
_INSTALL = 'pip install "clusterenv[onnx]"'


@dataclass(frozen=True)
class GraphSpec:
    """A policy as a graph: all that a worker needs to act, apart from the weights. It is plain data, a few KB.

    Attributes:
        graph: the ONNX model.
        weights: the names of the weights that it takes, names of the module's state dict.
        leaves: shape and dtype of the observation's leaves.
        state: shape and dtype of the recurrent state of one slot.
        size: how many parameters the action distribution has.
        has_value: whether it gives a value.
        prepared_graph: the same model with its weights as constants, whose values are handed over when a session is
            opened; empty where that brings little.
    """

    graph: bytes
    weights: tuple[str, ...]
    leaves: tuple[Leaf, ...]
    state: tuple[Leaf, ...]
    size: int
    has_value: bool
    prepared_graph: bytes = b""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the graph's inputs for leaves and state. The colon keeps them apart from the weights."""
        return (*(f"obs:{i}" for i in range(len(self.leaves))), *(f"state:{i}" for i in range(len(self.state))))

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the graph's outputs."""
        value = ("out:value",) if self.has_value else ()
        return ("out:params", *value, *(f"out:state:{i}" for i in range(len(self.state))))

    def make(self) -> OnnxRuntime:
        """Build the runtime here; imports onnxruntime, never torch."""
        return OnnxRuntime(self)


def missing_packages() -> str | None:
    """Why graphs cannot be made or run here, with the command that helps; None if they can."""
    missing = [name for name in ("onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
    return f"{' and '.join(missing)} not found. Run: {_INSTALL}" if missing else None


def export(actor: TorchActor, leaves: Sequence[Array], state: Sequence[Array]) -> GraphSpec:
    """The graph of this module, which must lie on the CPU and have been probed.

    While this runs no other thread may use the module.

    Args:
        actor: the module.
        leaves: at least three examples of each leaf of an observation.
        state: as many examples of the recurrent state.

    Raises:
        ConfigError: no exporter can do it, or what came out does not compute what the module computes.
    """
    blank = GraphSpec(
        b"",
        tuple(actor.tensors()),
        tuple(Leaf(leaf.shape[1:], input_dtype(leaf.dtype)) for leaf in leaves),
        tuple(Leaf(array.shape[1:], array.dtype) for array in state),
        actor.distribution.size if actor.distribution else 0,
        actor.has_value,
    )
    examples = as_tensors([array[:_TRACED_ROWS] for array in (*leaves, *state)])
    failures = []
    for exporter in (_by_tracing, _by_export):
        try:
            with evaluation(actor.module), _quiet():
                graph, used = exporter(_traceable(actor, blank), examples, actor, blank)
            spec = replace(blank, graph=graph, weights=used, prepared_graph=_with_constants(graph, used))
            _verify(spec, actor, leaves, state)
        except Exception as error:  # exporters raise anything
            failures.append(f"{exporter.__name__[1:]}: {_reason(error)}")
        else:
            return spec
    reasons = "\n".join(failures)
    raise ConfigError(
        f'{type(actor.module).__name__} cannot be made into a graph. Pass runtime="torch" to send the module itself to '
        f"workers of this host, or change what stands in the way:\n{reasons}"
    )


def _reason(error: BaseException) -> str:
    """What is under the exporter's own pages of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {words_of(error).partition(chr(10))[0]}"


def _traceable(actor: TorchActor, spec: GraphSpec) -> torch.nn.Module:
    """The module as a function of flat tensors: leaves, state, weights."""
    import torch

    leaves, inputs = len(spec.leaves), len(spec.inputs)

    class Traceable(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            with actor.swapped(dict(zip(spec.weights, tensors[inputs:], strict=True))):
                params, value, state = actor(tensors[:leaves], tensors[leaves:inputs])
            return (params, *(() if value is None else (value,)), *state)

    return Traceable().eval()


def _tensors(actor: TorchActor) -> list[torch.Tensor]:
    return [_plain(tensor) for tensor in actor.tensors().values()]


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on the CPU, in a type that NumPy has."""
    tensor = tensor.detach().cpu()
    return tensor.float() if tensor.dtype.is_floating_point and tensor.element_size() == 2 else tensor


def arrays_of(actor: TorchActor, names: Sequence[str]) -> dict[str, Array]:
    """Copies of these tensors of the module."""
    tensors = actor.tensors()
    return {name: _plain(tensors[name]).numpy().copy() for name in names}


def _by_tracing(
    module: torch.nn.Module, examples: list[torch.Tensor], actor: TorchActor, spec: GraphSpec
) -> tuple[bytes, tuple[str, ...]]:
    import onnx
    import torch

    def be_quiet(*_: object) -> None:
        _log_graphs(False)

    # This exporter turns the log on before it runs the module, whatever it was, and logs the graph if it fails then.
    module.register_forward_pre_hook(be_quiet)
    into = io.BytesIO()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.onnx.export(
            module,
            (*examples, *_tensors(actor)),
            into,  # type: ignore[arg-type]  # its hints forget files in memory
            dynamo=False,
            do_constant_folding=False,
            input_names=[*spec.inputs, *spec.weights],
            output_names=list(spec.outputs),
            dynamic_axes={name: {0: "n"} for name in (*spec.inputs, *spec.outputs)},
        )
    for warning in told:
        _refuse_decisions(warning)
    return into.getvalue(), _used(onnx.load_from_string(into.getvalue()), spec)


def _refuse_decisions(warning: warnings.WarningMessage) -> None:
    """A trace holds only the branch that was taken. What torch's layers, and we, ask is only about sizes."""
    import torch

    own = any(Path(warning.filename).is_relative_to(Path(file).parent) for file in (torch.__file__, __file__))
    text = str(warning.message)
    if text.startswith("Converting a tensor to a Python") and not own:
        raise ConfigError(f"{warning.filename}:{warning.lineno}: {text}")


def _by_export(
    module: torch.nn.Module, examples: list[torch.Tensor], actor: TorchActor, spec: GraphSpec
) -> tuple[bytes, tuple[str, ...]]:
    import torch

    weights = _tensors(actor)
    rows = torch.export.Dim("n")
    program = torch.onnx.export(
        module,
        (*examples, *weights),
        dynamo=True,
        verbose=False,
        input_names=[*spec.inputs, *spec.weights],
        output_names=list(spec.outputs),
        dynamic_shapes=(({0: rows},) * len(examples) + ({},) * len(weights),),
    )
    if program is None:
        raise ConfigError("torch.onnx.export gave nothing.")
    model = program.model_proto
    used = _used(model, spec)
    for node in [node for node in model.graph.input if node.name in set(spec.weights) - set(used)]:
        model.graph.input.remove(node)
    return model.SerializeToString(), used


def _used(model: Any, spec: GraphSpec) -> tuple[str, ...]:
    """The weights that some node of the graph looks at."""
    nodes = {name for node in model.graph.node for name in node.input}
    nodes |= {output.name for output in model.graph.output}
    return tuple(name for name in spec.weights if name in nodes)


def _with_constants(graph: bytes, weights: Sequence[str]) -> bytes:
    """The graph with these inputs as constants, to be filled in when it is loaded. Empty if it has no convolutions."""
    import onnx

    model = onnx.load_from_string(graph)
    if not any(node.op_type == "Conv" for node in model.graph.node):
        return b""
    for given in [given for given in model.graph.input if given.name in weights]:
        model.graph.input.remove(given)
        kind, shape = given.type.tensor_type.elem_type, [size.dim_value for size in given.type.tensor_type.shape.dim]
        where = onnx.TensorProto.EXTERNAL
        constant = model.graph.initializer.add(name=given.name, data_type=kind, dims=shape, data_location=where)
        # There is no such file: `add_external_initializers` hands over what would be in it.
        nbytes = math.prod(shape) * onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize
        for key, value in {"location": "weights", "offset": "0", "length": str(nbytes)}.items():
            constant.external_data.add(key=key, value=value)
    prepared: bytes = model.SerializeToString()
    return prepared


def _verify(spec: GraphSpec, actor: TorchActor, leaves: Sequence[Array], state: Sequence[Array]) -> None:
    """Compare the graph with torch, on weights and batch sizes that the exporter did not see."""
    weights = {name: _moved(array) for name, array in arrays_of(actor, tuple(actor.tensors())).items()}
    swaps = dict(zip(weights, as_tensors(list(weights.values())), strict=True))
    runtimes = [OnnxRuntime(spec), OnnxRuntime(spec, prepared_after=0)] if spec.prepared_graph else [OnnxRuntime(spec)]
    for runtime, rows in itertools.product(runtimes, (len(leaves[0]), 1)):
        runtime.load(weights)
        some, before = [leaf[:rows] for leaf in leaves], tuple(array[:rows] for array in state)
        found = runtime(some, before)
        with evaluation(actor.module), actor.swapped(swaps):
            params, value, after = actor(as_tensors(some), as_tensors(before))
        _compare("params", found.params, params)
        if value is not None and found.value is not None:
            _compare("value", found.value, value)
        for got, expected in zip(found.state, after, strict=True):
            _compare("state", got, expected)


def _moved(weight: Array) -> Array:
    # `asarray`, because arithmetic makes a number of an array without dimensions.
    return np.asarray(weight * 1.1 + 0.01, weight.dtype) if weight.dtype.kind == "f" else weight


def _compare(what: str, found: Array, expected: torch.Tensor) -> None:
    wanted = expected.numpy()
    scale = max(1.0, float(np.abs(np.where(np.isfinite(wanted), wanted, 0)).max(initial=0)))
    if found.shape != wanted.shape or not np.allclose(found, wanted, rtol=1e-3, atol=1e-4 * scale, equal_nan=True):
        raise ConfigError(f"the graph gives other {what} than the module: {found!r:.200} in place of {wanted!r:.200}.")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No warnings, log lines or prints of the exporters: what matters is raised."""
    loggers = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict) if name.startswith("torch")]
    handlers = [(handler, handler.level) for logger in loggers for handler in logger.handlers]
    logs_graphs = _log_graphs(False)
    for handler, _ in handlers:
        handler.setLevel(logging.CRITICAL + 1)
    try:
        nowhere = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        _log_graphs(logs_graphs)
        for handler, level in handlers:
            handler.setLevel(level)


def _log_graphs(wanted: bool) -> bool:
    """Whether torch has logged graphs, which it does from C++, past `sys.stdout`; from now on as wanted."""
    import torch

    if not hasattr(torch._C, "_jit_set_onnx_log_enabled"):  # it is no part of what torch promises
        return False
    before = torch._C._jit_is_onnx_log_enabled()
    torch._C._jit_set_onnx_log_enabled(wanted)
    return before
