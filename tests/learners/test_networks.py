"""The networks: any space that lies in arrays, sensible first weights, observations on a scale that travels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from clusterenv.errors import ConfigError
from clusterenv.learners.common.networks import ActorCritic, Encoder, Normalizer, make_network
from clusterenv.policy.distributions import DiagGaussian

BOX = spaces.Box(-1, 1, (4,))
OBSERVATIONS = [
    BOX,
    spaces.Box(-1, 1, ()),
    spaces.Box(-1, 1, (2, 3), np.float64),
    spaces.Box(0, 255, (4, 4, 3), np.uint8),
    spaces.Discrete(5, start=2),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    spaces.MultiBinary(3),
    spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple((BOX, spaces.MultiBinary(2)))),
]
ACTIONS = [
    spaces.Discrete(3),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary(4),
    spaces.Box(-1, 1, (2,)),
    spaces.Box(-1, 1, (2, 2)),
]


def tensors(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: tensors(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(tensors(part) for part in value)
    return torch.from_numpy(np.asarray(value))


def batch_of(space: Any, rows: int) -> Any:
    from gymnasium.vector.utils import batch_space

    batched = batch_space(space, rows)
    batched.seed(0)
    return tensors(batched.sample())


@pytest.mark.parametrize("space", OBSERVATIONS, ids=str)
def test_observations_become_the_rows_that_gymnasium_flattens_them_to(space: Any) -> None:
    space.seed(1)
    values = [space.sample() for _ in range(3)]
    from gymnasium.vector.utils import concatenate, create_empty_array

    empty: Any = create_empty_array(space, 3)
    stacked = tensors(concatenate(space, values, empty))
    rows = Encoder(space)(stacked)
    scale = 255 if space.dtype == np.uint8 else 1
    flat: list[Any] = [spaces.flatten(space, value) for value in values]
    expected = np.stack(flat) / scale
    np.testing.assert_allclose(rows.numpy(), expected, rtol=1e-6)
    assert rows.dtype == torch.float32


def test_a_space_without_a_fixed_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not lie in arrays"):
        Encoder(spaces.Text(5))


@pytest.mark.parametrize("action_space", ACTIONS, ids=str)
@pytest.mark.parametrize("normalize", [False, True])
def test_parameters_fit_the_distribution(action_space: Any, normalize: bool) -> None:
    network = ActorCritic(BOX, action_space, normalize=normalize)
    params, value, state = network(batch_of(BOX, 7), ())
    assert params.shape == (7, network.distribution.size)
    assert value.shape == (7,)
    assert state == ()
    assert params.dtype == value.dtype == torch.float32
    torch.testing.assert_close(network.value(batch_of(BOX, 7)), value)


def test_the_first_policy_is_nearly_uniform_and_the_critic_is_not_flat() -> None:
    torch.manual_seed(0)
    network = ActorCritic(BOX, spaces.Discrete(3))
    params, value, _ = network(batch_of(BOX, 50))
    assert (params.softmax(-1) - 1 / 3).abs().max() < 0.02
    assert value.std() > 0.1


def test_the_spread_of_a_gaussian_is_learned_and_the_same_everywhere() -> None:
    network = ActorCritic(BOX, spaces.Box(-1, 1, (2,)))
    assert isinstance(network.distribution, DiagGaussian)
    params, _, _ = network(batch_of(BOX, 5))
    assert torch.equal(params[:, 2:], torch.zeros(5, 2))
    params.sum().backward()
    assert network.log_std is not None
    assert network.log_std.grad is not None
    assert network.log_std.grad.tolist() == [5, 5]


@pytest.mark.parametrize("arguments", [{}, {"lstm": 4}])
def test_a_gaussian_starts_with_the_spread_that_is_asked_for(arguments: dict[str, Any]) -> None:
    network = make_network(BOX, spaces.Box(-1, 1, (2,)), first_spread=0.25, **arguments)
    state = tuple(torch.zeros(5, *leaf.shape) for leaf in network.state)
    params, _, _ = network(batch_of(BOX, 5), state)
    torch.testing.assert_close(params[:, 2:].exp(), torch.full((5, 2), 0.25))


def test_the_running_mean_is_that_of_all_rows_at_once() -> None:
    rows = torch.randn(100, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5.0, 0.1]) + 1000
    normalizer = Normalizer(3)
    for part in (rows[:1], rows[1:30], rows[30:]):
        normalizer.learn(part)
    torch.testing.assert_close(normalizer.mean, rows.double().mean(0))
    torch.testing.assert_close(normalizer.var, rows.double().var(0, correction=0))
    normal = normalizer(rows)
    assert normal.dtype == torch.float32
    torch.testing.assert_close(normal.mean(0), torch.zeros(3), atol=1e-3, rtol=0)
    torch.testing.assert_close(normal.std(0, correction=0), torch.ones(3), atol=1e-2, rtol=0)


def test_outliers_are_cut() -> None:
    normalizer = Normalizer(1)
    normalizer.learn(torch.tensor([[0.0], [1.0]]))
    assert normalizer(torch.tensor([[1e9], [-1e9]])).flatten().tolist() == [10, -10]


def test_the_scale_travels_with_the_weights() -> None:
    one, other = (ActorCritic(BOX, spaces.Discrete(2), normalize=True) for _ in range(2))
    obs = batch_of(BOX, 20) * 3 + 5
    before = one(obs)[1]
    one.learn_scale(obs)
    assert not torch.allclose(one(obs)[1], before)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(obs)[1], other(obs)[1])


def test_every_parameter_is_the_actors_or_the_critics() -> None:
    network = ActorCritic(BOX, spaces.Box(-1, 1, (2,)))
    actor, critic = network.parts()
    assert len(actor) + len(critic) == len(list(network.parameters()))
    assert any(parameter is network.log_std for parameter in actor)
    assert {id(parameter) for parameter in critic} == {
        id(parameter) for parameter in network.get_submodule("critic").parameters()
    }


def test_without_a_scale_there_is_nothing_to_learn() -> None:
    network = ActorCritic(BOX, spaces.Discrete(2))
    obs = batch_of(BOX, 20)
    before = network(obs)[1]
    network.learn_scale(obs)
    assert torch.equal(network(obs)[1], before)


@pytest.mark.parametrize("hidden", [(), (8,), (8, 4, 2)])
def test_any_number_of_layers(hidden: tuple[int, ...]) -> None:
    network = ActorCritic(BOX, spaces.Discrete(2), hidden=hidden)
    linear = [module for module in network.actor if isinstance(module, torch.nn.Linear)]
    assert [layer.out_features for layer in linear] == [*hidden, 2]
