"""Bodies for images and rows, memories, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from clusterenv.errors import ConfigError
from clusterenv.learners.common.networks import ActorCritic, SharedActorCritic, make_network
from clusterenv.learners.common.networks.bodies import ImageBody
from clusterenv.policy import graph
from clusterenv.policy.adapters import as_policy
from clusterenv.policy.distributions import DiagGaussian
from tests.learners.test_networks import ACTIONS, batch_of

BODIES: list[Any] = ["shallow", "deep", "nature"]
ATARI = spaces.Box(0, 255, (4, 84, 84), np.uint8)
REWARD = spaces.Box(-1, 1, (), np.float32)
ROW = spaces.Box(-1, 1, (4,))


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# The counts of public reference networks: TorchBeast's, on Atari with six actions.


@pytest.mark.parametrize(("lstm", "expected"), [(0, 1_091_038), (256, 1_618_391)])
def test_the_deep_body_has_as_many_parameters_as_published(lstm: int, expected: int) -> None:
    space = spaces.Dict(obs=ATARI, last_reward=REWARD)
    assert count(make_network(space, spaces.Discrete(6), body="deep", lstm=lstm)) == expected


def test_the_nature_body_has_as_many_parameters_as_published() -> None:
    space = spaces.Dict(obs=ATARI, last_action=spaces.Discrete(6), last_reward=REWARD)
    assert count(make_network(space, spaces.Discrete(6), body="nature")) == 1_687_768


def test_the_shallow_body_has_the_parameters_of_its_layers() -> None:
    layers = (4 * 8 * 8 + 1) * 16 + (16 * 4 * 4 + 1) * 32 + (32 * 9 * 9 + 1) * 256
    assert count(make_network(ATARI, spaces.Discrete(6), body="shallow")) == layers + 257 * 7


@pytest.mark.parametrize("action_space", ACTIONS, ids=str)
@pytest.mark.parametrize("body", ["mlp", *BODIES])
@pytest.mark.parametrize("lstm", [0, 8])
def test_parameters_fit_the_distribution(body: Any, lstm: int, action_space: Any) -> None:
    space = ROW if body == "mlp" else spaces.Box(0, 255, (3, 40, 36), np.uint8)
    network = make_network(space, action_space, body=body, lstm=lstm, shared=True)
    before = tuple(torch.zeros(5, *leaf.shape) for leaf in network.state)
    params, value, state = network(batch_of(space, 5), before)
    assert params.shape == (5, network.distribution.size)
    assert value.shape == (5,)
    assert [tuple(part.shape) for part in state] == [(5, *leaf.shape) for leaf in network.state]
    assert params.dtype == value.dtype == torch.float32
    if isinstance(network.distribution, DiagGaussian):
        assert torch.equal(params[:, network.distribution.size // 2 :], torch.zeros(5, network.distribution.size // 2))


def test_the_first_policy_is_nearly_uniform() -> None:
    torch.manual_seed(0)
    for body in BODIES:
        params, _, _ = make_network(ATARI, spaces.Discrete(3), body=body)(batch_of(ATARI, 4))
        assert (params.softmax(-1) - 1 / 3).abs().max() < 0.02


# Images.


@pytest.mark.parametrize(
    ("shape", "channels"),
    [
        *(((17, 9, 9), 17), ((9, 9, 17), 17), ((119, 8, 8), 119)),
        *(((4, 84, 84), 4), ((84, 84, 3), 3), ((3, 60, 80), 3), ((60, 80, 3), 3), ((9, 9, 9), 9)),
    ],
)
def test_two_equal_neighbours_are_height_and_width(shape: tuple[int, ...], channels: int) -> None:
    body = ImageBody(spaces.Box(0, 1, shape), "deep", (8,), normalize=False)
    assert body.convolutions[0].in_channels == channels
    assert body(torch.zeros(2, *shape)).shape == (2, 8)


def test_channels_may_come_first_last_or_not_at_all() -> None:
    torch.manual_seed(0)
    first = ImageBody(spaces.Box(0, 255, (3, 24, 28), np.uint8), "deep", (8,), normalize=False)
    last = ImageBody(spaces.Box(0, 255, (24, 28, 3), np.uint8), "deep", (8,), normalize=False)
    last.load_state_dict(first.state_dict())
    images = torch.randint(0, 256, (2, 3, 24, 28), dtype=torch.uint8)
    torch.testing.assert_close(first(images), last(images.permute(0, 2, 3, 1)))
    flat = ImageBody(spaces.Box(0, 255, (24, 28), np.uint8), "deep", (8,), normalize=False)
    assert flat(images[:, 0]).shape == (2, 8)


def test_bytes_are_divided_and_other_numbers_are_not() -> None:
    torch.manual_seed(0)
    bytes_ = ImageBody(spaces.Box(0, 255, (1, 24, 24), np.uint8), "shallow", (8,), normalize=False)
    floats = ImageBody(spaces.Box(0, 1, (1, 24, 24), np.float32), "shallow", (8,), normalize=False)
    floats.load_state_dict(bytes_.state_dict())
    images = torch.randint(0, 256, (2, 1, 24, 24), dtype=torch.uint8)
    torch.testing.assert_close(bytes_(images), floats(images.float() / 255))


def test_the_rest_of_the_observation_stands_beside_the_image() -> None:
    space = spaces.Dict(obs=spaces.Box(0, 255, (1, 24, 24), np.uint8), last_action=spaces.Discrete(4), z=ROW)
    body = ImageBody(space, "shallow", (8,), normalize=False)
    obs = batch_of(space, 3)
    obs["last_action"] = torch.tensor([0, 3, 1])
    rows = body(obs)
    assert rows.shape == (3, body.size) == (3, 8 + 4 + 4)
    assert torch.equal(rows[:, 8:12], torch.eye(4)[[0, 3, 1]])
    assert torch.equal(rows[:, 12:], obs["z"])


def test_only_what_is_no_image_is_normalised() -> None:
    space = spaces.Dict(obs=spaces.Box(0, 255, (1, 24, 24), np.uint8), z=ROW)
    body = ImageBody(space, "shallow", (8,), normalize=True)
    obs = batch_of(space, 50)
    obs["z"] = obs["z"] * 3 + 5
    before = body(obs)
    body.learn_scale(obs)
    after = body(obs)
    assert torch.equal(before[:, :8], after[:, :8])
    torch.testing.assert_close(after[:, 8:].mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    image_alone = make_network(space["obs"], spaces.Discrete(2), body="shallow", normalize=True)
    image_alone.learn_scale(obs["obs"])
    assert not list(image_alone.buffers())


def test_a_residual_branch_leaves_its_input_alone() -> None:
    body = ImageBody(spaces.Box(-1, 1, (1, 10, 5)), "deep", (), normalize=False)
    images = -torch.ones(1, 1, 10, 5)
    residual: Any = body.convolutions[2]
    given = -torch.ones(1, 16, 5, 3)
    torch.nn.init.zeros_(residual.branch[3].weight)
    torch.nn.init.zeros_(residual.branch[3].bias)
    assert torch.equal(residual(given), -torch.ones(1, 16, 5, 3))
    assert body(images).shape == (1, body.size)


# Which network one gets.


@pytest.mark.parametrize("kind", BODIES)
def test_at_first_a_ball_that_moves_changes_what_is_seen(kind: Any) -> None:
    """With torch's own first weights the features differ by 0.01 or 0.02, and Pong is not learned."""
    screens = torch.full((16, 4, 84, 84), 87, dtype=torch.uint8)
    for at, screen in enumerate(screens):
        screen[:, 5 * at : 5 * at + 2, 40:42] = 236
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        features = ImageBody(ATARI, kind, (256,), normalize=False)(screens)
    differ = (features - features.mean(0)).norm(dim=1).mean().item()
    assert 0.1 < differ < 10
    assert features.norm(dim=1).mean() < 100  # a signal that grows from layer to layer would be as bad


