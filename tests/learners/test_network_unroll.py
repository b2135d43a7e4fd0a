"""`unroll` says what acting said: the same numbers, reset where an episode begins, through one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from gymnasium import spaces

import clusterenv
from clusterenv.learners.common import torch_distributions, trees
from clusterenv.learners.common.networks import Network, Unrolled, make_network
from clusterenv.learners.common.networks.core import LstmCore, Remembered
from tests.learners import envs as _envs  # noqa: F401  # registers the environments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterenv import Batch

    Unroll = Any

ROW = spaces.Box(-1, 1, (4,))
LEARNERS: list[tuple[str, dict[str, Any]]] = [
    ("CartPole-v1", {}),
    ("CartPole-v1", {"shared": True, "normalize": True}),
    ("CartPole-v1", {"lstm": 16}),
    ("Pendulum-v1", {"lstm": 16, "normalize": True}),
    ("test/Screen-v0", {"body": "shallow", "hidden": (32,), "lstm": 16}),
    ("test/Screen-v0", {"body": "deep", "hidden": (32,)}),
]


def lively(network: Network) -> Network:
    """Weights that make the policy depend on what it sees and remembers, as after much learning."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.startswith("actor"):
                parameter.mul_(100)
            elif "core" in name:
                parameter.mul_(2)
    return network


def rollouts(env_id: str, cluster: str, arguments: dict[str, Any], steps: int = 12) -> Iterator[tuple[Network, Batch]]:
    """Batches that a network played on workers, and the network as it was then."""
    envs = clusterenv.make_vec(env_id, 4, cluster=cluster)
    try:
        envs.reset(seed=1)
        torch.manual_seed(3)
        network = lively(make_network(envs.single_observation_space, envs.single_action_space, **arguments))
        envs.attach(network, sync="on-change", encoding="fp32", runtime="onnx", seed=5)
        for _ in range(4):
            batch = envs.rollout(steps).to(torch)
            yield network, batch
            with torch.no_grad():
                for parameter in network.parameters():
                    parameter.add_(0.01 * torch.randn_like(parameter))
            network.learn_scale(trees.rows(batch.obs))
            envs.publish(network)
    finally:
        envs.close()


def unrolled(network: Network, batch: Batch) -> Unrolled:
    return network.unroll(batch.obs, batch.state, batch.first, batch.final_obs, batch.final_at)


def surprise(network: Network, batch: Batch) -> float:
    """The largest difference between what the actor and what the learner say about an action."""
    logp = torch_distributions.log_prob(network.distribution, unrolled(network, batch).params[:-1], batch.action)
    return float((logp - batch.logp).detach().abs().max())


@pytest.mark.parametrize(("env_id", "arguments"), LEARNERS, ids=str)
def test_the_learner_computes_what_the_workers_computed(env_id: str, arguments: dict[str, Any]) -> None:
    ends = 0
    for network, batch in rollouts(env_id, "local:2", arguments):
        assert surprise(network, batch) < 1e-4
        said = unrolled(network, batch)
        torch.testing.assert_close(said.value[:-1], batch.value, atol=1e-4, rtol=1e-4)
        ends += len(batch.final_at[0])
    assert ends > 0 or env_id == "Pendulum-v1"


def test_long_fragments_and_short_ones_meet_at_the_same_state() -> None:
    for network, batch in rollouts("test/Screen-v0", "inproc", {"body": "shallow", "lstm": 8}, steps=1):
        assert surprise(network, batch) < 1e-4


# The same test with the mistakes that people make: it must see them.


def forgetting_nothing(core: LstmCore, features: Any, state: Any, first: Any) -> Remembered:
    return RIGHT(core, features, state, torch.zeros_like(first))


def forgetting_late(core: LstmCore, features: Any, state: Any, first: Any) -> Remembered:
    shifted = torch.cat([torch.zeros_like(first[:1]), first[:-1]])
    return RIGHT(core, features, state, shifted)


def forgetting_early(core: LstmCore, features: Any, state: Any, first: Any) -> Remembered:
    shifted = torch.cat([first[1:], torch.zeros_like(first[:1])])
    return RIGHT(core, features, state, shifted)


def beginning_at_zero(core: LstmCore, features: Any, state: Any, first: Any) -> Remembered:
    return RIGHT(core, features, tuple(torch.zeros_like(part) for part in state), first)


RIGHT = LstmCore.unroll


@pytest.mark.parametrize("wrong", [forgetting_nothing, forgetting_late, forgetting_early, beginning_at_zero])
def test_a_mistake_about_the_state_is_seen(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LstmCore, "unroll", wrong)
    assert max(surprise(*played) for played in rollouts("CartPole-v1", "inproc", {"lstm": 16})) > 1e-2


# Without environments: against a slow and obvious twin.


