"""The picture of a benchmark: every kind of contender can be drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import pytest

from benchmarks.contenders import CONTENDERS, Contender, Mode

if TYPE_CHECKING:
    import pathlib

plot = pytest.importorskip("benchmarks.plot", reason="needs matplotlib")


def measured(contender: Contender, ratio: float) -> dict[str, Any]:
    """A contender as the results file tells of it."""
    spread = {"median": ratio, "low": 0.9 * ratio, "high": 1.1 * ratio}
    return {"name": contender.name, "title": contender.title, "mode": contender.mode, "ratio_to_sync": spread}


def document(contenders: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "machine": {"cpu": "a CPU", "usable_cpus": 2},
        "plan": {"workers": 2, "rounds": 3},
        "workloads": [{"name": "cartpole-64", "contenders": contenders}],
    }


@pytest.mark.parametrize("name", CONTENDERS)
def test_every_contender_can_be_drawn(name: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "step.png"
    plot.draw(path, document([measured(CONTENDERS[name], 2.0)]))
    assert path.read_bytes().startswith(b"\x89PNG")


def test_every_mode_has_a_colour() -> None:
    assert set(plot.COLOURS) == set(get_args(Mode))


def test_who_failed_is_left_out(tmp_path: pathlib.Path) -> None:
    failed = {**measured(CONTENDERS["async"], 1.0), "ratio_to_sync": None}
    path = tmp_path / "step.png"
    plot.draw(path, document([measured(CONTENDERS["sync"], 1.0), failed]))
    assert path.exists()
