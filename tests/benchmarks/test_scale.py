"""The benchmarks of nodes and of the network run, and measure something."""

from __future__ import annotations

import json
import types
from typing import TYPE_CHECKING

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from benchmarks import cluster, scale, strangers, stub_losses
from clusterenv.clusters import Join
from clusterenv.node.remote import RemoteNode
from clusterenv.wire.envs import BuildOrder
from tests.zoo import wait_until

if TYPE_CHECKING:
    import pathlib


def test_a_head_with_stub_nodes(tmp_path: pathlib.Path) -> None:
    scale.main(scale.Args(nodes=[2, 3], steps_s=0.2, idle_s=0.05, out=tmp_path))
    found = json.loads((tmp_path / "scale.json").read_text())["found"]
    assert [each["nodes"] for each in found] == [2, 3]
    for each in found:
        assert each["rounds"] > 0
        assert each["steps_per_s"] > 0
        assert each["head_us_per_step"] > 0
        assert each["joined_s"] > 0
        assert each["memory_mb"] > 0
        assert each["waiting_core_share"] > 0


def test_stub_nodes_are_not_silent() -> None:
    """As real ones they beat: the head would give up those that have nothing to say."""
    cluster = Join(nodes=3, bind="127.0.0.1", silence_s=1.0)
    order = BuildOrder([], [0] * 3, AutoresetMode.NEXT_STEP, False)
    node = RemoteNode(order, 3, cluster, scale.StubLauncher(3))
    try:
        node.start(60.0)
        first = {host.index: host.heard_s for host in node._crew.hosts}

        def all_heard_again() -> bool:
            node.wait_any(0.1)
            return all(host.heard_s > first[host.index] + 2.0 for host in node._crew.hosts)

        wait_until(all_heard_again, 30.0)
        assert node.losses() == []
    finally:
        node.close(5.0)


def test_weights_reach_every_stub_node() -> None:
    found = scale.measure(32, scale.Args(steps_s=0.05, idle_s=0.01))
    assert 0 < found["weights_to_32_s"]["median"] <= found["weights_to_32_s"]["worst"]


def test_stub_nodes_that_are_killed_are_marked_and_come_back(tmp_path: pathlib.Path) -> None:
    args = stub_losses.Args(nodes=3, share_per_minute=40.0, minutes=0.01, turn_s=1.0, calm_s=0.2, out=tmp_path)
    assert stub_losses.main(args) == 0
    found = json.loads((tmp_path / "stub-nodes-killed.json").read_text())
    assert found["wrong"] == []
    assert [each["killing"] for each in found["turns"]] == [False, True, False]
    assert found["turns"][1]["losses"] == 64 * found["turns"][1]["killed"] == 64 * 2
    assert found["summary"]["killing_by_calm_mean"] > 0


def test_a_stub_row_that_is_out_of_turn_is_seen() -> None:
    arena = types.SimpleNamespace(observation=[np.array([[0.0, 1.0], [1.0, 1.0]])], truncated=np.zeros(2, np.bool_))
    engine = types.SimpleNamespace(arena=arena, begin_step=lambda _: None, end_step=lambda _: None)
    checked = stub_losses.Checked(engine, 2)
    checked.step()
    assert checked.wrong == []
    checked.step()
    assert checked.wrong == [f"slot {slot}: expected step 2.0, got [{slot}.0, 1.0]" for slot in range(2)]


@pytest.mark.parametrize("name", ["step", "pixels"])
def test_the_network_is_measured_over_all_ways(name: str) -> None:
    _, measure = cluster.MEASURES[name]
    for way in cluster.WAYS.values():
        assert measure(way, 0.1) > 0


def test_strangers_at_the_door(tmp_path: pathlib.Path) -> None:
    strangers.main(strangers.Args(rounds=1, seconds=0.3, settle_s=0.1, num_envs=4, out=tmp_path))
    found = json.loads((tmp_path / "strangers.json").read_text())
    (each,) = found["rounds"]
    assert each["quiet"]["knocking"]["connects"] == 0
    for way in ("decoy", "strangers"):
        assert each[way]["knocking"]["connects"] > 0
        assert each[way]["steps_per_s"] > 0
    assert found["after"]["descriptors"] > 0