@pytest.mark.parametrize("shape", [(3, 24, 28), (24, 28, 3), (24, 28)])
def test_an_image_network_is_traced(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The exporter that is asked if the first cannot do it takes seconds."""
    monkeypatch.setattr(graph, "_by_export", None)
    space = spaces.Box(0, 255, shape, np.uint8)
    network = make_network(space, spaces.Discrete(2), body="deep", hidden=(8,))
    assert as_policy(network, space, spaces.Discrete(2), "onnx").weights()


def test_without_images_and_memory_nothing_is_shared() -> None:
    assert isinstance(make_network(ROW, spaces.Discrete(2)), ActorCritic)
    shared = make_network(ROW, spaces.Discrete(2), shared=True, hidden=(16,))
    assert isinstance(shared, SharedActorCritic)
    assert count(shared) == (4 + 1) * 16 + 17 * 3


def test_the_parameters_of_a_shared_network_are_one_group() -> None:
    network = make_network(ROW, spaces.Box(-1, 1, (2,)), lstm=8)
    (group,) = network.parts()
    assert {id(parameter) for parameter in group} == {id(parameter) for parameter in network.parameters()}


def test_a_shared_network_normalises_too() -> None:
    network = make_network(ROW, spaces.Discrete(2), shared=True, normalize=True)
    obs = batch_of(ROW, 20) * 3 + 5
    before = network(obs)[1]
    network.learn_scale(obs)
    assert not torch.allclose(network(obs)[1], before)
    assert "body.normalizer.mean" in network.state_dict()


@pytest.mark.parametrize(
    ("space", "arguments", "message"),
    [
        (ROW, {"body": "deep"}, "needs one image .* has 0. body='mlp'"),
        (spaces.Tuple((ATARI, ATARI)), {"body": "deep"}, "has 2"),
        (spaces.Text(5), {"body": "deep"}, "does not lie in arrays"),
        (spaces.Box(0, 255, (3, 10, 10), np.uint8), {"body": "shallow"}, "images of 10 x 10.*body='deep' takes any"),
        (ATARI, {"body": "deap"}, "unknown body 'deap'. Did you mean 'deep'"),
        (ROW, {"lstm": -1}, "lstm=-1"),
        (ROW, {"hidden": (0,)}, r"hidden=\(0,\)"),
        (ROW, {"lstm": 4, "shared": False}, "shared=False with lstm=4"),
        (ATARI, {"body": "deep", "shared": False}, "shared=False with body='deep'"),
    ],
)
def test_what_does_not_fit_is_refused(space: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_network(space, spaces.Discrete(2), **arguments)
