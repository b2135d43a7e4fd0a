"""What the learners reach: return against steps and against time, with APS and with every version fetched.

python -m experiments.learners --learners ppo impala --env-ids CartPole-v1 --seeds 3
python -m experiments.learners_report                       # table and pictures from all that has been run

Every run is an entry of a JSON file. One that is there already is not made again, so that an experiment can be stopped
and continued, and seeds can be added later. On a machine with many cores, `--jobs 8 --cores 2` makes eight runs at a
time, each on two cores of its own.
"""

from __future__ import annotations

import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import platform
from dataclasses import dataclass, field, replace
from typing import Any

import tyro
from rich.console import Console

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "docs" / "results" / "learners.json"
LEARNERS = ("ppo", "impala", "impact", "vmpo")
POINTS = 200  # of a learning curve that are kept


@dataclass(frozen=True, kw_only=True)
class Args:
    """Train learners with their presets."""

    learners: list[str] = field(default_factory=lambda: list(LEARNERS))
    """which"""
    env_ids: list[str] = field(default_factory=lambda: ["CartPole-v1", "LunarLander-v3"])
    """on which environments"""
    rules: list[str] = field(default_factory=lambda: ["aps", "on-change"])
    """when workers fetch weights"""
    seeds: int = 3
    """how many seeds"""
    first_seed: int = 1
    """the first of them; the others follow it"""
    jobs: int = 1
    """how many runs at a time"""
    cores: int | None = None
    """cores of each run; None for all that there are"""
    out: pathlib.Path = RESULTS
    """the JSON file"""


@dataclass(frozen=True)
class Run:
    """One run of the experiment.

    Attributes:
        learner: its name.
        env_id: the environment.
        rule: when workers fetch weights.
        seed: of everything.
        changes: of the preset.
    """

    learner: str
    env_id: str
    rule: str
    seed: int
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """To find it again."""
        changes = "".join(f" {name}={value}" for name, value in self.changes.items())
        return f"{self.learner} {self.env_id} {self.rule} {self.seed}{changes}"


def play(run: Run) -> dict[str, Any]:
    """Train once."""
    from clusterenv.learners import catalog
    from clusterenv.learners.common.sync import SyncConfig
    from clusterenv.metrics import keys

    entry = catalog.find(run.learner)
    preset = entry.preset(run.env_id)
    sync = preset.sync if run.rule == preset.sync.rule else SyncConfig(rule=run.rule)  # type: ignore[arg-type]
    learner = entry.learner()(replace(preset, seed=run.seed, sync=sync, **run.changes))
    curve, waits = [], []
    for update in learner.updates():
        values = update.metrics
        curve.append((update.global_step, round(update.seconds, 2), values.get(keys.EPISODIC_RETURN.name)))
        waits.append((values.get(keys.LEARNER_WAIT.name, 0.0), values.get(keys.WORKER_WAIT.name, 0.0)))
    told = learner.summary()
    return {
        "name": run.name,
        "learner": run.learner,
        "env_id": run.env_id,
        "rule": run.rule,
        "seed": run.seed,
        "changes": run.changes,
        "machine": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores, Python {platform.python_version()}",
        "final_return": round(told.final_return, 2),
        "steps": told.steps,
        "seconds": round(told.seconds, 1),
        "publishes": told.publishes,
        "syncs": told.syncs,
        "bytes": told.bytes,
        "lag_mean": round(told.lag_mean, 2),
        "lag_max": told.lag_max,
        "learner_wait": round(sum(wait for wait, _ in waits) / len(waits), 3),
        "worker_wait": round(sum(wait for _, wait in waits) / len(waits), 3),
        "curve": thinned([point for point in curve if point[2] is not None]),
    }


def thinned(curve: list[Any], points: int = POINTS) -> list[Any]:
    """At most so many points of a curve, the last one always.

    Example:
        >>> thinned(list(range(10)), points=3)
        [3, 6, 9]
    """
    if len(curve) <= points:
        return curve
    return [curve[(index + 1) * len(curve) // points - 1] for index in range(points)]


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    """The runs so far."""
    runs: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    return runs


def play_all(runs: list[Run], out: pathlib.Path, *, jobs: int, cores: int | None) -> None:
    """Make the runs that are not there yet."""
    console, done = Console(), read(out)
    todo = [run for run in runs if run.name not in {each["name"] for each in done}]
    spawn = multiprocessing.get_context("spawn")
    places = spawn.Queue()
    for job in range(jobs):
        places.put(None if cores is None else range(job * cores, (job + 1) * cores))
    with concurrent.futures.ProcessPoolExecutor(jobs, spawn, _stay_on, (places,)) as pool:
        waiting = {pool.submit(play, run): run for run in todo}
        for number, future in enumerate(concurrent.futures.as_completed(waiting), start=1):
            if (problem := future.exception()) is not None:
                console.print(f"{number}/{len(todo)} {waiting[future].name}: {problem}")
                continue
            told = future.result()
            done.append(told)
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text("[\n" + ",\n".join(json.dumps(each) for each in done) + "\n]\n")
            console.print(
                f"{number}/{len(todo)} {told['name']}: return {told['final_return']}, {told['steps']:,} steps in "
                f"{told['seconds']} s, {told['syncs']} syncs of {told['publishes']} versions, {told['bytes']:,} bytes"
            )


def _stay_on(places: Any) -> None:
    cores = places.get()
    if cores is not None:
        os.sched_setaffinity(0, cores)


def main(args: Args) -> None:
    """Seed by seed, so that a stopped experiment has whole seeds."""
    runs = [
        Run(learner, env_id, rule, seed)
        for seed in range(args.first_seed, args.first_seed + args.seeds)
        for env_id in args.env_ids
        for learner in args.learners
        for rule in args.rules
    ]
    play_all(runs, args.out, jobs=args.jobs, cores=args.cores)


if __name__ == "__main__":
    main(tyro.cli(Args))
