"""What a user may attach, what is made of it, and what is told when it does not fit."""

from __future__ import annotations

import builtins
import contextlib
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import stable_baselines3
import torch
from gymnasium import spaces
from torch import nn

from clusterenv.errors import ConfigError, ConfigTypeError
from clusterenv.policy import distributions
from clusterenv.policy.adapters import TorchPolicy, as_policy
from clusterenv.policy.capture import capture
from clusterenv.policy.graph import GraphSpec
from clusterenv.policy.runtime import NumpySpec, TorchSpec
from tests.policy import agents
from tests.policy.agents import BOX, DICT, IMAGE

# Its methods have no type hints.
Categorical: Any = torch.distributions.Categorical
Normal: Any = torch.distributions.Normal

THREE = spaces.Discrete(3)
TWO_NUMBERS = spaces.Box(-1, 1, (2,), np.float32)


def policy_of(agent: Any, observation_space: Any = BOX, action_space: Any = THREE, **options: Any) -> Any:
    return as_policy(agent, observation_space, action_space, **options)


# What is made of an agent.


@pytest.mark.parametrize(
    ("agent", "action_space", "expected"),
    [
        (agents.CleanRL(), spaces.Discrete(3, start=5), distributions.Categorical(3, start=5)),
        (agents.Paper(), THREE, distributions.Categorical(3)),
        (agents.Continuous(), TWO_NUMBERS, distributions.distribution_for(TWO_NUMBERS)),
        (agents.Continuous(kind="independent"), TWO_NUMBERS, distributions.distribution_for(TWO_NUMBERS)),
        (agents.Continuous(kind="tanh"), TWO_NUMBERS, distributions.TanhGaussian([-1, -1], [1, 1])),
        (agents.Continuous(kind="scaled"), TWO_NUMBERS, distributions.TanhGaussian([-1, -2], [3, 4])),
        (agents.Several((2, 3)), spaces.MultiDiscrete([2, 3]), distributions.MultiCategorical((2, 3))),
        (agents.Several(bits=2), spaces.MultiBinary(2), distributions.Bernoulli(2)),
    ],
)
def test_the_distribution_is_read_off_the_agent(agent: Any, action_space: Any, expected: Any) -> None:
    found = policy_of(agent, action_space=action_space).distribution
    assert type(found) is type(expected)
    assert (found.size, found.action.shape) == (expected.size, expected.action.shape)
    for name in ("start", "low", "high", "nvec"):
        assert np.array_equal(getattr(found, name, 0), getattr(expected, name, 0))


def test_one_categorical_with_an_axis_of_choices_is_several() -> None:
    class Grid(agents.Several):
        def get_action_and_value(self, x: Any) -> Any:
            return Categorical(logits=self.actor(x).reshape(-1, 2, 3)).sample(), None, None, None

    policy = policy_of(Grid((3, 3)), action_space=spaces.MultiDiscrete([3, 3]))
    assert policy.distribution.size == 6


def test_a_policy_of_the_protocol_is_returned_as_it_is() -> None:
    policy = policy_of(agents.CleanRL())
    assert policy_of(policy) is policy


def test_weights_are_copies_under_the_names_of_the_state_dict_and_only_those_needed() -> None:
    agent = agents.CleanRL()
    policy = policy_of(agent)
    weights = policy.weights()
    assert list(weights) == [name for name in agent.state_dict() if "never_used" not in name]
    before = weights["actor.0.bias"].copy()
    agents.forget(agent)
    assert np.array_equal(weights["actor.0.bias"], before)
    assert np.array_equal(policy.weights()["actor.0.bias"], agent.state_dict()["actor.0.bias"].numpy())


def test_what_acting_does_not_need_is_known_by_name() -> None:
    agent = agents.CleanRL()
    assert policy_of(agent).unused == {"never_used.weight", "never_used.bias"}
    assert policy_of(agent, runtime="torch").unused == set()


def test_shared_weights_travel_once() -> None:
    agent = agents.CleanRL()
    agent.critic[0] = agent.actor[0]
    policy = policy_of(agent)
    assert "critic.0.weight" in policy.weights()
    assert "actor.0.weight" not in policy.weights()


def test_half_precision_weights_travel_in_single() -> None:
    agent = agents.Table(long=True).bfloat16()
    policy = policy_of(agent, spaces.Discrete(7))
    assert policy.weights()["embedding.weight"].dtype == np.float32


