"""Does Adaptive Policy Synchronization pay? The five rules on equal terms, in lock step and asynchronously.

python -m experiments.aps --regime async --env-id CartPole-v1 --seeds 5
python -m experiments.aps_report                            # table and pictures from all that has been run

Every run is one line of a CSV file. A run that is there already is not made again, so that an experiment can be stopped
and continued, and seeds can be added later.
"""

from __future__ import annotations

import concurrent.futures
import csv
import dataclasses
import json
import multiprocessing
import pathlib
from dataclasses import dataclass, field
from typing import Any, Literal

import tyro
from rich.console import Console

Regime = Literal["lockstep", "async"]
RESULTS = pathlib.Path(__file__).resolve().parent.parent / "docs" / "results" / "aps"
THRESHOLDS = (0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)
RULES = ("always", "every:4", "every:16", "on-change", "never", *(f"aps:{value:g}" for value in THRESHOLDS))
COLUMNS = (
    *("regime", "env_id", "rule", "seed", "final_return", "best_return", "area", "steps", "seconds", "publishes"),
    *("syncs", "bytes", "full_bytes", "lag_mean", "lag_max", "divergence_mean", "divergence_max", "ess_mean"),
    *("ess_min", "sync_reasons"),
)


@dataclass(frozen=True, kw_only=True)
class Args:
    """Run PPO under several sync rules and seeds."""

    regime: Regime = "async"
    """lockstep: one version per iteration, workers wait; async: one version per gradient step, nobody waits"""
    env_id: str = "CartPole-v1"
    """the environment; its preset for the regime is used, the same for all rules"""
    seeds: int = 5
    """how many seeds"""
    first_seed: int = 1
    """the first of them; the others follow it"""
    rules: list[str] = field(default_factory=lambda: list(RULES))
    """which rules"""
    total_steps: int | None = None
    """steps of each run; None for the preset's"""
    cluster: str = "local:2"
    """where the environments run"""
    jobs: int = 1
    """how many runs at a time"""
    out: pathlib.Path = RESULTS
    """folder for the CSV file and the learning curves"""


@dataclass(frozen=True)
class Run:
    """One run of the experiment."""

    regime: Regime
    env_id: str
    rule: str
    seed: int
    total_steps: int | None
    cluster: str

    @property
    def name(self) -> str:
        """For the file of its learning curve."""
        return f"{self.regime}__{self.env_id}__{self.rule.replace(':', '-')}__{self.seed}"


def play(run: Run) -> tuple[dict[str, Any], list[tuple[int, float]]]:
    """Train once; returns the line of the table and the learning curve."""
    from clusterenv.learners.common.sync import SyncConfig
    from clusterenv.learners.ppo import PPO, preset
    from clusterenv.metrics import keys

    name, _, number = run.rule.partition(":")
    options: dict[str, Any] = {"aps": "threshold", "every": "every"}
    numbers = {options[name]: int(number) if name == "every" else float(number)} if number else {}
    changes: dict[str, Any] = {
        "seed": run.seed,
        "cluster": run.cluster,
        "sync": SyncConfig(rule=name, **numbers),  # type: ignore[arg-type]
        "measure_drift": True,
    }
    if run.total_steps is not None:
        changes["total_steps"] = run.total_steps
    if run.regime == "async":
        changes["publish_every"] = "gradient step"
    settings = preset(run.env_id, "stream" if run.regime == "async" else "lock step")
    learner = PPO(dataclasses.replace(settings, **changes))
    curve = []
    for update in learner.updates():
        value = update.metrics.get(keys.EPISODIC_RETURN.name)
        if value is not None:
            curve.append((update.global_step, float(value)))
    return _line(run, learner, curve), curve


def _line(run: Run, learner: Any, curve: list[tuple[int, float]]) -> dict[str, Any]:
    told, stats = learner.summary(), learner.stats
    values = [value for _, value in curve]
    return {
        "regime": run.regime,
        "env_id": run.env_id,
        "rule": run.rule,
        "seed": run.seed,
        "final_return": round(told.final_return, 2),
        "best_return": round(max(values, default=float("nan")), 2),
        "area": round(sum(values) / max(1, len(values)), 2),
        "steps": told.steps,
        "seconds": round(told.seconds, 1),
        "publishes": told.publishes,
        "syncs": told.syncs,
        "bytes": told.bytes,
        "full_bytes": told.always_bytes,
        "lag_mean": round(stats["lag"]["mean"], 2),
        "lag_max": stats["lag"]["max"],
        "divergence_mean": round(stats["divergence"]["mean"], 6),
        "divergence_max": round(stats["divergence"]["max"], 6),
        "ess_mean": round(stats["ess"]["mean"], 4),
        "ess_min": round(stats["ess"]["min"], 4),
        "sync_reasons": json.dumps(told.sync_reasons),
    }


def read(path: pathlib.Path) -> list[dict[str, str]]:
    """The lines of the table so far."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def save(out: pathlib.Path, run: Run, line: dict[str, Any], curve: list[tuple[int, float]]) -> None:
    """Add a line to the table, and write the curve beside it."""
    table = out / "runs.csv"
    new = not table.exists()
    (out / "curves").mkdir(parents=True, exist_ok=True)
    with table.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerow(line)
    with (out / "curves" / f"{run.name}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("global_step", "return"), *((step, round(value, 2)) for step, value in curve)])


def main(args: Args) -> None:
    """Make the runs that are not there yet, seed by seed, so that a stopped experiment has whole seeds."""
    console = Console()
    there = {(line["regime"], line["env_id"], line["rule"], line["seed"]) for line in read(args.out / "runs.csv")}
    todo = [
        Run(args.regime, args.env_id, rule, seed, args.total_steps, args.cluster)
        for seed in range(args.first_seed, args.first_seed + args.seeds)
        for rule in args.rules
        if (args.regime, args.env_id, rule, str(seed)) not in there
    ]
    args.out.mkdir(parents=True, exist_ok=True)
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(args.jobs, mp_context=spawn) as pool:
        runs = {pool.submit(play, run): run for run in todo}
        for number, done in enumerate(concurrent.futures.as_completed(runs), start=1):
            line, curve = done.result()
            save(args.out, runs[done], line, curve)
            console.print(
                f"{number}/{len(todo)} {runs[done].name}: return {line['final_return']}, {line['syncs']} syncs of "
                f"{line['publishes']} versions, {line['bytes']:,} bytes, {line['seconds']} s"
            )


if __name__ == "__main__":
    main(tyro.cli(Args))
