"""What are corrections worth? IMPALA with V-trace and without, and IMPACT, on data that is stale on purpose.

python -m experiments.stale --lag 20 --seeds 3

Workers act with the weights of `lag` updates ago, in lock step, so that every batch but the first ones is that old. The
task is Catch: the best return is 1, chance about -0.6.
"""

from __future__ import annotations

import collections
import copy
import json
import pathlib
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tyro
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from clusterenv.learners.common.source import Source

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "docs" / "results" / "stale.json"
COMMON: dict[str, Any] = {
    "env_id": "clusterenv/Catch-v0",
    "mode": "lock step",
    "num_envs": 8,
    "rollout_steps": 20,
    "learning_rate": 3e-3,
    "anneal": False,
    "sync": None,
    "record_every": 10,
}


@dataclass(frozen=True, kw_only=True)
class Args:
    """Train on stale data."""

    lag: int = 20
    """how many updates old the weights of the workers are"""
    seeds: int = 3
    """how many seeds"""
    total_steps: int = 80_000
    """steps of each run"""
    cluster: str = "inproc"
    """where the environments run"""
    out: pathlib.Path = RESULTS
    """the JSON file"""


def play(variant: str, seed: int, args: Args) -> dict[str, Any]:
    """Train once."""
    from clusterenv.learners.common.sync import SyncConfig
    from clusterenv.learners.impact import IMPACT, IMPACTConfig
    from clusterenv.learners.impala import IMPALA, IMPALAConfig
    from clusterenv.metrics import keys

    settings = {**COMMON, "cluster": args.cluster, "total_steps": args.total_steps, "seed": seed}
    settings["sync"] = SyncConfig(rule="on-change")
    learner: Any
    if variant == "impact":
        learner = _stale(IMPACT, args.lag)(IMPACTConfig(target_every=8, uses=2, clip=0.3, **settings))
    else:
        config = IMPALAConfig(optimizer="adam", correction=variant, **settings)  # type: ignore[arg-type]
        learner = _stale(IMPALA, args.lag)(config)
    curve = []
    for update in learner.updates():
        curve.append((update.global_step, update.metrics.get(keys.EPISODIC_RETURN.name)))
    reached = next((step for step, value in curve if value is not None and value >= 0.95), None)
    told = learner.summary()
    return {"variant": variant, "seed": seed, "return": round(told.final_return, 3), "first_at_0.95": reached}


def _stale(kind: Any, lag: int) -> Any:
    """The learner, whose workers get every version `lag` updates late."""

    class Stale(kind):  # type: ignore[misc]
        def publish(self, source: Source) -> None:
            if not hasattr(self, "_late"):
                self._late = copy.deepcopy(self.updater.acting)
                self._versions: Any = collections.deque(maxlen=lag + 1)
            self._versions.append(copy.deepcopy(self.updater.acting.state_dict()))
            self._late.load_state_dict(self._versions[0])
            source.publish(self._late)

    return Stale


def main(args: Args) -> None:
    """All variants, seed by seed; a table and a JSON file."""
    console = Console()
    lines = [
        play(variant, seed, args) for variant in ("v-trace", "none", "impact") for seed in range(1, args.seeds + 1)
    ]
    table = Table("correction", "seed", "return (last 100)", "0.95 at step")
    for line in lines:
        table.add_row(*(str(line[name]) for name in ("variant", "seed", "return", "first_at_0.95")))
    console.print(table)
    told = {
        "command": f"python -m experiments.stale --lag {args.lag} --seeds {args.seeds}",
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "lag": args.lag,
        "total_steps": args.total_steps,
        "runs": lines,
    }
    args.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Args))
