"""The network of Q-learners: published sizes, dueling streams, and the same numbers in one call as step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import clusterenv
from clusterenv.errors import ConfigError
from clusterenv.learners.common.networks import QNetwork, UnrolledQ, make_q_network
from clusterenv.learners.common.networks.q_network import duel
from tests.learners import envs as _envs  # noqa: F401  # registers the environments
from tests.learners.kit import tensor
from tests.learners.test_network_bodies import ATARI, REWARD, ROW, count
from tests.learners.test_networks import OBSERVATIONS, batch_of


def lively(network: QNetwork) -> QNetwork:
    """Weights that make the Q-values depend on what is seen and remembered, as after much learning."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.mul_(2 if "core" in name else 3)
    return network


# Sizes.


def test_the_network_of_ape_x_has_as_many_parameters_as_published() -> None:
    assert count(make_q_network(ATARI, spaces.Discrete(18), body="nature")) == 3_300_019


def test_the_network_of_r2d2_has_as_many_parameters_as_published() -> None:
    space = spaces.Dict(obs=ATARI, last_action=spaces.Discrete(18), last_reward=REWARD)
    network = make_q_network(space, spaces.Discrete(18), body="nature", lstm=512)
    # The reference (SEED's) leaves out one bias per advantage, which moves all advantages of a choice alike.
    assert count(network) - 18 == 4_359_329


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"dueling": False}, 5 * 64 + 65 * 64 + 65 * 3),
        ({}, 5 * 64 + 2 * 65 * 64 + 65 * (3 + 1)),
        ({"hidden": (8,)}, 2 * 5 * 8 + 9 * (3 + 1)),
        ({"hidden": ()}, 5 * (3 + 1)),
        ({"hidden": (8,), "lstm": 6}, 5 * 8 + 4 * 6 * (8 + 6 + 2) + 2 * 7 * 6 + 7 * (3 + 1)),
        ({"hidden": (8,), "lstm": 6, "dueling": False}, 5 * 8 + 4 * 6 * (8 + 6 + 2) + 7 * 3),
    ],
    ids=str,
)
def test_the_layers_are_those_that_were_asked_for(arguments: dict[str, Any], expected: int) -> None:
    assert count(make_q_network(ROW, spaces.Discrete(3), **arguments)) == expected


@pytest.mark.parametrize("space", OBSERVATIONS, ids=str)
@pytest.mark.parametrize("lstm", [0, 6])
@pytest.mark.parametrize("dueling", [True, False])
def test_any_observation_in_arrays_gets_one_number_per_choice(space: Any, lstm: int, dueling: bool) -> None:
    network = make_q_network(space, spaces.Discrete(3), lstm=lstm, dueling=dueling)
    q, value, state = network(batch_of(space, 5), tuple(torch.zeros(5, *leaf.shape) for leaf in network.state))
    assert q.shape == (5, 3)
    assert q.dtype == torch.float32
    assert value is None
    assert len(state) == (2 if lstm else 0)


@pytest.mark.parametrize("body", ["shallow", "deep", "nature"])
def test_images_are_seen_by_every_body(body: Any) -> None:
    network = make_q_network(spaces.Box(0, 255, (3, 40, 36), np.uint8), spaces.Discrete(3), body=body, hidden=(8,))
    assert network(batch_of(spaces.Box(0, 255, (3, 40, 36), np.uint8), 2))[0].shape == (2, 3)


# The two streams.


def test_a_duel_is_the_value_and_what_distinguishes_the_advantages() -> None:
    found = duel(tensor([1.5]), tensor([0.2, -0.4, 1.1]))
    torch.testing.assert_close(found, tensor([1.4, 0.8, 2.3]))


def test_the_mean_of_all_q_values_is_what_the_stream_of_values_says() -> None:
    torch.manual_seed(0)
    network = lively(make_q_network(ROW, spaces.Discrete(3)))
    rows = batch_of(ROW, 5)
    assert network.value is not None
    torch.testing.assert_close(network(rows)[0].mean(-1), network.value(network.body(rows)).squeeze(-1))


# Many steps in one call.


def unroll_of(network: QNetwork, steps: int = 7, slots: int = 3) -> dict[str, Any]:
    """Made-up steps in which episodes begin here and there."""
    made = torch.Generator().manual_seed(2)
    first = torch.rand(steps, slots, generator=made) < 0.3
    at = first[1:].nonzero(as_tuple=True)
    assert len(at[0]) > 0
    return {
        "obs": torch.randn(steps, slots, 4, generator=made),
        "state": tuple(torch.randn(slots, *leaf.shape, generator=made) for leaf in network.state),
        "first": first,
        "final_obs": torch.randn(len(at[0]), 4, generator=made),
        "final_at": at,
    }


