"""Graphs carry no weights, are small, compute what the module computes, or are refused."""

from __future__ import annotations

import contextlib
import pickle
import warnings
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from gymnasium import spaces
from torch import nn

from clusterenv.errors import ConfigError
from clusterenv.policy import graph
from clusterenv.policy.adapters import as_policy
from clusterenv.policy.graph import GraphSpec, export
from clusterenv.policy.modules import TorchActor
from clusterenv.policy.runtime import TorchSpec
from clusterenv.spaces import Leaf
from tests.policy import agents
from tests.policy.agents import BOX, IMAGE

THREE = spaces.Discrete(3)


def actor_of(module: nn.Module, *, rows: int = 5) -> tuple[TorchActor, list[Any]]:
    actor = TorchActor(module, BOX, THREE)
    leaves = [np.random.default_rng(1).normal(size=(rows, 4)).astype(np.float32)]
    actor.probe(leaves, [np.zeros((rows, *leaf.shape), leaf.dtype) for leaf in actor.state])
    return actor, leaves


def outputs(spec: GraphSpec, module: nn.Module, leaves: list[Any]) -> Any:
    runtime = spec.make()
    runtime.load({name: tensor.numpy() for name, tensor in module.state_dict().items()})
    return runtime(leaves, ())


def test_a_graph_is_plain_small_and_without_weights() -> None:
    module = agents.CleanRL(width=512)
    spec = export(*actor_of(module), [])
    assert len(pickle.dumps(spec)) < 8_000
    assert pickle.loads(pickle.dumps(spec)) == spec
    model = onnx.load_from_string(spec.graph)
    assert all(np.prod(tensor.dims) < 16 for tensor in model.graph.initializer)
    assert {node.name for node in model.graph.input} == {*spec.inputs, *spec.weights}
    assert [node.name for node in model.graph.output] == list(spec.outputs)


def test_the_names_of_inputs_and_outputs() -> None:
    leaf = Leaf((2,), np.dtype(np.float32))
    spec = GraphSpec(b"", ("obs.0",), (leaf, leaf), (leaf,), 3, has_value=True)
    assert spec.inputs == ("obs:0", "obs:1", "state:0")
    assert spec.outputs == ("out:params", "out:value", "out:state:0")


def test_a_module_may_use_our_names_for_its_weights() -> None:
    class Odd(agents.CleanRL):
        def __init__(self) -> None:
            super().__init__()
            self.obs = nn.ParameterList([nn.Parameter(torch.ones(3))])

        def get_action_and_value(self, x: Any, action: Any = None) -> Any:
            return (*super().get_action_and_value(x, action)[:3], self.critic(x) * self.obs[0].sum())

    assert "obs.0" in as_policy(Odd(), BOX, THREE, runtime="onnx").weights()


def test_a_weight_may_be_a_single_number() -> None:
    class Scaled(agents.CleanRL):
        scale: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones((), dtype=torch.float64))

        def get_action_and_value(self, x: Any, action: Any = None) -> Any:
            return (*super().get_action_and_value(x, action)[:3], self.critic(x) * self.scale.float())

    assert as_policy(Scaled(), BOX, THREE, runtime="onnx").weights()["scale"].shape == ()


