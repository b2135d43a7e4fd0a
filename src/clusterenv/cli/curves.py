"""Learning curves of several runs: grouped by their settings, averaged over seeds. Pure, apart from reading files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.errors import ConfigError
from clusterenv.learners.common.runfolder import RunFolder
from clusterenv.learners.common.settings import flat
from clusterenv.metrics.sinks import csv

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import numpy.typing as npt

    Numbers = npt.NDArray[np.float64]

# Settings that make no other experiment: runs that differ in these are seeds of the same.
_SAME = ("seed", "checkpoint_every_s", "torch_threads", "device", "on_loss", "min_nodes")
_SAME_TABLE = "timeouts."
_POINTS = 200
_RESAMPLES = 2_000


@dataclass(frozen=True)
class Curve:
    """One metric of one run.

    Attributes:
        settings: of the run, flat: "sync.rule" and so on.
        x: global steps or seconds, growing.
        y: the values.
    """

    settings: dict[str, Any]
    x: Numbers
    y: Numbers


@dataclass(frozen=True)
class Band:
    """The mean of several curves on common points, and a 95 % bootstrap interval of that mean (None for one curve)."""

    x: Numbers
    mean: Numbers
    low: Numbers | None
    high: Numbers | None
    count: int


def load(path: str | os.PathLike[str], metric: str, axis: str = "steps") -> Curve:
    """Read one metric of a run.

    Raises:
        ConfigError: there is no run, or it never measured this.
    """
    folder = RunFolder.open(path)
    algorithm, table = folder.read()
    rows = [(step if axis == "steps" else seconds, value) for seconds, step, value in _rows(folder, metric)]
    if not rows:
        raise ConfigError(f"{folder.path.name} has no values of {metric!r}. Look into its metrics.csv for what it has.")
    x, y = np.array(rows, dtype=np.float64).T
    return Curve({"algorithm": algorithm, **flat(table)}, x, y)


def _rows(folder: RunFolder, metric: str) -> list[tuple[float, int, float]]:
    if not folder.metrics_file.is_file():
        return []
    return [(seconds, step, value) for seconds, step, key, value in csv.read(folder.metrics_file) if key == metric]


def grouped(curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    """The curves of equal settings together, under a name made of the settings in which the groups differ."""
    groups: dict[str, list[Curve]] = {}
    for curve in curves:
        groups.setdefault(repr(sorted(_telling(curve).items())), []).append(curve)
    firsts = [_telling(group[0]) for group in groups.values()]
    names = sorted({name for first in firsts for name in first})
    differing = [name for name in names if len({repr(first.get(name)) for first in firsts}) > 1]
    labels = [_label(first, differing) for first in firsts]
    return dict(zip(labels, groups.values(), strict=True))


def _telling(curve: Curve) -> dict[str, Any]:
    settings = curve.settings.items()
    return {name: value for name, value in settings if name not in _SAME and not name.startswith(_SAME_TABLE)}


def _label(settings: dict[str, Any], differing: list[str]) -> str:
    if not differing:
        played = f"{len(settings['tasks'])} tasks" if settings.get("tasks") else settings.get("env_id", "")
        return f"{settings.get('algorithm', '')} on {played}"
    return ", ".join(f"{name}={settings[name]}" for name in differing if name in settings) or "default"


def band(curves: Sequence[Curve], seed: int = 0) -> Band:
    """The mean over runs, on points that all of them reach, with its bootstrap interval.

    Raises:
        ConfigError: there are no such points.
    """
    start, stop = max(curve.x[0] for curve in curves), min(curve.x[-1] for curve in curves)
    if start > stop:
        raise ConfigError(
            f"one run begins at {start:,.0f}, where another of the same settings has ended ({stop:,.0f}): they have no "
            "mean. Leave out the one that was stopped early."
        )
    x = np.linspace(start, stop, _POINTS)
    rows = np.stack([np.interp(x, curve.x, curve.y) for curve in curves])  # [runs, points]
    if len(curves) == 1:
        return Band(x, rows[0], None, None, 1)
    drawn = np.random.default_rng(seed).integers(len(curves), size=(_RESAMPLES, len(curves)))
    weights = np.stack([np.bincount(draw, minlength=len(curves)) for draw in drawn]) / len(curves)
    low, high = np.percentile(weights @ rows, [2.5, 97.5], axis=0)
    return Band(x, rows.mean(0), low, high, len(curves))
