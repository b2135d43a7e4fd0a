"""The benchmarks of nodes and of the network run, and measure something."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from benchmarks import cluster, scale

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


def test_weights_reach_every_stub_node() -> None:
    found = scale.measure(32, scale.Args(steps_s=0.05, idle_s=0.01))
    assert 0 < found["weights_to_32_s"]["median"] <= found["weights_to_32_s"]["worst"]


@pytest.mark.parametrize("name", ["step", "pixels"])
def test_the_network_is_measured_over_all_ways(name: str) -> None:
    _, measure = cluster.MEASURES[name]
    for way in cluster.WAYS.values():
        assert measure(way, 0.1) > 0