def test_training_flags_gradients_and_random_numbers_are_left_alone() -> None:
    agent = agents.CleanRL()
    agent.add_module("dropout", nn.Dropout())
    agent.actor.eval()
    flags = [part.training for part in agent.modules()]
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    policy_of(agent)
    assert torch.equal(torch.rand(1), expected)
    assert [part.training for part in agent.modules()] == flags
    assert all(parameter.grad is None and parameter.requires_grad for parameter in agent.parameters())
    assert torch.is_grad_enabled()


def test_the_spaces_random_numbers_are_left_alone() -> None:
    twins = [spaces.Box(-1, 1, (4,), np.float32, seed=1) for _ in range(2)]
    policy_of(agents.CleanRL(), twins[0])
    assert np.array_equal(twins[0].sample(), twins[1].sample())


def test_a_compiled_module_is_taken_by_what_it_wraps() -> None:
    agent = agents.CleanRL()
    assert "actor.0.bias" in policy_of(torch.compile(agent, backend="eager")).weights()


# Stable-Baselines3.


def sb3_model(observation_space: Any, action_space: Any, **options: Any) -> Any:
    from stable_baselines3.common.vec_env import DummyVecEnv

    from tests.policy.worlds import Still

    env = DummyVecEnv([lambda: Still(observation_space, action_space)])
    kind = "MultiInputPolicy" if isinstance(observation_space, spaces.Dict) else "MlpPolicy"
    kind = "CnnPolicy" if observation_space.shape and len(observation_space.shape) == 3 else kind
    return stable_baselines3.PPO(kind, env, device="cpu", n_steps=8, batch_size=8, n_epochs=1, **options)


@pytest.mark.parametrize("observation_space", [BOX, DICT, spaces.Discrete(4)], ids=["box", "dict", "discrete"])
@pytest.mark.parametrize(
    "action_space",
    [THREE, TWO_NUMBERS, spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)],
    ids=lambda space: type(space).__name__,
)
def test_sb3_policies_give_what_sb3_says(observation_space: Any, action_space: Any) -> None:
    model = sb3_model(observation_space, action_space)
    policy = policy_of(model.policy, observation_space, action_space, runtime="onnx")
    runtime = policy.build().make()
    agents.forget(model.policy)
    runtime.load(policy.weights())
    batch = [observation_space.sample() for _ in range(3)]
    keys = list(observation_space.spaces) if isinstance(observation_space, spaces.Dict) else []
    leaves = [np.stack([row[key] for row in batch]) for key in keys] if keys else [np.stack(batch)]
    output = runtime(leaves, ())
    obs = dict(zip(keys, map(torch.from_numpy, leaves), strict=True)) if keys else torch.from_numpy(leaves[0])
    with torch.no_grad():
        said = model.policy.get_distribution(obs)
        value = model.policy.predict_values(obs)
    actions = policy.distribution.mode(output.params)
    assert np.allclose(actions, said.mode().numpy().reshape(actions.shape), atol=1e-5)
    assert np.allclose(
        policy.distribution.log_prob(output.params, actions), said.log_prob(said.mode()).numpy(), atol=1e-5
    )
    assert np.allclose(output.value, value.numpy()[:, 0], atol=1e-5)


def test_an_sb3_model_may_be_given_and_may_have_been_trained() -> None:
    model = sb3_model(BOX, THREE)
    model.learn(8)
    policy = policy_of(model, runtime="torch")  # pickles what the training left in the policy
    assert policy.has_value
    assert isinstance(policy.build().make().load(policy.weights()), type(None))


def test_sb3_wants_the_channels_of_images_first() -> None:
    space = spaces.Box(0, 255, (36, 40, 1), np.uint8)
    model = sb3_model(space, THREE)
    policy = policy_of(model.policy, space)
    runtime = policy.build().make()
    runtime.load(policy.weights())
    images = np.stack([space.sample() for _ in range(2)])
    with torch.no_grad():
        value = model.policy.predict_values(torch.from_numpy(images.transpose(0, 3, 1, 2)))
    assert np.allclose(runtime([images], ()).value, value.numpy()[:, 0], atol=1e-4)


def test_an_sb3_policy_for_other_observations_is_refused() -> None:
    with pytest.raises(ConfigError, match="made for observations of"):
        policy_of(sb3_model(BOX, THREE).policy, spaces.Box(-1, 1, (5,)))


def test_sb3_noise_that_lasts_over_steps_is_refused() -> None:
    with pytest.raises(ConfigError, match="use_sde=True"):
        policy_of(sb3_model(BOX, TWO_NUMBERS, use_sde=True).policy, BOX, TWO_NUMBERS)


# Which runtime.


