"""A policy and its weights as plain data: what a worker on another host needs to act.

Only graphs travel. A torch module or a NumPy policy would have to be unpickled where it arrives, and that is to run
whatever the sender likes. Distributions go by name, from a fixed table, with the fields of their constructors.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from clusterenv.errors import ConfigError, ProtocolError
from clusterenv.policy.distributions import (
    Bernoulli,
    Categorical,
    Deterministic,
    DiagGaussian,
    EpsilonGreedy,
    MultiCategorical,
    TanhGaussian,
)
from clusterenv.policy.graph import GraphSpec
from clusterenv.policy.runtime import NumpySpec
from clusterenv.spaces import Leaf
from clusterenv.sync.weights import TensorSpec, WeightSpec
from clusterenv.wire.arrays import dtype_from_text, dtype_to_text, parts_of, shape_from_data, shown

if TYPE_CHECKING:
    import numpy as np

    from clusterenv.policy.protocol import Distribution, RuntimeSpec

# A graph holds no weights: the largest that we have seen takes a few hundred KB.
MAX_GRAPH_BYTES = 64 * 2**20
MAX_WEIGHT_BYTES = 2**40
_MAX_NAMES = 100_000
_MAX_NAME = 1000
_MAX_LEAVES = 10_000
_MAX_LEAF_BYTES = 2**31
_MAX_ACTION_NUMBERS = 2**20
_MAX_OUTPUTS = 2 * _MAX_ACTION_NUMBERS

_DISTRIBUTIONS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        Bernoulli,
        Categorical,
        Deterministic,
        DiagGaussian,
        EpsilonGreedy,
        MultiCategorical,
        TanhGaussian,
    )
}


def runtime_to_data(runtime: RuntimeSpec) -> list[Any]:
    """The runtime of a policy, if it is a graph.

    Raises:
        ConfigError: it is something else; says what to do.

    Example:
        >>> import numpy as np
        >>> runtime_to_data(GraphSpec(b"...", ("w",), (Leaf((4,), np.dtype("f4")),), (), 2, True))
        [b'...', b'', ['w'], [[[4], '<f4']], [], 2, True]
    """
    if isinstance(runtime, GraphSpec):
        leaves, state = leaves_to_data(runtime.leaves), leaves_to_data(runtime.state)
        graphs = [runtime.graph, runtime.prepared_graph]
        return [*graphs, list(runtime.weights), leaves, state, runtime.size, runtime.has_value]
    if isinstance(runtime, NumpySpec):
        raise ConfigError(
            "a NumPy policy cannot travel to other hosts, because it would have to be unpickled there. Write its "
            "forward pass as a torch module and pass runtime='onnx' (it becomes a graph; pip install "
            "\"clusterenv[onnx]\"), or run on this host with cluster='local'."
        )
    raise ConfigError(
        f"a policy that travels to other hosts must be a graph, and this one is a {type(runtime).__name__}: pass "
        "runtime='onnx', and install it on every host with: pip install \"clusterenv[onnx]\""
    )


def runtime_from_data(data: Any) -> GraphSpec:
    """Undo `runtime_to_data`. The graph itself is not looked into.

    Raises:
        ProtocolError: types or sizes are wrong.

    Example:
        >>> runtime_from_data([b"...", b"", ["w"], [[[4], "<f4"]], [], 2, True]).outputs
        ('out:params', 'out:value')
    """
    graph, prepared, weights, leaves, state, size, has_value = parts_of(data, 7, "a graph")
    for part, least in ((graph, 1), (prepared, 0)):
        if type(part) is not bytes or not least <= len(part) <= MAX_GRAPH_BYTES:
            raise ProtocolError(f"a graph must be bytes, at least {least} and at most {MAX_GRAPH_BYTES} of them.")
    if type(weights) not in (list, tuple) or len(weights) > _MAX_NAMES:
        raise ProtocolError("the names of the weights of a graph must be a list.")
    if type(has_value) is not bool:
        raise ProtocolError("has_value of a graph must be true or false.")
    names = tuple(_name(name) for name in weights)
    if _whole(size, "size of a graph") > _MAX_OUTPUTS:
        raise ProtocolError(f"a graph with {size} outputs is too large.")
    return GraphSpec(graph, names, leaves_from_data(leaves), leaves_from_data(state), size, has_value, prepared)


def leaves_to_data(leaves: tuple[Leaf, ...]) -> list[Any]:
    """Leaves as [shape, dtype] each.

    Example:
        >>> import numpy as np
        >>> leaves_to_data((Leaf((2, 3), np.dtype("u1")),))
        [[[2, 3], '|u1']]
    """
    return [[list(leaf.shape), dtype_to_text(leaf.dtype)] for leaf in leaves]


def leaves_from_data(data: Any) -> tuple[Leaf, ...]:
    """Undo `leaves_to_data`: shapes of numbers.

    Example:
        >>> leaves_from_data([[[2, 3], "|u1"]])
        (Leaf(shape=(2, 3), dtype=dtype('uint8')),)
    """
    if type(data) not in (list, tuple) or len(data) > _MAX_LEAVES:
        raise ProtocolError("leaves must be a list.")
    return tuple(_leaf(part) for part in data)


def _leaf(data: Any) -> Leaf:
    sizes, text = parts_of(data, 2, "a leaf")
    dtype: np.dtype[Any] = dtype_from_text(text)
    if dtype.kind not in "biufc":
        raise ProtocolError(f"a leaf must hold numbers, not {text!r}.")
    shape = shape_from_data(sizes)
    if math.prod(shape) * dtype.itemsize > _MAX_LEAF_BYTES:
        raise ProtocolError(f"a leaf of shape {shape} takes more than {_MAX_LEAF_BYTES} bytes.")
    return Leaf(shape, dtype)


def distribution_to_data(distribution: Distribution) -> list[Any]:
    """A distribution of ours as its name and fields.

    Raises:
        ConfigError: it is one of the user's own, whose code other hosts do not have.

    Example:
        >>> distribution_to_data(Categorical(3))
        ['Categorical', {'n': 3, 'start': 0, 'dtype': '<i8'}]
    """
    kind: type[Any] = type(distribution)
    if _DISTRIBUTIONS.get(kind.__name__) is not kind:
        raise ConfigError(
            f"the distribution {kind.__module__}.{kind.__qualname__} is your own, and its code is not on the other "
            f"hosts. Use one of {', '.join(sorted(_DISTRIBUTIONS))}, or run on this host with cluster='local'."
        )
    values = {field.name: getattr(distribution, field.name) for field in dataclasses.fields(kind)}
    values["dtype"] = dtype_to_text(values["dtype"])
    return [kind.__name__, {name: list(value) if type(value) is tuple else value for name, value in values.items()}]


def distribution_from_data(data: Any) -> Distribution:
    """Undo `distribution_to_data`.

    Example:
        >>> distribution_from_data(["Categorical", {"n": 3, "start": 0, "dtype": "<i8"}]).size
        3
    """
    name, values = parts_of(data, 2, "a distribution")
    kind = _DISTRIBUTIONS.get(name) if type(name) is str else None
    if kind is None:
        raise ProtocolError(f"{shown(name)} is no distribution that travels.")
    if type(values) is not dict or set(values) != {field.name for field in dataclasses.fields(kind)}:
        raise ProtocolError(f"a {name} distribution came with other fields than it has.")
    dtype = dtype_from_text(values["dtype"])
    fields = {field: _number_or_numbers(value) for field, value in values.items() if field != "dtype"}
    try:
        _check_room(fields)
        made: Distribution = kind(**fields, dtype=dtype)
    except (ConfigError, TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"a {name} distribution cannot be made of what came: {error}") from None
    return made


def _number_or_numbers(value: Any) -> Any:
    if value is None or type(value) in (int, float):
        return value
    if type(value) in (list, tuple) and all(type(part) in (int, float) for part in value):
        return tuple(value)
    raise ProtocolError(f"a distribution has a field {shown(value)}; it must be a number, several, or nothing.")


def _check_room(fields: dict[str, Any]) -> None:
    """How much memory a distribution takes is said by numbers; they came in a few bytes."""
    shape, choices = fields.get("shape") or (), fields.get("nvec") or ()
    if not isinstance(shape, tuple) or not isinstance(choices, tuple):
        raise ProtocolError("shape and nvec of a distribution must be lists.")
    claims = (math.prod(shape), sum(choices), fields.get("n") or 0, fields.get("dim") or 0)
    if not all(claim <= _MAX_ACTION_NUMBERS for claim in claims):
        raise ProtocolError(f"a distribution over more than {_MAX_ACTION_NUMBERS} numbers is too large.")


def weights_to_data(spec: WeightSpec) -> list[Any]:
    """The layout of weights: [name, shape, dtype] of each tensor.

    Example:
        >>> weights_to_data(WeightSpec((TensorSpec("w", (2, 3), "<f4"),)))
        [['w', [2, 3], '<f4']]
    """
    return [[tensor.name, list(tensor.shape), tensor.dtype] for tensor in spec.tensors]


def weights_from_data(data: Any) -> WeightSpec:
    """Undo `weights_to_data`. The layout may not take more than `MAX_WEIGHT_BYTES`; nothing is taken for it here.

    Example:
        >>> weights_from_data([["w", [2, 3], "<f4"]]).floats
        6
    """
    if type(data) not in (list, tuple) or len(data) > _MAX_NAMES:
        raise ProtocolError("the layout of weights must be a list.")
    tensors = []
    for part in data:
        name, sizes, dtype = parts_of(part, 3, "a tensor")
        dtype_from_text(dtype)
        tensors.append(TensorSpec(_name(name), shape_from_data(sizes), dtype))
    try:
        spec = WeightSpec(tuple(tensors))
    except ConfigError as error:
        raise ProtocolError(f"a layout of weights cannot be used: {error}") from None
    if 4 * spec.floats + spec.tail_bytes > MAX_WEIGHT_BYTES:
        raise ProtocolError(f"a layout of weights takes more than {MAX_WEIGHT_BYTES} bytes.")
    return spec


def _whole(number: Any, what: str) -> int:
    if type(number) is not int or not 0 <= number < 2**63:
        raise ProtocolError(f"the {what} is {shown(number)}; it must be a whole number of at least 0.")
    return number


def _name(name: Any) -> str:
    if type(name) is not str or len(name) > _MAX_NAME:
        raise ProtocolError(f"{shown(name)} is no name of a tensor.")
    return name
