"""The table and the pictures of `experiments.aps`, from the runs that are there.

python -m experiments.aps_report                            # writes docs/results/aps.md and its pictures
"""

from __future__ import annotations

import csv
import pathlib  # noqa: TC003 - tyro reads the annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import tyro

from experiments.aps import RESULTS, RULES, read

if TYPE_CHECKING:
    import numpy.typing as npt

_BASE = "on-change"
_TITLES = {
    "lockstep": "Lock step: one version per iteration",
    "async": "Asynchronous: one version per gradient step",
}
_RESAMPLES = 10_000


@dataclass(frozen=True, kw_only=True)
class Args:
    """Write the report."""

    out: pathlib.Path = RESULTS
    """the folder that the experiment has filled"""
    page: pathlib.Path = RESULTS.parent / "aps.md"
    """the page; what stands above its first table is kept"""


@dataclass(frozen=True)
class Group:
    """The seeds of one rule."""

    rule: str
    lines: list[dict[str, str]]

    def column(self, name: str) -> npt.NDArray[np.float64]:
        """One number per seed."""
        return np.array([float(line[name]) for line in self.lines])

    def interval(self, name: str) -> tuple[float, float, float]:
        """Mean and its 95 % bootstrap interval over seeds."""
        values = self.column(name)
        rng = np.random.default_rng(0)
        means = rng.choice(values, (_RESAMPLES, len(values))).mean(axis=1)
        low, high = np.percentile(means, (2.5, 97.5))
        return float(values.mean()), float(low), float(high)


def groups_of(lines: list[dict[str, str]], regime: str, env_id: str) -> list[Group]:
    """The rules of one experiment, in the order of `RULES`."""
    mine = [line for line in lines if line["regime"] == regime and line["env_id"] == env_id]
    rules = sorted({line["rule"] for line in mine}, key=lambda rule: (*RULES, rule).index(rule))
    return [Group(rule, [line for line in mine if line["rule"] == rule]) for rule in rules]


def table(groups: list[Group]) -> list[str]:
    """The rows of a Markdown table."""
    base = next((group.column("bytes").mean() for group in groups if group.rule == _BASE), None)
    rows = [
        "| rule | seeds | final return [95 %] | syncs | versions | weight bytes | fewer than on-change | lag mean, max "
        "| divergence mean | ESS mean, min |",
        "| --- " * 10 + "|",
    ]
    for group in groups:
        mean, low, high = group.interval("final_return")
        nbytes = group.column("bytes").mean()
        fewer = "" if base is None else f"{base / nbytes:.1f}x"
        rows.append(
            f"| {group.rule} | {len(group.lines)} | {mean:.0f} [{low:.0f}, {high:.0f}] "
            f"| {group.column('syncs').mean():.0f} | {group.column('publishes').mean():.0f} | {nbytes / 1e3:,.0f} kB "
            f"| {fewer} | {group.column('lag_mean').mean():.1f}, {group.column('lag_max').max():.0f} "
            f"| {group.column('divergence_mean').mean():.4f} "
            f"| {group.column('ess_mean').mean():.3f}, {group.column('ess_min').min():.3f} |"
        )
    return rows


def draw(path: pathlib.Path, groups: list[Group], curves: pathlib.Path, title: str) -> None:
    """Left: the learning curves, mean over seeds. Right: what each rule paid for its return."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for group in groups:
        x, low, mean, high = _band(group, curves)
        (line,) = left.plot(x, mean, label=group.rule)
        left.fill_between(x, low, high, alpha=0.15, color=line.get_color())
        value, bottom, top = group.interval("final_return")
        nbytes = group.column("bytes").mean()
        right.errorbar(nbytes, value, [[value - bottom], [top - value]], fmt="o", color=line.get_color())
        right.annotate(group.rule, (nbytes, value), xytext=(5, 4), textcoords="offset points", fontsize=7)
    left.set(xlabel="environment steps", ylabel="return (last 100 episodes)", title=title)
    left.legend(fontsize=7)
    right.set(xlabel="bytes of weights", xscale="log", ylabel="final return", title="what it cost")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _band(group: Group, curves: pathlib.Path) -> tuple[Any, Any, Any, Any]:
    """Mean, lowest and highest over the seeds, on common points."""
    seeds = []
    for line in group.lines:
        name = f"{line['regime']}__{line['env_id']}__{line['rule'].replace(':', '-')}__{line['seed']}.csv"
        with (curves / name).open(newline="") as file:
            points = [(float(row["global_step"]), float(row["return"])) for row in csv.DictReader(file)]
        seeds.append(np.array(points).T)
    x = np.linspace(max(seed[0][0] for seed in seeds), min(seed[0][-1] for seed in seeds), 200)
    values = np.stack([np.interp(x, *seed) for seed in seeds])
    return x, values.min(axis=0), values.mean(axis=0), values.max(axis=0)


def main(args: Args) -> None:
    """Write the page below what a person has written at its head."""
    lines = read(args.out / "runs.csv")
    head = args.page.read_text().partition("\n## Results\n")[0] if args.page.exists() else "# APS"
    parts = [head.rstrip(), "", "## Results"]
    for regime, env_id in sorted({(line["regime"], line["env_id"]) for line in lines}):
        groups = groups_of(lines, regime, env_id)
        picture = f"{regime}-{env_id}.png"
        draw(args.out / picture, groups, args.out / "curves", f"{env_id}, {regime}")
        parts += ["", f"### {_TITLES[regime]}, {env_id}", "", *table(groups), "", f"![curves](aps/{picture})"]
    args.page.write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Args))
