"""All runtimes compute what torch computes, for every kind of observation, batch size and version."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from clusterenv import spaces as layout
from clusterenv.errors import ConfigError
from clusterenv.policy.adapters import as_policy
from clusterenv.policy.runtime import NumpySpec, TorchSpec, pack
from tests.policy import agents
from tests.policy.agents import BOX, DICT, IMAGE
from tests.zoo import Unpicklable

if TYPE_CHECKING:
    from pathlib import Path

THREE = spaces.Discrete(3)
DOUBLE = spaces.Box(-1, 1, (4,), np.float64)

CASES: dict[str, tuple[Any, Any, Any]] = {
    "cleanrl": (agents.CleanRL, BOX, THREE),
    "double": (agents.CleanRL, DOUBLE, THREE),
    "int16": (agents.CleanRL, spaces.Box(-9, 9, (4,), np.int16), THREE),
    "uint16": (agents.CleanRL, spaces.Box(0, 60_000, (4,), np.uint16), THREE),
    "bits": (agents.CleanRL, spaces.MultiBinary(4), THREE),
    "continuous": (agents.Continuous, BOX, spaces.Box(-1, 1, (2,))),
    "tanh": (lambda: agents.Continuous(kind="scaled"), BOX, spaces.Box(-1, 1, (2,))),
    "several": (lambda: agents.Several((2, 3)), BOX, spaces.MultiDiscrete([2, 3])),
    "bernoulli": (lambda: agents.Several(bits=2), BOX, spaces.MultiBinary(2)),
    "atari": (agents.Atari, IMAGE, THREE),
    "paper": (agents.Paper, BOX, THREE),
    "discrete": (lambda: agents.Table(long=False), spaces.Discrete(7), THREE),
    "discrete-long": (lambda: agents.Table(long=True), spaces.Discrete(7), THREE),
    "dict": (agents.Native, DICT, THREE),
    "cell": (agents.Recurrent, BOX, THREE),
    "layer": (lambda: agents.Recurrent(layer=True), BOX, THREE),
}


def reference(agent: Any, space: Any, leaves: list[Any], state: Any) -> Any:
    """What the agent's networks say, put together by hand."""
    first: Any = torch.from_numpy(leaves[0].astype(np.float32))
    if isinstance(agent, (agents.Native, agents.Recurrent)):
        tensors: list[Any] = [torch.from_numpy(leaf) for leaf in leaves]
        obs = layout.assemble(space, tensors)
        if isinstance(obs, dict):
            obs["speed"] = obs["speed"].float()
        return agent(obs, tuple(map(torch.from_numpy, state)))
    if isinstance(agent, agents.Table):
        logits = agent.embedding(torch.from_numpy(leaves[0]))
        return logits.log_softmax(-1), logits.sum(-1), ()
    if isinstance(agent, agents.Continuous):
        mean = agent.actor_mean(first)
        return torch.cat([mean, agent.actor_logstd.expand_as(mean)], 1), agent.critic(first), ()
    if isinstance(agent, agents.Several):
        logits = agent.actor(first)
        parts = [part.log_softmax(-1) for part in logits.split(list(agent.nvec), 1)] if agent.nvec else [logits]
        return torch.cat(parts, 1), None, ()
    hidden = agent.network(first / 255.0) if isinstance(agent, agents.Atari) else first
    return agent.actor(hidden).log_softmax(-1), agent.critic(hidden), ()