def test_the_runtime_that_was_asked_for() -> None:
    agent = agents.CleanRL()
    assert isinstance(policy_of(agent).build(), GraphSpec)
    assert isinstance(policy_of(agent, runtime="onnx").build(), GraphSpec)
    assert isinstance(policy_of(agent, runtime="torch").build(), TorchSpec)
    assert isinstance(policy_of(agents.NumpyPolicy()).build(), NumpySpec)


def test_an_unknown_runtime_is_named() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'onnx'"):
        policy_of(agents.CleanRL(), runtime="onx")


def test_without_onnxruntime_auto_falls_back_and_onnx_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    find = builtins.__import__("importlib.util").util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name == "onnxruntime" else find(name, *rest)
    )
    with pytest.raises(ConfigError, match=r'Run: pip install "clusterenv\[onnx\]"'):
        policy_of(agents.CleanRL(), runtime="onnx")
    assert not caplog.records
    assert isinstance(policy_of(agents.CleanRL()).build(), TorchSpec)
    assert ['pip install "clusterenv[onnx]"' in record.message for record in caplog.records] == [True]


# What does not fit.


def several(distribution: distributions.MultiCategorical) -> agents.NumpyPolicy:
    """A NumPy policy of three numbers with this distribution."""
    policy = agents.NumpyPolicy()
    vars(policy)["distribution"] = distribution
    return policy


@pytest.mark.parametrize("wrong", [3, "agent", None, agents.CleanRL, object()])
def test_what_is_no_policy_is_told_what_is(wrong: Any) -> None:
    with pytest.raises(
        ConfigError, match=rf"(?s)^{type(wrong).__name__} is not a policy.*get_action_and_value.*Stable"
    ):
        policy_of(wrong)


@pytest.mark.parametrize(
    ("agent", "action_space", "said"),
    [
        (agents.CleanRL(actions=3), spaces.Discrete(4), r"Categorical with 3 number.*Discrete\(4\).*takes 4"),
        (agents.Continuous(actions=2), spaces.Box(-1, 1, (3,)), r"Normal with 2 number.*takes 3"),
        (agents.Continuous(actions=2), spaces.MultiBinary(2), "Normal with 2 .*MultiBinary"),
        (agents.Several((2, 3)), spaces.MultiDiscrete([3, 2]), r"2 \+ 3 number.*takes 3 \+ 2"),
        (agents.Native(), spaces.Discrete(4), r"Categorical\(n=3.*does not fit.*Discrete\(4\)"),
        (agents.NumpyPolicy(), spaces.Discrete(4), r"Categorical\(n=3.*does not fit.*Discrete\(4\)"),
        (agents.NumpyPolicy(), spaces.Dict(a=THREE), "does not fit"),
        (agents.NumpyPolicy(), spaces.Discrete(3, start=5), r"from \[0\] to \[2\], and .* from \[5\] to \[7\]"),
        (
            several(distributions.MultiCategorical((1, 2))),
            spaces.MultiDiscrete([2, 1]),
            r"to \[0, 1\], and .* to \[1, 0\]",
        ),
        (
            several(distributions.MultiCategorical((1, 2))),
            spaces.MultiDiscrete([1, 2], start=[3, 4]),
            r"from \[3, 4\] to \[3, 5\]",
        ),
        (agents.Continuous(kind="lognormal"), TWO_NUMBERS, "action from LogNormal. What can be read"),
        (agents.Continuous(kind="beta"), TWO_NUMBERS, "action from Beta. What can be read"),
    ],
)
def test_actions_that_do_not_fit(agent: Any, action_space: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){said}"):
        policy_of(agent, DICT if isinstance(agent, agents.Native) else BOX, action_space)


class Wrong(agents.Native):
    """Our own kind, on a Box, giving whatever it is told to give."""

    def __init__(self, params: Any, value: Any, state: Any) -> None:
        super().__init__()
        self.answer = params, value, state

    def forward(self, obs: Any, state: Any) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        (nn.Linear(4, 3), "from nothing in torch.distributions"),
        (agents.CleanRL(inputs=7), r"CleanRL.get_action_and_value\(x\) raised on 5 observations of Box.*RuntimeError"),
        (Wrong(torch.zeros(5, 4), None, ()), r"params of shape \(5, 4\).*must be \(5, 3\)"),
        (Wrong(torch.zeros(5, 3), torch.zeros(4), ()), r"value of shape \(4,\).*must be \(5,\)"),
        (Wrong(torch.zeros(5, 3), None, (torch.zeros(5),)), r"gives 1 state\(s\), but its `state` lists 0"),
    ],
)
def test_modules_that_cannot_be_used(agent: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){said}"):
        policy_of(agent)


