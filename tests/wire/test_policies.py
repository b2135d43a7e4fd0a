"""Policies on the wire: graphs, our distributions and layouts come back; all else is refused in words."""

from __future__ import annotations

import tracemalloc
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings

from clusterenv.errors import ConfigError, ProtocolError
from clusterenv.policy import distributions
from clusterenv.policy.base import DistributionBase
from clusterenv.policy.distributions import (
    Bernoulli,
    Categorical,
    Deterministic,
    DiagGaussian,
    EpsilonGreedy,
    MultiCategorical,
    TanhGaussian,
    distribution_for,
)
from clusterenv.policy.graph import GraphSpec
from clusterenv.policy.runtime import NumpySpec, TorchSpec
from clusterenv.spaces import Leaf
from clusterenv.sync.weights import WeightSpec
from clusterenv.wire import policies
from clusterenv.wire.plain import Codec

CODEC = Codec()
LEAF = Leaf((4,), np.dtype(np.float32))
LEAVES = (LEAF, Leaf((), np.dtype(np.uint8)))
GRAPH = GraphSpec(b"\x08\x07graph", ("net.0.weight", "obs.0"), LEAVES, (LEAF,), 2, True, b"\x08\x07prepared")


def over_the_wire(data: Any) -> Any:
    return CODEC.unpack(CODEC.pack(data))


def test_a_graph_comes_back() -> None:
    assert policies.runtime_from_data(over_the_wire(policies.runtime_to_data(GRAPH))) == GRAPH


