"""The picture: one panel per workload, one bar per contender, its ratio to SyncVectorEnv with the spread.

Drawn from the JSON file, so that numbers from a machine without matplotlib can be drawn elsewhere:
python -m benchmarks.plot benchmarks/results/step-cores16.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.contenders import LIMIT, OURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from benchmarks.contenders import Mode

COLOURS: dict[Mode, str] = {
    "lock step": "#4c78a8",
    "first ready": "#72b7b2",
    "policy": "#f2a19f",  # ours too: `stream` and the policy on the head, beside `rollout` in red
    "limit": "#9d9d9d",
}
OURS_COLOUR = "#e45756"


def draw(path: Path, document: dict[str, Any]) -> None:
    """Write the picture of a results document to `path`."""
    panels = [(workload["name"], _shown(workload["contenders"])) for workload in document["workloads"]]
    heights = [max(1.0, 0.32 * len(shown) + 0.8) for _, shown in panels]
    figure, axes = plt.subplots(
        len(panels),
        1,
        figsize=(9, sum(heights) + 0.5),
        squeeze=False,
        sharex=True,
        height_ratios=heights,
        layout="constrained",
    )
    for (name, shown), panel in zip(panels, axes[:, 0], strict=True):
        _panel(panel, name, shown)
    figure.supxlabel(_caption(document), fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _shown(contenders: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [each for each in contenders if each["ratio_to_sync"]]
    return sorted(found, key=lambda each: float(each["ratio_to_sync"]["median"]))


def _panel(axes: Axes, name: str, shown: list[dict[str, Any]]) -> None:
    axes.set_title(f"{name}: steps per second relative to SyncVectorEnv", fontsize=10, loc="left")
    # Peers lie between a twentieth and thirty times of SyncVectorEnv; only a logarithm shows both ends.
    axes.set_xscale("log")
    for y, each in enumerate(shown):
        median, low, high = (each["ratio_to_sync"][key] for key in ("median", "low", "high"))
        colour = OURS_COLOUR if each["name"] in OURS.values() else COLOURS[each["mode"]]
        # From 1, to the right or to the left: on a logarithmic axis no other place is a natural start.
        axes.barh(y, median - 1.0, left=1.0, color=colour)
        axes.plot([low, high], [y, y], color="black", linewidth=1.2)
        right = median >= 1.0
        axes.annotate(
            f"{median:.2f}",
            (high if right else low, y),
            (4 if right else -4, 0),
            textcoords="offset points",
            va="center",
            ha="left" if right else "right",
            fontsize=8,
        )
        if each["name"] == LIMIT:
            axes.axvline(median, color="#9d9d9d", linestyle="--", linewidth=1)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(shown)), [each["title"] for each in shown], fontsize=8)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(x=0.12)


def _caption(document: dict[str, Any]) -> str:
    machine, plan = document["machine"], document["plan"]
    return (
        f"{machine['cpu']}, {machine['usable_cpus']} cores, {plan['workers']} workers; median and range of "
        f"{plan['rounds']} rounds\nred and pink: ClusterEnv, light: send/recv, dashed: bare loop limit"
    )


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        draw(Path(argument).with_suffix(".png"), json.loads(Path(argument).read_text()))
