"""`clusterenv plot`: learning curves as a picture."""

from __future__ import annotations

import os
import pathlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from matplotlib.figure import Figure

from clusterenv.cli import curves
from clusterenv.cli.exits import OK, say
from clusterenv.errors import ConfigError
from clusterenv.metrics import keys

if TYPE_CHECKING:
    from clusterenv.cli.curves import Band


@dataclass(frozen=True, kw_only=True)
class PlotOptions:
    """Draw a metric of one or more runs: the mean over seeds, with a 95 % bootstrap interval."""

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN...")]
    """folders of runs; those with equal settings are taken together"""
    metric: str = "charts/episodic_return"
    """what to draw"""
    x: Literal["steps", "seconds"] = "steps"
    """against what"""
    out: str = "plot.png"
    """the picture: .png, .svg or .pdf"""


def parse(arguments: list[str]) -> PlotOptions:
    """The options of `clusterenv plot`."""
    return tyro.cli(PlotOptions, args=arguments, prog="clusterenv plot")


def run(arguments: list[str]) -> int:
    """Run `clusterenv plot`."""
    options = parse(arguments)
    metric = keys.find(options.metric)
    if not options.runs:
        raise ConfigError("name at least one run, such as runs/latest.")
    # `runs/*` names the newest run twice: by its own name, and by the link `latest`.
    runs = {os.path.realpath(path): path for path in reversed(options.runs)}
    groups = curves.grouped([curves.load(path, metric.name, options.x) for path in reversed(runs.values())])
    bands = {label: curves.band(group) for label, group in groups.items()}
    draw(bands, metric, options.x, options.out)
    for label, band in bands.items():
        say(f"{label}: {band.mean[-1]:.4g} at {band.x[-1]:,.0f} {options.x} ({band.count} run(s))")
    say(options.out)
    return OK


def draw(bands: dict[str, Band], metric: keys.Metric, axis: str, out: str) -> None:
    """Draw the bands into a file."""
    kinds = (".png", ".svg", ".pdf")
    if pathlib.Path(out).suffix not in kinds:
        raise ConfigError(f"--out {out!r} must end with {', '.join(kinds)}.")
    figure = Figure(figsize=(7, 4.2), layout="constrained")  # without pyplot: no window, no global state
    axes = figure.add_subplot()
    for label, band in bands.items():
        text = f"{label} ({band.count} seeds)" if band.count > 1 else label
        (line,) = axes.plot(band.x, band.mean, label=text, linewidth=1.6)
        if band.low is not None and band.high is not None:
            axes.fill_between(band.x, band.low, band.high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set_xlabel("environment steps" if axis == "steps" else "seconds")
    axes.set_ylabel(f"{metric.name} [{metric.unit}]")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    try:
        pathlib.Path(out).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, dpi=150)
    except OSError as error:
        raise ConfigError(
            f"--out {out!r} cannot be written: {error.strerror}. Name a file in a folder of yours."
        ) from error
