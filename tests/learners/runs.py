"""What tests of whole runs share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tests.learners.envs  # noqa: F401  # they register themselves
from clusterenv.learners.common.sync import SyncConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

# A run of a second, of any learner on unrolls: torch acts, because exporting a graph takes longer than all of it.
LEVER: dict[str, Any] = {
    "env_id": "test/Lever-discrete-v0",
    "cluster": "inproc:2",
    "mode": "lock step",
    "num_envs": 8,
    "rollout_steps": 8,
    "total_steps": 80 * 64,
    "gamma": 0.5,
    "hidden": (16,),
    "learning_rate": 0.02,
    "record_every": 10,
    "runtime": "torch",
    "sync": SyncConfig(rule="on-change"),
}


class Notebook:
    """A sink that remembers, and may break off."""

    def __init__(self, break_after: int | None = None) -> None:
        self.rows: list[dict[str, float]] = []
        self.break_after = break_after

    def write(self, values: Mapping[str, float], global_step: int, seconds: float) -> None:
        self.rows.append({**values, "global_step": global_step})
        if len(self.rows) == self.break_after:
            raise KeyboardInterrupt

    def close(self) -> None:
        pass