def batch_of(network: Network, steps: int = 7, slots: int = 3) -> dict[str, Any]:
    """A made-up batch of rows in which episodes begin here and there."""
    made = torch.Generator().manual_seed(2)
    first = torch.rand(steps + 1, slots, generator=made) < 0.3
    at = first[1:].nonzero(as_tuple=True)
    return {
        "obs": torch.randn(steps + 1, slots, 4, generator=made),
        "state": tuple(torch.randn(slots, *leaf.shape, generator=made) for leaf in network.state),
        "first": first,
        "final_obs": torch.randn(len(at[0]), 4, generator=made),
        "final_at": at,
    }


def by_hand(network: Network, batch: dict[str, Any]) -> Unrolled:
    """Step by step and slot by slot, as a worker plays."""
    first, at = batch["first"], list(zip(*(part.tolist() for part in batch["final_at"]), strict=True))
    params, value = torch.zeros(*first.shape, network.distribution.size), torch.zeros(first.shape)
    final_value = torch.zeros(len(at))
    for n in range(first.shape[1]):
        state = tuple(part[n : n + 1] for part in batch["state"])
        for t in range(first.shape[0]):
            if first[t, n]:
                state = tuple(torch.zeros_like(part) for part in state)
            told, worth, state = network(batch["obs"][t, n].unsqueeze(0), state)
            params[t, n], value[t, n] = told[0], worth[0]
            if (t, n) in at:
                k = at.index((t, n))
                final_value[k] = network(batch["final_obs"][k].unsqueeze(0), state)[1][0]
    return Unrolled(params, value, final_value)


@pytest.mark.parametrize("arguments", [{}, {"shared": True}, {"lstm": 6}], ids=str)
def test_one_call_says_what_many_steps_say(arguments: dict[str, Any]) -> None:
    torch.manual_seed(0)
    network = lively(make_network(ROW, spaces.Discrete(3), **arguments))
    batch = batch_of(network)
    assert batch["first"].any()
    for found, expected in zip(network.unroll(**batch), by_hand(network, batch), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("arguments", [{}, {"lstm": 6}], ids=str)
def test_a_batch_without_ends_has_no_final_values(arguments: dict[str, Any]) -> None:
    network = make_network(ROW, spaces.Discrete(3), **arguments)
    batch = batch_of(network)
    batch["first"][:] = False
    batch["final_obs"], batch["final_at"] = torch.zeros(0, 4), (torch.zeros(0).long(), torch.zeros(0).long())
    assert network.unroll(**batch).final_value.shape == (0,)


@pytest.mark.parametrize("arguments", [{}, {"shared": True}, {"lstm": 6}], ids=str)
def test_gradients_reach_every_parameter_but_not_through_final_values(arguments: dict[str, Any]) -> None:
    network = make_network(ROW, spaces.Box(-1, 1, (2,)), **arguments)
    told = network.unroll(**batch_of(network))
    assert not told.final_value.requires_grad
    (told.params.sum() + told.value.sum()).backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in network.parameters())


def test_a_gradient_goes_back_through_time_and_stops_where_an_episode_begins() -> None:
    network = make_network(ROW, spaces.Discrete(2), lstm=6)
    batch = batch_of(network, steps=5, slots=1)
    batch["first"][:] = torch.tensor([False, False, True, False, False, False]).unsqueeze(-1)
    batch["final_obs"], batch["final_at"] = torch.zeros(0, 4), (torch.zeros(0).long(), torch.zeros(0).long())
    batch["obs"].requires_grad_()
    network.unroll(**batch).value[4].sum().backward()  # type: ignore[no-untyped-call]
    reached = batch["obs"].grad.abs().sum((1, 2)) > 0
    assert reached.tolist() == [False, False, True, True, True, False]


def test_the_memory_of_before_is_gone_even_if_it_was_no_number() -> None:
    network = make_network(ROW, spaces.Discrete(2), lstm=6)
    batch = batch_of(network, slots=1)
    batch["first"][0] = True
    batch["state"] = tuple(torch.full_like(part, float("nan")) for part in batch["state"])
    assert network.unroll(**batch).value.isfinite().all()


def test_the_state_is_cleared_before_the_first_observation_of_an_episode() -> None:
    """A core that can be computed in the head: h' = h / 2 + x, which is also its output."""

    class Halving(LstmCore):
        def __init__(self) -> None:
            super().__init__(1, 1)

        def forward(self, features: Any, state: Any) -> Any:
            now = 0.5 * state[0] + features
            return now, (now, now)

    x = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).view(5, 1, 1)
    first = torch.tensor([False, False, True, False, True]).view(5, 1)
    initial = torch.full((1, 1), 8.0)
    output, (hidden, _) = Halving().unroll(x, (initial, initial), first)
    assert output.flatten().tolist() == [5.0, 4.5, 3.0, 5.5, 5.0]
    assert hidden[-1].item() == 5.0
    assert hidden[3].item() == 5.5  # what a next fragment that begins with the last observation starts from