@pytest.mark.parametrize("exporter", ["_by_tracing", "_by_export"])
def test_either_exporter_does(exporter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = agents.CleanRL()
    other = {"_by_tracing": "_by_export", "_by_export": "_by_tracing"}[exporter]

    def broken(*_: Any) -> Any:
        raise RuntimeError("not this one")

    monkeypatch.setattr(graph, other, broken)
    actor, leaves = actor_of(module)
    spec = export(actor, leaves, [])
    assert "never_used.weight" not in spec.weights
    found = outputs(spec, module, leaves)
    with torch.no_grad():
        params, value, _ = actor([torch.from_numpy(leaves[0])], [])
    assert np.allclose(found.params, params.numpy(), atol=1e-5)
    assert value is not None
    assert np.allclose(found.value, value.numpy(), atol=1e-5)


def test_exporters_print_log_and_warn_of_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        as_policy(agents.Recurrent(layer=True), BOX, THREE, runtime="onnx")
        with pytest.raises(ConfigError):
            as_policy(agents.Deciding(), BOX, THREE, runtime="onnx")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kept", [False, True])
def test_the_graph_of_an_exporter_that_fails_is_not_printed(kept: bool, capfd: pytest.CaptureFixture[str]) -> None:
    # Torch's C++ prints it, and not by way of `sys.stdout`.
    torch._C._jit_set_onnx_log_enabled(kept)
    try:
        policy = as_policy(agents.Attending(), BOX, THREE, runtime="onnx")
        assert torch._C._jit_is_onnx_log_enabled() is kept
    finally:
        torch._C._jit_set_onnx_log_enabled(False)
    assert isinstance(policy.build(), GraphSpec), "the other exporter can do it"
    assert capfd.readouterr() == ("", "")


def test_a_module_that_decides_by_values_runs_in_torch(caplog: pytest.LogCaptureFixture) -> None:
    policy = as_policy(agents.Deciding(), BOX, THREE)
    assert isinstance(policy.build(), TorchSpec)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "agents.py" in caplog.text  # where it decides


def test_a_graph_that_computes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Changing(agents.CleanRL):
        added: Any = 0

        def get_action_and_value(self, x: Any, action: Any = None) -> Any:
            return super().get_action_and_value(x + self.added, action)

    module = Changing()
    actor, leaves = actor_of(module)
    real = graph._by_tracing

    def other(*arguments: Any) -> Any:
        module.added = 1
        try:
            return real(*arguments)
        finally:
            module.added = 0

    monkeypatch.setattr(graph, "_by_tracing", other)
    monkeypatch.setattr(graph, "_by_export", other)
    with pytest.raises(ConfigError, match="the graph gives other params than the module"):
        export(actor, leaves, [])


class Counting(agents.CleanRL):
    """Asks for the number of rows, in a way that a graph can hold or in one that it cannot."""

    def __init__(self, count: Any) -> None:
        super().__init__()
        self.count = count

    def get_action_and_value(self, x: Any, action: Any = None) -> Any:
        return super().get_action_and_value(x + torch.zeros(self.count(x), 4), action)


def test_a_graph_that_fixes_the_batch_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="invalid dimensions"):
        export(*actor_of(Counting(len)), [])
    module = Counting(lambda x: x.shape[0])
    actor, leaves = actor_of(module)
    spec = export(actor, leaves, [])
    for rows in (1, 3, 64):
        assert outputs(spec, module, [np.zeros((rows, 4), np.float32)]).params.shape == (rows, 3)


def test_swapped_tensors_are_given_back_after_an_exception() -> None:
    module = agents.Recurrent(layer=True)
    actor = TorchActor(module, BOX, THREE)
    assert module.layer is not None
    before, flat = actor.tensors(), module.layer._flat_weights
    other = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
    with contextlib.suppress(KeyError), actor.swapped(other):
        assert module.actor.weight is other["actor.weight"]
        assert module.layer._flat_weights[0] is other["layer.weight_ih_l0"]
        raise KeyError
    assert all(tensor is before[name] for name, tensor in actor.tensors().items())
    assert module.layer._flat_weights is flat


def test_buffers_that_the_graph_needs_are_weights() -> None:
    class Normalised(agents.CleanRL):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def get_action_and_value(self, x: Any, action: Any = None) -> Any:
            return super().get_action_and_value(self.norm(x), action)

    weights = as_policy(Normalised(), BOX, THREE, runtime="onnx").weights()
    assert {"norm.running_mean", "norm.running_var", "norm.weight"} < set(weights)
    assert "norm.num_batches_tracked" not in weights


def test_images_stay_bytes_on_their_way_into_the_graph() -> None:
    spec = as_policy(agents.Atari(), IMAGE, THREE, runtime="onnx").build()
    assert isinstance(spec, GraphSpec)
    assert spec.leaves == (Leaf((2, 12, 12), np.dtype(np.uint8)),)