@pytest.mark.parametrize("runtime", ["onnx", "torch"])
@pytest.mark.parametrize("case", CASES)
def test_runtimes_agree_with_torch(case: str, runtime: str) -> None:
    make, observation_space, action_space = CASES[case]
    agent = make()
    policy = as_policy(agent, observation_space, action_space, runtime)
    runner = policy.build().make()
    generator = np.random.default_rng(0)
    for rows in (3, 1, 64, 3):
        agents.forget(agent)
        with torch.no_grad():
            next(agent.parameters()).mul_(rows)
        runner.load(policy.weights())
        samples = [layout.take_apart(observation_space, observation_space.sample()) for _ in range(rows)]
        kinds = layout.leaves_of(observation_space) or []
        leaves = [np.array(column, leaf.dtype) for column, leaf in zip(zip(*samples, strict=True), kinds, strict=True)]
        state = tuple(generator.normal(size=(rows, *leaf.shape)).astype(leaf.dtype) for leaf in policy.state)
        found = runner(leaves, state)
        with torch.no_grad():
            params, value, after = reference(agent, observation_space, leaves, state)
        scale = max(1.0, float(params.abs().max()), 0.0 if value is None else float(value.abs().max()))
        assert found.params.dtype == np.float32
        assert np.allclose(found.params, params.numpy(), rtol=1e-5, atol=1e-5 * scale)
        assert (found.value is None) == (value is None) == (not policy.has_value)
        if value is not None and found.value is not None:
            assert found.value.shape == (rows,)
            assert np.allclose(found.value, value.numpy().reshape(-1), rtol=1e-5, atol=1e-5 * scale)
        assert len(found.state) == len(after)
        for got, expected in zip(found.state, after, strict=True):
            assert np.allclose(got, expected.numpy(), atol=1e-5)


@pytest.fixture(params=["onnx", "torch", "numpy"])
def policy(request: pytest.FixtureRequest) -> Any:
    if request.param == "numpy":
        return as_policy(agents.NumpyPolicy(), BOX, THREE)
    return as_policy(agents.CleanRL(), BOX, THREE, request.param)


def rows_of(count: int) -> list[Any]:
    return [np.random.default_rng(count).normal(size=(count, 4)).astype(np.float32)]


def test_a_runtime_without_weights_says_so(policy: Any) -> None:
    with pytest.raises(ConfigError, match="no weights yet"):
        policy.build().make()(rows_of(2), ())


def test_outputs_are_the_callers_own(policy: Any) -> None:
    runner = policy.build().make()
    runner.load(policy.weights())
    first = runner(rows_of(3), ())
    kept = first.params.copy(), first.value.copy()
    first_again = runner([rows_of(3)[0] * 2], ())
    assert np.array_equal(first.params, kept[0])
    assert np.array_equal(first.value, kept[1])
    assert not np.array_equal(first_again.params, kept[0])
    first_again.params[:] = np.nan
    assert np.array_equal(runner(rows_of(3), ()).params, kept[0])


def test_observations_may_be_read_only_strided_and_are_not_changed(policy: Any) -> None:
    runner = policy.build().make()
    runner.load(policy.weights())
    expected = runner(rows_of(3), ()).params
    wide = np.repeat(rows_of(3)[0], 2, axis=1)
    wide.flags.writeable = False
    assert np.allclose(runner([wide[:, ::2]], ()).params, expected, atol=1e-6)


class Halving(agents.CleanRL):
    """Changes the observations that it is given."""

    def get_action_and_value(self, x: Any, action: Any = None) -> Any:
        return super().get_action_and_value(x.mul_(0.5), action)


class HalvingNumpy(agents.NumpyPolicy):
    def forward(self, weights: Any, obs: Any, state: Any) -> Any:
        obs *= 0.5
        return super().forward(weights, obs, state)


@pytest.mark.parametrize(("kind", "runtime"), [(Halving, "onnx"), (Halving, "torch"), (HalvingNumpy, "auto")])
def test_a_policy_that_changes_what_it_sees_does_not_change_what_the_learner_gets(kind: Any, runtime: str) -> None:
    policy = as_policy(kind(), BOX, THREE, runtime)
    runner = policy.build().make()
    runner.load(policy.weights())
    rows = rows_of(3)
    runner(rows, ())
    assert np.array_equal(rows[0], rows_of(3)[0])


@pytest.mark.parametrize("runtime", ["onnx", "torch"])
def test_weights_that_do_not_fit_are_named(runtime: str) -> None:
    policy = as_policy(agents.CleanRL(), BOX, THREE, runtime)
    runner = policy.build().make()
    weights = policy.weights()
    with pytest.raises(ConfigError, match=r"'actor.0.bias' has shape \(2,\), but the attached policy has \(16,\)"):
        runner.load({**weights, "actor.0.bias": np.zeros(2, np.float32)})
    del weights["actor.0.bias"]
    with pytest.raises(ConfigError, match=r"'actor.0.bias' is missing"):
        runner.load(weights)


