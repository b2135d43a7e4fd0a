"""Environments that nodes import by name."""

from __future__ import annotations

import pathlib
import time
from typing import Any

import gymnasium

from tests.zoo import CountingEnv


class SlowToBuild(CountingEnv):
    """Takes its time in the constructor."""

    def __init__(self, build_s: float = 0.0, **kwargs: Any) -> None:
        time.sleep(build_s)
        super().__init__(**kwargs)


class ReadyWhenTold(CountingEnv):
    """Its second process is built, and every step of slot 0 but the first is made, when a file is there.

    Args:
        folder: where: "built" and "stepped".
        **kwargs: of `CountingEnv`.
    """

    def __init__(self, folder: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._folder = pathlib.Path(folder)
        born = self._folder / f"born {self.slot}"
        if born.exists():
            self.plan = {}
            self._wait_for("built")
        born.touch()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count, when it is told."""
        if self.slot == 0 and self.life > 0:
            self._wait_for("stepped")
        return super().step(action)

    def _wait_for(self, name: str) -> None:
        while not (self._folder / name).exists():
            time.sleep(0.01)


COUNTING = "tests.node.worlds:NodeTests/Counting-v0"
SLOW = "tests.node.worlds:NodeTests/SlowToBuild-v0"
TOLD = "tests.node.worlds:NodeTests/ReadyWhenTold-v0"
GATED = "tests.node.worlds:NodeTests/Gated-v0"

for _id, _kind in (
    (COUNTING, "tests.zoo:CountingEnv"),
    (SLOW, "tests.node.worlds:SlowToBuild"),
    (TOLD, "tests.node.worlds:ReadyWhenTold"),
    (GATED, "tests.faults.kit:GatedEnv"),
):
    _name = _id.partition(":")[2]
    if _name not in gymnasium.registry:
        gymnasium.register(_name, _kind, disable_env_checker=True, order_enforce=False)
