"""The tables and the picture of `experiments.learners`, from all that has been run.

python -m experiments.learners_report
"""

from __future__ import annotations

import collections
import pathlib  # noqa: TC003 - tyro reads the annotations
import statistics
from typing import Any

import tyro
from rich.console import Console

from experiments.learners import RESULTS, read

HEAD = (
    "| environment | learner | sync | seeds | return, last 100 episodes | steps | seconds | syncs / versions | bytes |"
    " learner waits | workers idle |"
)
GOALS = {"CartPole-v1": 475, "LunarLander-v3": 200, "HalfCheetah-v5": 2_000, "Hopper-v5": 2_000}
GOAL_HEAD = "| environment | return | learner | sync | seeds that reached it | after steps | after seconds |"


def table(runs: list[dict[str, Any]]) -> str:
    """One line for each learner, environment and rule, over all its seeds, in Markdown."""
    lines = [HEAD, "| --- " * HEAD.count(" | ") + "| --- |"]
    for (env_id, learner, rule), group in sorted(_groups(runs).items()):
        returns = sorted(run["final_return"] for run in group)
        names = ("seconds", "syncs", "publishes", "bytes", "learner_wait", "worker_wait")
        mean = {name: statistics.mean(run[name] for run in group) for name in names}
        lines.append(
            f"| {env_id} | {learner} | {rule} | {len(group)} | {', '.join(f'{value:.0f}' for value in returns)} "
            f"| {group[0]['steps']:,} | {mean['seconds']:.0f} "
            f"| {mean['syncs']:,.0f} / {mean['publishes']:,.0f} | {mean['bytes'] / 1e3:,.0f} kB "
            f"| {mean['learner_wait']:.0%} | {mean['worker_wait']:.0%} |"
        )
    return "\n".join(lines) + "\n"


def goals(runs: list[dict[str, Any]]) -> str:
    """How soon the return of the last 100 episodes first was as high as `GOALS`, in Markdown.

    Example:
        >>> run = {"env_id": "CartPole-v1", "learner": "ppo", "rule": "aps", "curve": [[9, 0.5, 470.0], [20, 1, 480.0]]}
        >>> print(goals([run]).splitlines()[-1])
        | CartPole-v1 | 475 | ppo | aps | 1 of 1 | 20 | 1 |
    """
    lines = [GOAL_HEAD, "| --- " * (GOAL_HEAD.count("|") - 1) + "|"]
    for (env_id, learner, rule), group in sorted(_groups(runs).items()):
        if env_id not in GOALS:
            continue
        reached = [next((point for point in run["curve"] if point[2] >= GOALS[env_id]), None) for run in group]
        found = [point for point in reached if point is not None]
        cells = [env_id, f"{GOALS[env_id]:,}", learner, rule, f"{len(found)} of {len(group)}"]
        cells += [_span([point[axis] for point in found]) for axis in (0, 1)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _span(values: list[float]) -> str:
    if not values:
        return "-"
    low, high = (f"{value:,.0f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def draw(runs: list[dict[str, Any]], path: pathlib.Path) -> None:
    """Return against steps, and against time: a row for each environment, a line for each run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    env_ids = sorted({run["env_id"] for run in runs})
    learners = sorted({run["learner"] for run in runs})
    figure, axes = pyplot.subplots(len(env_ids), 2, figsize=(11, 3.6 * len(env_ids)), squeeze=False)
    for row, env_id in zip(axes, env_ids, strict=True):
        for run in (run for run in runs if run["env_id"] == env_id):
            style = {"color": f"C{learners.index(run['learner'])}", "ls": "-" if run["rule"] == "aps" else ":"}
            label = f"{run['learner']}, {run['rule']}" if run["seed"] == 1 else None
            steps, seconds, values = zip(*run["curve"], strict=True)
            row[0].plot(steps, values, lw=1, label=label, **style)
            row[1].plot(seconds, values, lw=1, **style)
        row[0].set(title=env_id, xlabel="environment steps", ylabel="return, last 100 episodes")
        row[1].set(xlabel="seconds")
        row[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _groups(runs: list[dict[str, Any]]) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = collections.defaultdict(list)
    for run in runs:
        groups[run["env_id"], run["learner"], run["rule"]].append(run)
    return groups


def main(results: pathlib.Path = RESULTS) -> None:
    """Print the tables, and draw the picture beside the JSON file.

    Args:
        results: the JSON file.
    """
    runs = read(results)
    console = Console(width=200, soft_wrap=True)
    for text in (table(runs), goals(runs)):
        console.print(text, markup=False, highlight=False)
    draw(runs, results.with_suffix(".png"))


if __name__ == "__main__":
    tyro.cli(main)