def test_weights_may_lie_anywhere_and_be_read_only(policy: Any) -> None:
    runner, twin = policy.build().make(), policy.build().make()
    weights = policy.weights()
    twin.load(weights)
    moved = {}
    for name, weight in weights.items():
        flat = np.frombuffer(b"x" + weight.tobytes(), np.uint8)[1:]
        moved[name] = flat.view(weight.dtype).reshape(weight.shape)
        assert not moved[name].flags.aligned
    for other in (moved, {name: np.asfortranarray(weight) for name, weight in weights.items()}):
        runner.load(other)
        assert np.allclose(runner(rows_of(2), ()).params, twin(rows_of(2), ()).params, atol=1e-6)


seen: list[Any] = []


class Watching(agents.CleanRL):
    """Notes in what surroundings it runs."""

    def get_action_and_value(self, x: Any, action: Any = None) -> Any:
        seen.append((torch.get_num_threads(), torch.is_grad_enabled(), self.training))
        return super().get_action_and_value(x, action)


def test_torch_runs_on_one_thread_and_gives_the_others_back() -> None:
    policy = as_policy(Watching(), BOX, THREE, "torch")
    runner = policy.build().make()
    runner.load(policy.weights())
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        runner(rows_of(2), ())
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert seen[-1] == (1, False, False)


def test_what_cannot_travel_and_cannot_say_why_is_told() -> None:
    with pytest.raises(ConfigError, match=r"cannot travel to a worker: Unprintable: \(it cannot be printed\)"):
        pack(Unpicklable())


def test_what_cannot_travel_is_told() -> None:
    with pytest.raises(ConfigError, match=r"cannot travel to a worker: .*lock"):
        pack(threading.Lock())


def test_specs_can_be_pickled() -> None:
    for spec in (TorchSpec(b"1"), NumpySpec(b"2")):
        assert pickle.loads(pickle.dumps(spec)) == spec


WORKER = """
import pickle, sys
import numpy as np
spec, weights, leaves, state = pickle.load(open(sys.argv[1], "rb"))
runtime = spec.make()
runtime.load(weights)
output = runtime(leaves, state)
assert "torch" not in sys.modules and "onnx" not in sys.modules, "a worker imported torch or onnx"
pickle.dump(output, open(sys.argv[2], "wb"))
"""


@pytest.mark.parametrize("kind", ["cell", "numpy"])
def test_a_worker_acts_without_torch(kind: str, tmp_path: Path) -> None:
    policy: Any
    if kind == "numpy":
        namespace: dict[str, Any] = {"__name__": "__main__"}  # a class of the user's script travels by value
        exec(NUMPY_SCRIPT, namespace)
        policy = as_policy(namespace["Constant"](), BOX, THREE)
    else:
        policy = as_policy(agents.Recurrent(), BOX, THREE, "onnx")
    state = tuple(np.ones((2, *leaf.shape), leaf.dtype) for leaf in policy.state)
    task = policy.build(), policy.weights(), rows_of(2), state
    (tmp_path / "task").write_bytes(pickle.dumps(task))
    subprocess.run([sys.executable, "-c", WORKER, tmp_path / "task", tmp_path / "output"], check=True, timeout=60)
    found = pickle.loads((tmp_path / "output").read_bytes())
    here = policy.build().make()
    here.load(policy.weights())
    expected = here(rows_of(2), state)
    assert np.allclose(found.params, expected.params, atol=1e-6)
    assert len(found.state) == len(policy.state)


NUMPY_SCRIPT = """
import numpy as np
from clusterenv.policy.distributions import Categorical
class Constant:
    distribution = Categorical(3)
    def weights(self):
        return {"logits": np.arange(3, dtype=np.float32)}
    def forward(self, weights, obs, state):
        return np.tile(weights["logits"], (len(obs), 1)), None, state
"""
