"""The actor as a CUDA graph: the same numbers, for full batches and for smaller ones. Off a GPU it is not used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from clusterenv.errors import ConfigError
from clusterenv.learners.common.acting import Handover, HeadActor
from clusterenv.learners.common.graphed import Graphed, fastest
from clusterenv.learners.common.networks import make_network

SPACE = spaces.Box(-1, 1, (3,))
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


def network(lstm: int = 8) -> Any:
    torch.manual_seed(0)
    return make_network(SPACE, spaces.Discrete(2), lstm=lstm, hidden=(16,))


@pytest.mark.parametrize("graphs", ["auto", "on", "off"])
def test_off_a_gpu_the_actor_runs_itself(graphs: Any) -> None:
    actor = HeadActor(network(), SPACE, slots=4, device="cpu")
    assert fastest(actor, 2, graphs) is actor


@on_a_gpu
@pytest.mark.parametrize(("lstm", "keep"), [(0, 1), (8, 1), (8, 3)])
def test_the_graph_says_what_the_network_says(lstm: int, keep: int) -> None:
    """Batches of every size up to the recorded one, with memory and new weights in between."""
    net, chance = network(lstm).cuda(), np.random.default_rng(0)
    plain, recorded = (HeadActor(net, SPACE, slots=6, device="cuda", keep=keep) for _ in range(2))
    graphed, handover = Graphed(recorded, size=4), Handover(net)
    for turn in range(20):
        slots = chance.permutation(6)[: chance.integers(1, 5)]
        obs = chance.normal(size=(len(slots), 3)).astype(np.float32)
        first, at = chance.random(len(slots)) < 0.3, chance.integers(0, 3, len(slots))
        expected, found = (run(slots, [obs], first=first, at=at) for run in (plain, graphed))
        np.testing.assert_allclose(found[0], expected[0], atol=1e-5)
        assert found[1] is not None
        assert expected[1] is not None
        np.testing.assert_allclose(found[1], expected[1], atol=1e-5)
        for mine, other in zip(recorded.states(slots), plain.states(slots), strict=True):
            np.testing.assert_allclose(mine, other, atol=1e-5)
        if turn == 10:
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.mul_(1.5)
            handover.publish(net)
            for actor in (plain, recorded):
                assert handover.take(actor.module) == 1


@on_a_gpu
def test_more_rows_than_were_recorded_are_refused() -> None:
    graphed = Graphed(HeadActor(network(), SPACE, slots=6, device="cuda"), size=2)
    with pytest.raises(ConfigError, match="3 slots in a batch, but its graph was recorded for 2"):
        graphed(np.arange(3), [np.zeros((3, 3), np.float32)], first=np.ones(3, bool), at=np.zeros(3, int))


@on_a_gpu
def test_which_is_faster_is_measured() -> None:
    actor = HeadActor(network(), SPACE, slots=6, device="cuda")
    assert isinstance(fastest(actor, 2, "on"), Graphed)
    assert fastest(actor, 2, "auto") is not None
    assert fastest(actor, 2, "off") is actor