@pytest.mark.parametrize(
    ("runtime", "words"),
    [
        (TorchSpec(b""), r"must be a graph, and this one is a TorchSpec: pass runtime='onnx'.*clusterenv\[onnx\]"),
        (NumpySpec(b""), r"NumPy policy cannot travel.*torch module and pass runtime='onnx'.*cluster='local'"),
    ],
)
def test_what_would_be_unpickled_does_not_travel(runtime: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        policies.runtime_to_data(runtime)


DISTRIBUTIONS: list[Any] = [
    Categorical(3),
    Categorical(200, start=-4, dtype=np.int32),
    MultiCategorical((2, 3)),
    MultiCategorical((2, 3, 4, 5), start=(0, 1, 2, 3), shape=(2, 2), dtype=np.uint8),
    Bernoulli(3),
    Bernoulli(6, shape=(2, 3), dtype=np.int64),
    EpsilonGreedy(4, 0.05, start=1),
    EpsilonGreedy(4, (0.4, 0.1, 0.0, 1.0, 0.05)),
    DiagGaussian(2),
    DiagGaussian(1, low=-np.inf, high=2.5),
    DiagGaussian(4, low=[-np.inf, 0, 1, 2], high=3, shape=(2, 2), dtype=np.float64),
    TanhGaussian(-1, 1),
    TanhGaussian([0, 1], [2, 3.3]),
    Deterministic([-1, -2], 5, noise_std=0.1),
    distribution_for(spaces.Box(0, 1, (2, 3))),
    distribution_for(spaces.MultiDiscrete(np.array([[2, 3]]), start=np.array([[1, 1]]))),
]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
def test_a_distribution_comes_back(distribution: Any) -> None:
    back: Any = policies.distribution_from_data(over_the_wire(policies.distribution_to_data(distribution)))
    assert back == distribution
    assert type(back) is type(distribution)
    assert back.dtype == distribution.dtype
    params = np.random.default_rng(1).normal(size=(5, distribution.size)).astype(np.float32)
    noise = np.random.default_rng(2).random((5, distribution.draws)).astype(np.float32)
    actions = distribution.sample(params, noise)
    assert np.array_equal(back.sample(params, noise), actions)
    assert np.array_equal(back.log_prob(params, actions), distribution.log_prob(params, actions))
    assert np.array_equal(back.to_env(back.mode(params)), distribution.to_env(distribution.mode(params)))


def test_every_distribution_that_we_have_is_among_these() -> None:
    ours = {
        kind
        for kind in vars(distributions).values()
        if isinstance(kind, type) and issubclass(kind, DistributionBase) and kind is not DistributionBase
    }
    assert {type(distribution) for distribution in DISTRIBUTIONS} == ours


def test_a_distribution_of_the_users_own_is_named() -> None:
    class Mine(Categorical):
        pass

    impostor = type("Categorical", (Categorical,), {})
    for own in (Mine(3), impostor(3)):
        with pytest.raises(
            ConfigError, match=r"is your own.*Use one of Bernoulli, .*TanhGaussian, or run on this host"
        ):
            policies.distribution_to_data(own)


def graph(**changes: Any) -> list[Any]:
    graphs = {"graph": b"x", "prepared": b""}
    parts = {"weights": ["w"], "leaves": [[[4], "<f4"]], "state": [], "size": 2, "value": True}
    return list({**graphs, **parts, **changes}.values())


def categorical(name: str = "Categorical", **changes: Any) -> list[Any]:
    return [name, {"n": 3, "start": 0, "dtype": "<i8", **changes}]


def gaussian(**changes: Any) -> list[Any]:
    return ["DiagGaussian", {"dim": 2, "low": None, "high": None, "shape": [2], "dtype": "<f4", **changes}]


def test_what_the_next_test_damages_is_sound() -> None:
    assert policies.runtime_from_data(graph()).size == 2
    assert policies.distribution_from_data(categorical()) == Categorical(3)
    assert policies.distribution_from_data(gaussian()) == DiagGaussian(2)
    assert policies.weights_from_data([["w", [2], "<f4"]]).floats == 2


BAD: list[tuple[Any, Any]] = [
    *(
        (policies.runtime_from_data, data)
        for data in (
            None,
            [],
            graph(graph=b""),
            graph(graph="text"),
            graph(prepared="text"),
            graph(prepared=None),
            graph(weights="w"),
            graph(weights=[3]),
            graph(weights=["w" * 2000]),
            graph(leaves=None),
            graph(leaves=[[[4]]]),
            graph(leaves=[[[-4], "<f4"]]),
            graph(leaves=[[[4], "|O"]]),
            graph(leaves=[[[4], "|S4"]]),
            graph(leaves=[[[2**31, 2], "<f4"]]),
            graph(leaves=[[[4], "<f4"]] * 20_000),
            graph(state=[[["4"], "<f4"]]),
            graph(size=-1),
            graph(size=2.0),
            graph(size=True),
            graph(size=2**40),
            graph(value=1),
        )
    ),
    *(
        (policies.distribution_from_data, data)
        for data in (
            None,
            ["Categorical", None],
            categorical("Categoric"),
            categorical("DistributionBase"),
            [["Categorical"], {}],
            categorical(more=1),
            ["Categorical", {"n": 3}],
            categorical(n=0),
            categorical(n="3"),
            categorical(n=None),
            categorical(n=[3]),
            categorical(n=2**40),
            categorical(dtype="<f4"),
            categorical(dtype="|O"),
            gaussian(dim=2**40, shape=None),
            gaussian(shape=[2**20, 2**20], dim=2**40),
            gaussian(shape=[-1, -2]),
            gaussian(shape=2),
            gaussian(low=[[0, 0]]),
            gaussian(low=5.0, high=1.0),
            gaussian(low=float("nan")),
            gaussian(low=[1, 2, 3]),
            ["TanhGaussian", {"low": 0, "high": 1, "shape": [2**40], "dtype": "<f4"}],
            ["MultiCategorical", {"nvec": [2**60], "start": 0, "shape": None, "dtype": "<i8"}],
            ["MultiCategorical", {"nvec": [], "start": 0, "shape": None, "dtype": "<i8"}],
            ["MultiCategorical", {"nvec": 3, "start": 0, "shape": None, "dtype": "<i8"}],
            ["EpsilonGreedy", {"n": 3, "epsilon": 2.0, "start": 0, "dtype": "<i8"}],
            ["EpsilonGreedy", {"n": 3, "epsilon": [0.1, 2.0], "start": 0, "dtype": "<i8"}],
            ["EpsilonGreedy", {"n": 3, "epsilon": [], "start": 0, "dtype": "<i8"}],
            ["EpsilonGreedy", {"n": 3, "epsilon": [[0.1]], "start": 0, "dtype": "<i8"}],
            ["EpsilonGreedy", {"n": 3, "epsilon": None, "start": 0, "dtype": "<i8"}],
        )
    ),
    *(
        (policies.weights_from_data, data)
        for data in (
            None,
            [["w", [2]]],
            [["w", [2], "<f4"]] * 2,
            [[3, [2], "<f4"]],
            [["w", [-2], "<f4"]],
            [["w", [2], "|O"]],
            [["w", [2], "<U4"]],
            [["w", [2], ">f4"]],
            [["w", [2], None]],
            [["w", [2**32, 2**32], "<f4"]],
        )
    ),
]


@pytest.mark.parametrize(("read", "data"), BAD, ids=[str(data)[:50] for _, data in BAD])
def test_bad_data_is_refused(read: Any, data: Any) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            read(data)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_a_graph_over_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "MAX_GRAPH_BYTES", 3)
    assert policies.runtime_from_data(graph(graph=b"123")).graph == b"123"
    for name in ("graph", "prepared"):
        with pytest.raises(ProtocolError, match="at most 3"):
            policies.runtime_from_data(graph(**{name: b"1234"}))


DTYPES = st.sampled_from(["|b1", "|i1", "<i8", "<f2", "<f4", "<f8", "<c16"])
TENSORS = st.dictionaries(st.text(max_size=8), st.tuples(st.lists(st.integers(0, 9), max_size=3), DTYPES), max_size=5)


@given(TENSORS)
@settings(max_examples=100)
def test_a_layout_comes_back_with_the_same_hash(tensors: dict[str, Any]) -> None:
    spec = WeightSpec.of({name: np.zeros(shape, dtype) for name, (shape, dtype) in tensors.items()})
    back = policies.weights_from_data(over_the_wire(policies.weights_to_data(spec)))
    assert back == spec
    assert back.hash == spec.hash
