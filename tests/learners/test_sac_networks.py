"""The networks of SAC: what acts explores evenly at first, and two Q functions in one are two."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from clusterenv.errors import ConfigError
from clusterenv.learners.sac.networks import LOG_STD_MAX, LOG_STD_MIN, SACNetwork, SquashedActor, TwinQ, squashed_for
from clusterenv.policy.distributions import TanhGaussian

SPACE, ACTIONS = spaces.Box(-1, 1, (4,)), spaces.Box(np.array([-2, 0], np.float32), np.array([2, 5], np.float32))


@pytest.fixture
def actor() -> SquashedActor:
    torch.manual_seed(0)
    return SquashedActor(SPACE, ACTIONS, hidden=(32, 32))


def test_the_first_policy_is_nearly_uniform_whatever_it_sees(actor: SquashedActor) -> None:
    params, _, _ = actor(torch.randn(50, 4))
    entropy = actor.distribution.entropy(params.detach().numpy())
    most = math.log(4.0) + math.log(5.0)
    assert (entropy > most - 0.025).all()
    assert (entropy <= most).all()


def test_the_spread_depends_on_what_is_seen_and_has_limits(actor: SquashedActor) -> None:
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.mul_(30.0)
    _, log_std = actor(100 * torch.randn(200, 4))[0].chunk(2, -1)
    assert log_std.min() >= LOG_STD_MIN
    assert log_std.max() <= LOG_STD_MAX
    assert log_std.max() - log_std.min() > 5.0


def test_it_takes_any_observation_that_lies_in_arrays() -> None:
    space = spaces.Dict(speed=spaces.Box(-1, 1, (2,)), gear=spaces.Discrete(3))
    actor = SquashedActor(space, ACTIONS, hidden=(8,), normalize=True)
    obs = {"speed": torch.zeros(5, 2), "gear": torch.tensor([0, 1, 2, 0, 1])}
    assert actor(obs)[0].shape == (5, 4)
    before = actor.rows(obs)
    actor.learn_scale(obs)
    assert not torch.equal(actor.rows(obs), before)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Discrete(2), r"a Box of floats.*Discrete\(2\).*ppo"),
        (spaces.Box(0, 255, (3,), np.uint8), "a Box of floats"),
        (spaces.Box(-np.inf, np.inf, (3,)), "needs finite bounds"),
    ],
)
def test_other_actions_are_refused(space: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        squashed_for(space)


def twins(critic: TwinQ) -> list[nn.Sequential]:
    """The same two functions as modules of torch's own."""
    made = []
    for twin in range(2):
        layers: list[nn.Module] = []
        for weight, bias in zip(critic.weights, critic.biases, strict=True):
            layer = nn.Linear(weight.shape[1], weight.shape[2])
            layer.weight.data, layer.bias.data = weight.data[twin].T.clone(), bias.data[twin, 0].clone()
            layers += [layer, nn.ReLU()]
        made.append(nn.Sequential(*layers[:-1]))
    return made


def test_two_in_one_are_two() -> None:
    torch.manual_seed(0)
    critic = TwinQ(4, squashed_for(ACTIONS), (16, 8))
    rows, actions = torch.randn(6, 4), torch.rand(6, 2) * torch.tensor([4.0, 5.0]) - torch.tensor([2.0, 0.0])
    found = critic(rows, actions)
    inputs = torch.cat([rows, actions / torch.tensor([2.0, 2.5]) - torch.tensor([0.0, 1.0])], -1)
    for twin, slow in enumerate(twins(critic)):
        expected = slow(inputs).squeeze(-1)
        torch.testing.assert_close(found[twin], expected)
        expected.square().sum().backward()
        found[twin].square().sum().backward(retain_graph=True)
        layers = [layer for layer in slow if isinstance(layer, nn.Linear)]
        for layer, weight, bias in zip(layers, critic.weights, critic.biases, strict=True):
            assert layer.weight.grad is not None
            assert weight.grad is not None
            assert bias.grad is not None
            torch.testing.assert_close(weight.grad[twin], layer.weight.grad.T)
            torch.testing.assert_close(bias.grad[twin, 0], layer.bias.grad)
    assert not torch.equal(found[0], found[1])


def test_frozen_it_lets_gradients_through_to_the_actions_alone() -> None:
    critic = TwinQ(4, TanhGaussian([-1.0, -1.0], [1.0, 1.0]), (8,))
    rows, actions = torch.randn(3, 4), torch.zeros(3, 2, requires_grad=True)
    frozen, free = critic(rows, actions, frozen=True), critic(rows, actions)
    assert torch.equal(frozen, free)
    (of_frozen,) = torch.autograd.grad(frozen.sum(), actions)
    (of_free,) = torch.autograd.grad(free.sum(), actions, retain_graph=True)
    torch.testing.assert_close(of_frozen, of_free)
    critic(rows, actions, frozen=True).sum().backward()
    assert all(parameter.grad is None for parameter in critic.parameters())


def test_the_temperature_starts_as_asked() -> None:
    assert SACNetwork(SPACE, ACTIONS, hidden=(4,), temperature=0.2).log_temperature.exp().item() == pytest.approx(0.2)
