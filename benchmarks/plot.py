"""The picture: one panel per workload, one bar per contender, its ratio to SyncVectorEnv with the spread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter

from benchmarks.contenders import LIMIT
from benchmarks.report import Row, rows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from benchmarks.rounds import Entry
    from benchmarks.workloads import Workload

COLOURS = {"lock step": "#4c78a8", "first ready": "#72b7b2", "limit": "#9d9d9d"}
OURS_COLOUR = "#e45756"


def draw(path: Path, results: Sequence[tuple[Workload, list[Entry]]], caption: str) -> None:
    """Write the picture to `path`."""
    panels = [(workload, _shown(entries)) for workload, entries in results]
    heights = [max(1.0, 0.32 * len(shown) + 0.8) for _, shown in panels]
    figure, axes = plt.subplots(
        len(panels),
        1,
        figsize=(9, sum(heights) + 0.5),
        squeeze=False,
        height_ratios=heights,
        layout="constrained",
    )
    for (workload, shown), panel in zip(panels, axes[:, 0], strict=True):
        _panel(panel, workload, shown)
    figure.supxlabel(caption, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _shown(entries: Sequence[Entry]) -> list[Row]:
    found = [row for row in rows(entries) if row.to_sync]
    return sorted(found, key=lambda row: row.to_sync.median if row.to_sync else 0.0)


def _panel(axes: Axes, workload: Workload, shown: Sequence[Row]) -> None:
    axes.set_title(f"{workload.name}: steps per second relative to SyncVectorEnv", fontsize=10, loc="left")
    # Peers lie between a twentieth and thirty times of SyncVectorEnv; only a logarithm shows both ends.
    axes.set_xscale("log")
    for y, row in enumerate(shown):
        value = row.to_sync
        if value is None:
            continue
        contender = row.entry.contender
        ours = contender.module == "clusterenv"
        axes.barh(y, value.median, color=OURS_COLOUR if ours else COLOURS[contender.mode])
        axes.plot([value.low, value.high], [y, y], color="black", linewidth=1.2)
        axes.annotate(
            f"{value.median:.2f}",
            (value.high, y),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
        if contender.name == LIMIT:
            axes.axvline(value.median, color="#9d9d9d", linestyle="--", linewidth=1)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(shown)), [row.entry.contender.title for row in shown], fontsize=8)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.margins(x=0.12)
