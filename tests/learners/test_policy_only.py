"""Workers act with the policy alone: no weights of a critic travel, and what they report is what the network says."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch

from clusterenv.env.vector import ClusterEnv
from clusterenv.learners import catalog
from clusterenv.learners.common import unrolls
from clusterenv.learners.common.networks import make_network
from clusterenv.learners.common.source import source_for
from clusterenv.learners.common.sync import SyncConfig
from clusterenv.policy.adapters import as_policy
from tests.learners.envs import Lever, Screen

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterenv.learners.common.updater import Updater

SLOTS, STEPS = 4, 8
LEARNERS = ("ppo", "impala", "impact", "vmpo")


def continuous() -> Lever:
    return Lever("box")


# (environment, settings): actor and critic apart; with a spread and a scale; one body for both; a memory.
KINDS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "mlp": (Lever, {}),
    "gaussian": (continuous, {"normalize_observations": True}),
    "image": (Screen, {"body": "shallow"}),
    "lstm": (Lever, {"lstm": 8, "normalize_observations": True}),
}
# PPO's network has neither a body for images nor a memory.
CASES = [(name, kind) for name in LEARNERS for kind in KINDS if name != "ppo" or kind in ("mlp", "gaussian")]
# A graph of images takes seconds, and is the same for all learners.
PLACES = [
    (name, kind, place)
    for name, kind in CASES
    for place in ("onnx", "torch", "head")
    if (kind, place) != ("image", "onnx") or name == "impala"
]


def updater(name: str, kind: str, **changes: Any) -> tuple[Updater[Any, Any], Any]:
    """An updater for this kind of network, and an environment of that kind."""
    make, own = KINDS[kind]
    env, entry = make(), catalog.find(name)
    settings: dict[str, Any] = {"num_envs": SLOTS, "rollout_steps": STEPS, "hidden": (16,), "seed": 3, **own, **changes}
    learner = entry.learner()(entry.config(**settings))
    return learner.make_updater(env.observation_space, env.action_space), env


def learned(subject: Any) -> Any:
    """Every number of the network becomes another, as if it had learned; returns the network that acts."""
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in subject.network.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(torch.rand(tensor.shape, generator=source) * 0.3)
    if "vmpo" not in type(subject).__module__:
        return subject.network
    subject.target.load_state_dict(subject.network.state_dict())
    return subject.target


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_what_travels_is_the_network_without_its_critic(name: str, kind: str) -> None:
    subject, env = updater(name, kind)
    expected = {each for each in subject.network.state_dict() if not each.startswith("critic")}
    assert len(expected) < len(subject.network.state_dict())
    assert set(subject.weights()) == expected
    for runtime in ("torch",) if kind == "image" else ("onnx", "torch"):  # a graph of images takes seconds
        policy = as_policy(subject.acting, env.observation_space, env.action_space, runtime)
        assert not any("critic" in each for each in policy.weights())
        assert {each for each, _ in subject.acting.named_parameters()} <= set(policy.weights())  # nothing is left out
        assert not policy.has_value
    assert b"critic.weight" not in pickle.dumps(subject.acting)
    assert subject.acting is subject.acting  # publishing compares
    assert any(each.startswith("model/critic") for each in subject.tensors())  # checkpoints hold all of it


@pytest.mark.parametrize(("name", "kind", "place"), PLACES)
def test_what_was_acted_with_is_what_the_network_says(name: str, kind: str, place: str) -> None:
    where = {"inference": "head"} if place == "head" else {"runtime": place}
    mode = "stream" if place == "head" else "lock step"
    sync = SyncConfig() if place == "head" else SyncConfig(rule="on-change")
    subject, _ = updater(name, kind, mode=mode, sync=sync, encoding="fp32", **where)
    with (
        ClusterEnv([KINDS[kind][0]] * SLOTS, cluster="inproc:2") as envs,
        source_for(envs, subject.acting, subject.config) as source,
    ):
        acting = learned(subject)
        source.publish(subject.acting)
        batch = source.next()
        while batch.version.min() < 1:  # what was under way before
            batch = source.next()
    assert batch.value is None
    with torch.no_grad():
        said = unrolls.read(acting, batch.to(torch, "cpu"))
    torch.testing.assert_close(torch.as_tensor(batch.logp), said.logp, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.as_tensor(batch.params), said.params, rtol=1e-4, atol=1e-4)


def test_the_whole_network_keeps_its_critic_and_its_tables() -> None:
    env = continuous()
    network = make_network(env.observation_space, env.action_space, normalize=True)
    names = set(network.state_dict())
    policy = network.policy_only()
    assert (policy.critic, policy(torch.ones(3, 2))[1]) == (None, None)
    assert network(torch.ones(3, 2))[1].shape == (3,)
    assert set(network.state_dict()) == names
    network.learn_scale(torch.rand(9, 2))
    torch.nn.init.constant_(network.get_parameter("log_std"), 0.5)
    assert torch.equal(policy(torch.ones(3, 2))[0], network(torch.ones(3, 2))[0])