def by_hand(network: QNetwork, steps: dict[str, Any]) -> UnrolledQ:
    """Step by step and slot by slot, as a worker plays."""
    first, at = steps["first"], list(zip(*(part.tolist() for part in steps["final_at"]), strict=True))
    q, final_q = torch.zeros(*first.shape, network.distribution.n), torch.zeros(len(at), network.distribution.n)
    states = tuple(torch.zeros(*first.shape, *leaf.shape) for leaf in network.state)
    for n in range(first.shape[1]):
        state = tuple(part[n : n + 1] for part in steps["state"])
        for t in range(first.shape[0]):
            if first[t, n]:
                state = tuple(torch.zeros_like(part) for part in state)
            told, _, state = network(steps["obs"][t, n].unsqueeze(0), state)
            q[t, n] = told[0]
            for kept, part in zip(states, state, strict=True):
                kept[t, n] = part[0]
            if (t, n) in at:
                k = at.index((t, n))
                final_q[k] = network(steps["final_obs"][k].unsqueeze(0), state)[0][0]
    return UnrolledQ(q, final_q, states)


@pytest.mark.parametrize("arguments", [{}, {"dueling": False}, {"lstm": 6}], ids=str)
def test_one_call_says_what_many_steps_say(arguments: dict[str, Any]) -> None:
    torch.manual_seed(0)
    network = lively(make_q_network(ROW, spaces.Discrete(3), **arguments))
    steps = unroll_of(network)
    for found, expected in zip(network.unroll(**steps), by_hand(network, steps), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("arguments", [{}, {"lstm": 6}], ids=str)
def test_steps_without_ends_have_no_last_observations(arguments: dict[str, Any]) -> None:
    network = make_q_network(ROW, spaces.Discrete(3), **arguments)
    steps = unroll_of(network)
    steps["final_obs"], steps["final_at"] = torch.zeros(0, 4), (torch.zeros(0).long(), torch.zeros(0).long())
    assert network.unroll(**steps).final_q.shape == (0, 3)


@pytest.mark.parametrize("arguments", [{}, {"dueling": False}, {"lstm": 6}], ids=str)
def test_gradients_reach_every_parameter_but_not_through_last_observations(arguments: dict[str, Any]) -> None:
    torch.manual_seed(0)
    network = make_q_network(ROW, spaces.Discrete(2), **arguments)
    told = network.unroll(**unroll_of(network))
    assert not told.final_q.requires_grad
    told.q[..., 0].sum().backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in network.parameters())


# Workers act with it.


@pytest.mark.parametrize("cluster", ["inproc", "local:2"])
@pytest.mark.parametrize(
    ("env_id", "arguments"),
    [
        ("CartPole-v1", {"normalize": True}),
        ("CartPole-v1", {"lstm": 16}),
        ("test/Screen-v0", {"body": "shallow", "hidden": (32,), "lstm": 16}),
    ],
    ids=str,
)
def test_the_learner_computes_what_the_workers_computed(env_id: str, arguments: dict[str, Any], cluster: str) -> None:
    envs = clusterenv.make_vec(env_id, 4, cluster=cluster)
    try:
        envs.reset(seed=1)
        torch.manual_seed(3)
        spaces_of = envs.single_observation_space, envs.single_action_space
        network = lively(make_q_network(*spaces_of, epsilon=0.3, **arguments))
        envs.attach(network, sync="on-change", encoding="fp32", runtime="onnx", seed=5)
        for _ in range(3):
            batch = envs.rollout(12).to(torch)
            said = network.unroll(batch.obs, batch.state, batch.first, batch.final_obs, batch.final_at)
            torch.testing.assert_close(said.q[:-1], batch.params, atol=1e-3, rtol=1e-4)
            assert batch.value is None
    finally:
        envs.close()


# What is refused, and what is on a scale.


@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 3])], ids=str)
def test_only_choices_have_q_values(space: Any) -> None:
    with pytest.raises(ConfigError, match="needs a Discrete action space"):
        make_q_network(ROW, space)


@pytest.mark.parametrize(
    ("arguments", "words"), [({"body": "mpl"}, "mpl"), ({"hidden": (0,)}, "hidden"), ({"lstm": -1}, "lstm")]
)
def test_what_is_no_layer_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_q_network(ROW, spaces.Discrete(2), **arguments)


def test_choices_may_be_counted_from_another_number() -> None:
    distribution = make_q_network(ROW, spaces.Discrete(3, start=5)).distribution
    assert distribution.to_env(distribution.mode(np.array([[0.0, 2.0, 1.0]]))).tolist() == [6]


def test_observations_are_brought_to_a_scale_that_travels_with_the_weights() -> None:
    network = make_q_network(ROW, spaces.Discrete(2), normalize=True)
    rows = batch_of(ROW, 20) * 3 + 5
    before = network(rows)[0]
    network.learn_scale(rows)
    assert not torch.equal(before, network(rows)[0])
    assert "body.normalizer.mean" in network.state_dict()
