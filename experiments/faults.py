"""Learning under faults: PPO on CartPole that crashes, stalls and loses workers, against the same on a calm one.

python -m experiments.faults --seeds 3

Every environment raises once in 200 steps and sleeps now and then (`clusterenv.testing:CrashingCartPole-v0`), and one
of the workers is killed every few seconds. After each update the policy plays 100 episodes on calm environments; what
counts is how many training steps it takes until their mean return is 475. Returns of the training episodes would not
do: a long episode is cut by a crash more often than a short one. Results go to docs/results/faults.json and faults.md.
"""

from __future__ import annotations

import json
import logging
import pathlib
import statistics
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table

from clusterenv.learners.ppo import PPO, PPOConfig
from clusterenv.testing import Nemesis, workers_of

if TYPE_CHECKING:
    from clusterenv.learners.common.networks import ActorCritic

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "docs" / "results"
ENVS = {"calm": "CartPole-v1", "faulty": "clusterenv.testing:CrashingCartPole-v0"}
EPISODES = 100


@dataclass(frozen=True, kw_only=True)
class Args:
    """Train on calm and on faulty environments, and compare the steps."""

    modes: list[str] = field(default_factory=lambda: ["lock step", "stream"])
    """how the workers play: "lock step", "stream" """
    seeds: int = 3
    """runs of each kind, with seeds 1, 2, …"""
    target: float = 475.0
    """the return to reach: mean of 100 episodes on calm environments"""
    total_steps: int = 200_000
    """the budget, over which the learning rate falls; a run that has not reached the target by then has failed"""
    kill_every_s: float = 30.0
    """seconds between two kills of a worker"""
    cluster: str = "local:2"
    """where the environments run"""
    num_envs: int = 32
    """number of environments"""
    out: pathlib.Path = RESULTS
    """folder for the results"""


def evaluate(network: ActorCritic, seed: int) -> float:
    """The mean return of 100 episodes on calm environments, with actions sampled as in training."""
    envs = gymnasium.make_vec("CartPole-v1", EPISODES, vectorization_mode="vector_entry_point")
    dice = np.random.default_rng(seed)
    observations, _ = envs.reset(seed=seed)
    playing, returns = np.ones(EPISODES, bool), np.zeros(EPISODES)
    while playing.any():
        with torch.no_grad():
            params, _, _ = network(torch.from_numpy(observations), ())
        drawn = network.distribution.sample(params.numpy(), dice.random((EPISODES, 1), np.float32))
        observations, rewards, terminated, truncated, _ = envs.step(drawn)
        returns += rewards * playing
        playing &= ~(terminated | truncated)
    envs.close()
    return float(returns.mean())


def train(args: Args, mode: str, weather: str, seed: int) -> dict[str, Any]:
    """Train once, until the target is reached."""
    settings = PPOConfig(
        env_id=ENVS[weather],
        cluster=args.cluster,
        num_envs=args.num_envs,
        seed=seed,
        total_steps=args.total_steps,
        mode=mode,  # type: ignore[arg-type]
    )
    learner = PPO(settings)
    curve: list[tuple[int, float]] = []
    began = time.monotonic()
    updates = learner.updates()
    with ExitStack() as hurting:
        hurt = Nemesis(workers_of, seed, every_s=(args.kill_every_s, args.kill_every_s), deeds=["kill"])
        if weather == "faulty":
            hurting.enter_context(hurt)
        for update in updates:
            curve.append((update.global_step, evaluate(learner.network, seed)))
            if curve[-1][1] >= args.target:
                break
        told = learner.summary()
        updates.close()  # type: ignore[attr-defined]
    reached = curve[-1][1] >= args.target
    return {
        "mode": mode,
        "weather": weather,
        "seed": seed,
        "steps": curve[-1][0] if reached else None,
        "seconds": round(time.monotonic() - began, 1),
        "kills": len(hurt.done),
        "restarts": told.restarts,
        "curve": curve,
    }


def compare(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per mode: the steps of every run, the means, and their ratio; None where a run did not reach the target."""
    found = []
    for mode in dict.fromkeys(run["mode"] for run in runs):
        steps = {w: [run["steps"] for run in runs if (run["mode"], run["weather"]) == (mode, w)] for w in ENVS}
        means = {w: None if None in steps[w] or not steps[w] else statistics.mean(steps[w]) for w in ENVS}
        calm, faulty = means["calm"], means["faulty"]
        ratio = None if calm is None or faulty is None else faulty / calm
        found.append({"mode": mode, "steps": steps, "mean": means, "ratio": ratio})
    return found


def report(args: Args, runs: list[dict[str, Any]]) -> str:
    """The page."""
    lines = [
        "# Learning under faults",
        "",
        "Environment steps until PPO reaches a mean return of "
        f"{args.target:g} over {EPISODES} evaluation episodes, on CartPole-v1 and on",
        "`clusterenv.testing:CrashingCartPole-v0`: every environment raises once in 200 steps on average and sleeps",
        f"for 50 ms once in 2,000; one of the workers is killed every {args.kill_every_s:g} s. Evaluated after every",
        "update on calm environments, with actions sampled as in training; these steps do not count.",
        "",
        f"`python -m experiments.faults --seeds {args.seeds} --kill-every-s {args.kill_every_s:g}`, `{args.cluster}`, "
        f"{args.num_envs} environments. Every",
        "curve is in [faults.json](faults.json).",
        "",
        "| mode | calm, steps by seed | faulty, steps by seed | workers killed | ratio of the means |",
        "| --- | --- | --- | --- | --- |",
    ]
    for each in compare(runs):
        killed = sum(run["kills"] for run in runs if run["mode"] == each["mode"])
        cells = [", ".join(_number(steps) for steps in each["steps"][weather]) for weather in ENVS]
        ratio = "not reached" if each["ratio"] is None else f"{each['ratio']:.2f}"
        lines.append(f"| {each['mode']} | {cells[0]} | {cells[1]} | {killed} | {ratio} |")
    return "\n".join(lines) + "\n"


def _number(steps: int | None) -> str:
    return "not reached" if steps is None else f"{steps:,}"


def main(args: Args) -> None:
    """Train, compare, show and save."""
    logging.getLogger("clusterenv").setLevel(logging.ERROR)  # a line per crash would be thousands
    runs = []
    for seed in range(1, args.seeds + 1):
        for mode in args.modes:
            for weather in ENVS:
                runs.append(train(args, mode, weather, seed))
                shown = {name: value for name, value in runs[-1].items() if name != "curve"}
                Console(width=140).print(shown)
    table = Table("mode", "calm", "faulty", "ratio")
    for each in compare(runs):
        table.add_row(each["mode"], str(each["mean"]["calm"]), str(each["mean"]["faulty"]), str(each["ratio"]))
    Console(width=120).print(table)
    about = {name: value for name, value in asdict(args).items() if name != "out"}
    args.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"about": about, "compared": compare(runs), "runs": runs})
    (args.out / "faults.json").write_text(text + "\n")
    (args.out / "faults.md").write_text(report(args, runs))


if __name__ == "__main__":
    main(tyro.cli(Args))
