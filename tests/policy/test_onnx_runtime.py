"""Graphs with convolutions are prepared for weights that stay, and give the same numbers before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from clusterenv.errors import ConfigError
from clusterenv.policy import graph, onnx_runtime
from clusterenv.policy.adapters import as_policy
from clusterenv.policy.onnx_runtime import PREPARED_AFTER, OnnxRuntime
from tests.policy import agents
from tests.policy.agents import BOX, IMAGE

if TYPE_CHECKING:
    from collections.abc import Mapping

THREE = spaces.Discrete(3)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One entry per session: whether it has its weights as constants."""
    entries: list[bool] = []

    class Noted(onnx_runtime._Session):
        def __init__(self, spec: Any, model: bytes, constants: Mapping[str, Any] | None = None) -> None:
            entries.append(constants is not None)
            super().__init__(spec, model, constants)

    monkeypatch.setattr(onnx_runtime, "_Session", Noted)
    return entries


def images(rows: int) -> Any:
    return np.random.default_rng(rows).integers(0, 256, (rows, *(IMAGE.shape or ())), np.uint8)


def said(agent: Any, obs: Any) -> Any:
    with torch.no_grad():
        return agent.actor(agent.network(torch.from_numpy(obs) / 255.0)).log_softmax(-1).numpy()


@pytest.mark.parametrize("exporter", ["_by_tracing", "_by_export"])
def test_the_same_numbers_before_and_after(exporter: str, monkeypatch: pytest.MonkeyPatch, opened: list[bool]) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("not this one")

    monkeypatch.setattr(graph, {"_by_tracing": "_by_export", "_by_export": "_by_tracing"}[exporter], broken)
    agent = agents.Atari()
    policy = as_policy(agent, IMAGE, THREE, "onnx")
    runtime: Any = policy.build().make()
    opened.clear()
    for version in range(3):
        with torch.no_grad():
            next(agent.parameters()).mul_(1.5)
        runtime.load(policy.weights())
        for call in range(PREPARED_AFTER + 3):
            obs = images(1 + call % 3)
            assert np.allclose(runtime([obs], ()).params, said(agent, obs), atol=1e-5), (version, call)
        assert opened == [True] * (version + 1), "prepared once per version, when it was used often enough"


def test_weights_that_are_used_seldom_are_not_prepared(opened: list[bool]) -> None:
    policy = as_policy(agents.Atari(), IMAGE, THREE, "onnx")
    runtime = policy.build().make()
    opened.clear()
    for _ in range(3):
        runtime.load(policy.weights())
        for _ in range(PREPARED_AFTER):
            runtime([images(2)], ())
    assert opened == []


def test_layers_without_convolutions_are_never_prepared(opened: list[bool]) -> None:
    policy = as_policy(agents.CleanRL(), BOX, THREE, "onnx")
    spec: Any = policy.build()
    assert spec.prepared_graph == b""
    runtime = spec.make()
    runtime.load(policy.weights())
    for _ in range(2 * PREPARED_AFTER):
        runtime([np.zeros((2, 4), np.float32)], ())
    assert True not in opened


def test_a_prepared_graph_that_computes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scaled(onnx_runtime._Session):
        def __init__(self, spec: Any, model: bytes, constants: Mapping[str, Any] | None = None) -> None:
            scaled = None if constants is None else {name: 2 * weight for name, weight in constants.items()}
            super().__init__(spec, model, scaled)

    monkeypatch.setattr(onnx_runtime, "_Session", Scaled)
    with pytest.raises(ConfigError, match="the graph gives other params than the module"):
        as_policy(agents.Atari(), IMAGE, THREE, "onnx")


def test_what_cannot_be_prepared_runs_as_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    agent = agents.Atari()
    policy = as_policy(agent, IMAGE, THREE, "onnx")
    tried: list[int] = []

    class Failing(onnx_runtime._Session):
        def __init__(self, spec: Any, model: bytes, constants: Mapping[str, Any] | None = None) -> None:
            if constants is not None:
                tried.append(len(constants))
                raise RuntimeError("no memory")
            super().__init__(spec, model)

    monkeypatch.setattr(onnx_runtime, "_Session", Failing)
    runtime = policy.build().make()
    for _ in range(2):
        with torch.no_grad():
            next(agent.parameters()).mul_(1.5)
        runtime.load(policy.weights())
        for _ in range(PREPARED_AFTER + 3):
            assert np.allclose(runtime([images(2)], ()).params, said(agent, images(2)), atol=1e-5)
    assert len(tried) == 1, "it is not tried again with each version"
    assert [record.getMessage() for record in caplog.records] == [
        "weights could not be prepared for convolutions, which run slower now: RuntimeError: no memory"
    ]


def test_a_prepared_version_stays_until_the_next_load() -> None:
    agent = agents.Atari()
    policy = as_policy(agent, IMAGE, THREE, "onnx")
    runtime = OnnxRuntime(policy.build(), prepared_after=0)  # type: ignore[arg-type]
    runtime.load(policy.weights())
    before = runtime([images(4)], ()).params
    with torch.no_grad():
        next(agent.parameters()).mul_(2)
    newer = policy.weights()
    assert np.array_equal(runtime([images(4)], ()).params, before)
    runtime.load(newer)
    assert np.allclose(runtime([images(4)], ()).params, said(agent, images(4)), atol=1e-5)


def test_a_runtime_without_weights_says_so() -> None:
    policy = as_policy(agents.Atari(), IMAGE, THREE, "onnx")
    with pytest.raises(ConfigError, match=r"no weights yet. Call load\(weights\)"):
        policy.build().make()([images(1)], ())
