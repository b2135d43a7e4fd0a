"""What is PopArt worth with several tasks? One V-MPO agent, three copies of Catch, rewards times 0.01, 1 and 100.

python -m experiments.multitask --seeds 3

Each copy is seen at a place of its own in the observation ("rooms"), as the levels of a game look different: what is
learned in one room is of little use in another. The policy is not told the task; the value is.

If all copies were seen at the same place ("one room"), the policy could not tell them apart: it would do the same in
all of them, and what the large rewards teach would serve the copy with the small ones. That is no test of PopArt; it is
run to show it.
"""

from __future__ import annotations

import functools
import json
import pathlib
import platform
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import tyro
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation, TransformReward
from rich.console import Console
from rich.table import Table

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "docs" / "results" / "multitask.json"
ROOM = "experiments.multitask:experiments/Room-v0"
ROOMS, ROWS, COLUMNS = 3, 6, 5
SCALES = (0.01, 1.0, 100.0)
ENVS_PER_TASK = 4
# Equal for all. The gradient step is larger than usual, so that a run takes half a minute.
COMMON: dict[str, Any] = {"rollout_steps": 20, "learning_rate": 3e-3, "record_every": 10}
VARIANTS: dict[str, dict[str, Any]] = {
    "alone": {},
    "PopArt": {},
    "no PopArt": {"popart": False},
    # The temperature begins where the advantages of the largest task are.
    "no PopArt, temperature 100": {"popart": False, "temperature": 100.0},
    "one room, PopArt": {},
    "one room, no PopArt": {"popart": False},
}


def make_room(room: int = 0, scale: float = 1.0) -> gymnasium.Env[Any, Any]:
    """Catch, seen at one of three places, with rewards of another size."""
    env: Any = gymnasium.make("clusterenv/Catch-v0", rows=ROWS, columns=COLUMNS)
    seen = spaces.Box(0.0, 1.0, (ROOMS, ROWS, COLUMNS), np.float32)
    env = TransformObservation(env, functools.partial(_in_room, room), seen)
    return TransformReward(env, lambda reward: scale * float(reward))


def _in_room(room: int, board: Any) -> Any:
    seen = np.zeros((ROOMS, ROWS, COLUMNS), np.float32)
    seen[room] = board
    return seen


if "experiments/Room-v0" not in gymnasium.registry:
    gymnasium.register("experiments/Room-v0", entry_point="experiments.multitask:make_room")


@dataclass(frozen=True, kw_only=True)
class Args:
    """Train one agent on three tasks, with PopArt and without."""

    seeds: int = 3
    """how many seeds"""
    steps_per_task: int = 40_000
    """steps of each task"""
    variants: tuple[str, ...] = tuple(VARIANTS)
    """which"""
    cluster: str = "inproc"
    """where the environments run"""
    out: pathlib.Path = RESULTS
    """the JSON file"""


def play(variant: str, seed: int, args: Args) -> dict[str, Any]:
    """Train once; returns are told in the units of Catch, whatever the rewards were multiplied by."""
    from clusterenv.learners.vmpo import VMPO, VMPOConfig
    from clusterenv.metrics import keys

    alone = variant == "alone"
    rooms = [0] * ROOMS if variant.startswith("one room") else list(range(ROOMS))
    tasks = (
        () if alone else tuple(f"{ROOM} room={room} scale={scale}" for room, scale in zip(rooms, SCALES, strict=True))
    )
    count = max(1, len(tasks))
    learner = VMPO(
        VMPOConfig(
            **(COMMON | VARIANTS[variant]),
            **({"env_id": ROOM} if alone else {"tasks": tasks}),
            cluster=args.cluster,
            num_envs=ENVS_PER_TASK * count,
            total_steps=args.steps_per_task * count,
            seed=seed,
            runtime="torch",
        )
    )
    weights: list[list[float]] = []
    for update in learner.updates():
        weights.append([value for name, value in update.metrics.items() if name.startswith(keys.TASK_WEIGHT_PREFIX)])
    told = learner.summary()
    returns = (
        [told.final_return]
        if alone
        else [mean / scale for mean, scale in zip(told.task_returns.values(), SCALES, strict=True)]
    )
    return {
        "variant": variant,
        "seed": seed,
        "returns": [round(value, 3) for value in returns],
        "weights": [round(float(value), 3) for value in np.mean(weights, 0)],
        "steps": told.steps,
        "seconds": round(told.seconds, 1),
    }


def main(args: Args) -> None:
    """All variants, seed by seed; a table and a JSON file, which is written after every run."""
    console, lines = Console(), []
    for seed in range(1, args.seeds + 1):
        for variant in args.variants:
            lines.append(play(variant, seed, args))
            console.print(lines[-1])
            told = {
                "command": f"python -m experiments.multitask --seeds {args.seeds}",
                "machine": f"{platform.machine()}, Python {platform.python_version()}",
                "scales": SCALES,
                "steps_per_task": args.steps_per_task,
                "runs": lines,
            }
            args.out.write_text(json.dumps(told, indent=1) + "\n")
    table = Table("variant", "seed", *(f"rewards x {scale:g}" for scale in SCALES), "weights")
    for line in lines:
        table.add_row(
            line["variant"], str(line["seed"]), *(f"{value:.2f}" for value in line["returns"]), str(line["weights"])
        )
    console.print(table)


if __name__ == "__main__":
    main(tyro.cli(Args))
