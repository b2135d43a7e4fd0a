"""The actor: the same numbers as its network, memory by slot, weights of one version at a time."""

from __future__ import annotations

import copy
import threading
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from clusterenv.errors import ConfigError
from clusterenv.learners.common.acting import Handover, HeadActor
from clusterenv.learners.common.networks import make_network

BOX, ACTIONS = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)


def network(lstm: int = 8, **kwargs: Any) -> Any:
    torch.manual_seed(0)
    return make_network(BOX, ACTIONS, lstm=lstm, hidden=(16,), **kwargs)


def flags(*values: int) -> Any:
    return np.array(values, bool)


def test_it_says_what_its_network_says() -> None:
    net = network(lstm=0)
    actor = HeadActor(net, BOX, slots=5, device="cpu")
    obs = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    params, value = actor(np.array([4, 0]), [obs], first=flags(0, 0), at=np.ones(2, int))
    expected = net(torch.from_numpy(obs))
    np.testing.assert_array_equal(params, expected[0].detach().numpy())
    assert value is not None
    np.testing.assert_array_equal(value, expected[1].detach().numpy())
    assert actor.has_value


def test_every_slot_has_its_own_memory() -> None:
    """Slots in any company and order: each sees what a network sees that plays for it alone."""
    net, chance = network(), np.random.default_rng(0)
    actor = HeadActor(net, BOX, slots=4, device="cpu")
    alone = {slot: tuple(torch.zeros(1, 8) for _ in range(2)) for slot in range(4)}
    for _ in range(12):
        slots = chance.permutation(4)[: chance.integers(1, 5)]
        obs = chance.normal(size=(len(slots), 3)).astype(np.float32)
        first = chance.random(len(slots)) < 0.3
        params, _ = actor(slots, [obs], first=first, at=np.ones(len(slots), int))
        for row, slot in enumerate(slots.tolist()):
            before = tuple(torch.zeros(1, 8) for _ in range(2)) if first[row] else alone[slot]
            wanted, _, alone[slot] = net(torch.from_numpy(obs[row : row + 1]), before)
            np.testing.assert_allclose(params[row], wanted[0].detach().numpy(), atol=1e-6)


def test_the_memory_before_an_unroll_is_kept_until_the_next() -> None:
    actor = HeadActor(network(), BOX, slots=2, device="cpu")
    obs, slots, yes, no = np.ones((2, 3), np.float32), np.arange(2), flags(1, 1), flags(0, 0)
    actor(slots, [obs], first=yes, at=np.array([0, 0]))
    assert not np.any(actor.states(slots)[0])  # an episode begins with the unroll: there is nothing to remember
    actor(slots, [obs], first=no, at=np.array([1, 0]))
    actor(slots, [obs], first=no, at=np.array([2, 1]))
    kept = actor.states(np.array([1, 0]))[0][0]
    assert kept[0].any()
    assert not kept[1].any()


def test_the_memory_before_every_step_can_be_kept() -> None:
    net, slots = network(), np.arange(2)
    actor = HeadActor(net, BOX, slots=2, device="cpu", keep=3)
    obs, state = np.ones((2, 3), np.float32), tuple(torch.zeros(2, 8) for _ in range(2))
    expected = []
    for step in range(3):
        expected.append(state)
        actor(slots, [obs], first=flags(step == 0, step == 0), at=np.full(2, step))
        _, _, state = net(torch.from_numpy(obs), state)
    for found, wanted in zip(actor.states(slots), zip(*expected, strict=True), strict=True):
        np.testing.assert_allclose(found, torch.stack(wanted).detach().numpy(), atol=1e-6)


def test_its_network_is_a_copy() -> None:
    net = network(lstm=0)
    actor = HeadActor(net, BOX, slots=1, device="cpu")
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    params, _ = actor(np.array([0]), [np.ones((1, 3), np.float32)], first=flags(1), at=np.zeros(1, int))
    assert params.any()


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 255, (4,), np.uint8),
        spaces.Box(-1, 1, (4,), np.float64),
        spaces.Discrete(5),
        spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Discrete(3)),
    ],
)
def test_observations_of_every_kind(space: Any) -> None:
    actor = HeadActor(make_network(space, ACTIONS, hidden=(4,)), space, slots=3, device="cpu")
    params, _ = actor(np.arange(3), actor.blank(3), first=flags(1, 1, 1), at=np.zeros(3, int))
    assert params.shape == (3, 2)
    assert params.dtype == np.float32


def test_a_module_that_does_not_say_how_it_acts_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Linear has no `distribution`.*inference='worker'"):
        HeadActor(torch.nn.Linear(3, 2), BOX, slots=1, device="cpu")


# New weights.


@pytest.mark.parametrize("normalize", [False, True])
def test_weights_arrive_when_they_are_taken(normalize: bool) -> None:
    """With those that are no parameters: a running mean, and a count that is a whole number."""
    net, acting = (network(lstm=0, normalize=normalize) for _ in range(2))
    handover = Handover(net)
    with torch.no_grad():
        for tensor in net.state_dict().values():
            tensor.add_(1)
    addresses = [parameter.data_ptr() for parameter in acting.parameters()]
    assert handover.publish(net) == handover.number == 1
    assert not torch.equal(next(acting.parameters()), next(net.parameters()))
    assert handover.take(acting) == 1
    for mine, newest in zip(acting.state_dict().values(), net.state_dict().values(), strict=True):
        assert torch.equal(mine, newest)
    assert [parameter.data_ptr() for parameter in acting.parameters()] == addresses  # a graph knows them by these


def test_only_the_weights_of_one_version_are_taken_together() -> None:
    """A writer and a reader: whatever is read, all weights are of the version that was told."""
    # So large that a copy takes as long as what happens between two.
    net = torch.nn.Sequential(*(torch.nn.Linear(400, 400) for _ in range(8)))
    acting = copy.deepcopy(net)
    _fill(net, 0.0)
    handover = Handover(net)

    def learn() -> None:
        for version in range(1, 100):
            _fill(net, float(version))
            handover.publish(net)

    writer = threading.Thread(target=learn)
    writer.start()
    while writer.is_alive():
        number = handover.take(acting)
        for parameter in acting.parameters():
            assert parameter.min() == parameter.max() == number
    writer.join(10)


def test_other_weights_are_refused() -> None:
    with pytest.raises(ConfigError, match="Publish the network that the run began with"):
        Handover(network(lstm=0)).publish(network(lstm=8))


def _fill(module: torch.nn.Module, number: float) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(number)
