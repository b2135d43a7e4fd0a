"""Environments that nodes import by name."""

from __future__ import annotations

import time
from typing import Any

import gymnasium

from tests.zoo import CountingEnv


class SlowToBuild(CountingEnv):
    """Takes its time in the constructor."""

    def __init__(self, build_s: float = 0.0, **kwargs: Any) -> None:
        time.sleep(build_s)
        super().__init__(**kwargs)


COUNTING = "tests.node.worlds:NodeTests/Counting-v0"
SLOW = "tests.node.worlds:NodeTests/SlowToBuild-v0"
GATED = "tests.node.worlds:NodeTests/Gated-v0"

for _id, _kind in (
    (COUNTING, "tests.zoo:CountingEnv"),
    (SLOW, "tests.node.worlds:SlowToBuild"),
    (GATED, "tests.faults.kit:GatedEnv"),
):
    _name = _id.partition(":")[2]
    if _name not in gymnasium.registry:
        gymnasium.register(_name, _kind, disable_env_checker=True, order_enforce=False)
