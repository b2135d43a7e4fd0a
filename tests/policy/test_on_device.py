"""The policy on the learner's device says what the workers' runtime says. The CPU stands for the device here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from clusterenv.policy.adapters import _example_leaves, as_policy
from clusterenv.policy.modules import TorchActor
from clusterenv.policy.on_device import DeviceRuntime, device_of
from clusterenv.policy.onnx_runtime import OnnxRuntime
from tests.policy import agents
from tests.policy.test_runtime import CASES


@pytest.mark.parametrize("name", ["cleanrl", "double", "tanh", "atari", "discrete-long", "dict", "cell"])
def test_it_says_what_the_workers_say(name: str) -> None:
    make, observation_space, action_space = CASES[name]
    module = make()
    policy: Any = as_policy(module, observation_space, action_space)
    theirs, ours = policy.build().make(), DeviceRuntime(policy._actor, "cpu")
    leaves = _example_leaves(observation_space)
    state = tuple(np.full((len(leaves[0]), *leaf.shape), 0.5, leaf.dtype) for leaf in policy.state)
    weights = {key: np.array(value + 0.1, value.dtype) for key, value in policy.weights().items()}
    for runtime in (theirs, ours):
        runtime.load(weights)
    expected, found = theirs(leaves, state), ours(leaves, state)
    np.testing.assert_allclose(found.params, expected.params, rtol=1e-4, atol=1e-5)
    assert (found.value is None) == (expected.value is None)
    for mine, other in zip(found.state, expected.state, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_the_learner_may_go_on_changing_its_own() -> None:
    module = agents.CleanRL()
    policy: Any = as_policy(module, agents.BOX, CASES["cleanrl"][2])
    subject = DeviceRuntime(policy._actor, "cpu")
    leaves = _example_leaves(agents.BOX)
    before = subject(leaves, ()).params
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1.0)
    np.testing.assert_array_equal(subject(leaves, ()).params, before)


def test_only_a_module_on_another_device_is_run_there() -> None:
    module = agents.CleanRL()
    policy: Any = as_policy(module, agents.BOX, CASES["cleanrl"][2])
    assert device_of(policy._actor) is None
    assert isinstance(policy.on_head(), OnnxRuntime)
    elsewhere = TorchActor(agents.CleanRL().to("meta"), agents.BOX, CASES["cleanrl"][2])
    assert device_of(elsewhere) == torch.device("meta")
    elsewhere.module.actor[0].to_empty(device="cpu")
    assert device_of(elsewhere) is None