def test_an_agent_must_give_four_things() -> None:
    class Three(agents.Paper):
        def forward(self, x: Any) -> Any:
            return super().forward(x)[:3]

    with pytest.raises(ConfigError, match=r"Three.forward\(x\) gives 3 things, not \(action"):
        policy_of(Three())


def test_the_state_of_a_module_must_be_leaves() -> None:
    agent = agents.Recurrent()
    agent.state = (8, 8)  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"Recurrent.state is \(8, 8\)"):
        policy_of(agent)


def test_observations_without_a_fixed_size_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be laid out in arrays"):
        policy_of(agents.CleanRL(), spaces.Text(5))


def test_a_numpy_policy_that_raises_or_gives_wrong_shapes_is_named() -> None:
    policy = agents.NumpyPolicy()
    with pytest.raises(ConfigError, match=r"NumpyPolicy.forward\(weights, obs, state\) raised.*ValueError"):
        policy_of(policy, spaces.Box(-1, 1, (5,)))
    policy.matrix = np.ones((4, 4), np.float32)
    with pytest.raises(ConfigError, match=r"\[\(5, 4\), \(5,\), \[\]\]; they must be \[\(5, 3\)"):
        policy_of(policy)


@pytest.mark.parametrize("value", [True, False])
def test_a_numpy_policy_tells_if_it_has_a_value(value: bool) -> None:
    assert policy_of(agents.NumpyPolicy(value=value)).has_value is value


# The recording of torch.distributions.


def test_recording_gives_the_mode_and_ends() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    original = Categorical.sample
    with capture() as recorded:
        categorical, normal = Categorical(logits=logits), Normal(torch.ones(1, 2), 3.0)
        assert categorical.sample().tolist() == [1]
        assert categorical.sample(torch.Size([4])).shape == (4, 1)
        assert normal.rsample().tolist() == [[1.0, 1.0]]
    assert [one.distribution for one in recorded] == [categorical, normal]
    assert recorded[1].params.tolist() == [[1.0, 1.0, *[pytest.approx(np.log(3))] * 2]]
    assert Categorical.sample is original
    assert not torch.equal(normal.sample(), torch.ones(1, 2))


def test_recording_ends_with_an_exception_and_may_be_nested() -> None:
    original = Normal.rsample
    with contextlib.suppress(KeyError), capture() as outer:
        with capture() as inner:
            Normal(0.0, 1.0).sample()
        assert Normal.rsample is not original
        assert (len(outer), len(inner)) == (0, 1)
        raise KeyError
    assert Normal.rsample is original
    with pytest.raises(ValueError, match="scale"):
        Normal(0.0, -1.0, validate_args=True)  # arguments are checked again


def test_other_threads_go_on_sampling() -> None:
    drawn = []
    with capture() as recorded:
        thread = threading.Thread(target=lambda: drawn.append(Normal(0.0, 1.0).sample((3,)).tolist()))
        thread.start()
        thread.join(10)
    assert recorded == []
    assert len(set(drawn[0])) == 3


def test_importing_the_adapters_imports_no_torch() -> None:
    code = (
        "import sys, clusterenv.policy.adapters as a\n"
        "from gymnasium.spaces import Box, Discrete\n"
        "try: a.as_policy(3, Box(-1, 1, (4,)), Discrete(2))\n"
        "except ValueError: pass\n"
        "sys.exit(bool({'torch', 'onnx', 'onnxruntime'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("runtime", ["onnx", "torch"])
def test_a_module_on_an_accelerator_acts_on_the_cpu(runtime: str) -> None:
    agent = agents.Atari().cuda()
    policy = policy_of(agent, IMAGE, runtime=runtime)
    assert isinstance(policy, TorchPolicy)
    runner = policy.build().make()
    agents.forget(agent)
    runner.load(policy.weights())
    image = np.stack([IMAGE.sample()])
    with torch.no_grad():
        value = agent.get_action_and_value(torch.from_numpy(image).cuda())[3]
    found: Any = runner([image], ()).value
    assert np.allclose(found, value.cpu().numpy()[:, 0], atol=1e-3)
    assert all(parameter.is_cuda for parameter in agent.parameters())


@pytest.mark.parametrize(
    "weight", [torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.bfloat16), [[1], [1, 2]]]
)
def test_a_weight_that_is_no_array_is_named(weight: Any) -> None:
    class Weighted(agents.NumpyPolicy):
        def weights(self) -> dict[str, Any]:
            return {**super().weights(), "more": weight}

    with pytest.raises(ConfigTypeError, match=r"Weighted\.weights\(\)\['more'\], a (Tensor|list), is no array"):
        as_policy(Weighted(), BOX, spaces.Discrete(3))
