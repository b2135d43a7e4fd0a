"""What is a memory worth? IMPALA on CartPole whose velocities are hidden, with an LSTM and without.

python -m experiments.memory --seeds 3

From positions alone the best that can be done without memory is to fall late.
"""

from __future__ import annotations

import json
import pathlib
import platform
from dataclasses import dataclass, replace
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "docs" / "results" / "memory.json"


@dataclass(frozen=True, kw_only=True)
class Args:
    """Train with a memory, and without."""

    seeds: int = 3
    """how many seeds"""
    lstm: int = 64
    """size of the memory"""
    total_steps: int = 500_000
    """steps of each run"""
    cluster: str = "local:2"
    """where the environments run"""
    out: pathlib.Path = RESULTS
    """the JSON file"""


def play(lstm: int, seed: int, args: Args) -> dict[str, Any]:
    """Train once."""
    from clusterenv.learners import catalog

    entry = catalog.find("impala")
    preset = entry.preset("clusterenv/CartPoleNoVelocity-v0")
    config = replace(preset, lstm=lstm, seed=seed, cluster=args.cluster, total_steps=args.total_steps)  # type: ignore[call-arg]
    told = entry.learner()(config).train()
    return {"lstm": lstm, "seed": seed, "return": round(told.final_return, 1), "seconds": round(told.seconds, 1)}


def main(args: Args) -> None:
    """Both, seed by seed; a table and a JSON file."""
    console = Console()
    lines = [play(lstm, seed, args) for seed in range(1, args.seeds + 1) for lstm in (args.lstm, 0)]
    table = Table("LSTM", "seed", "return (last 100)", "seconds")
    for line in lines:
        table.add_row(*(str(line[name]) for name in ("lstm", "seed", "return", "seconds")))
    console.print(table)
    told = {
        "command": f"python -m experiments.memory --seeds {args.seeds}",
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "total_steps": args.total_steps,
        "runs": lines,
    }
    args.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Args))
