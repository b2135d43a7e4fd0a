"""ClusterEnv on this host: in lock step, or first come first served through `send` and `recv`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

import clusterenv
from benchmarks.runners.common import (
    ROWS,
    RealSteps,
    Spec,
    action_table,
    env_id_here,
    env_kwargs,
    env_wrappers,
    num_actions,
    run,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RECV_LIMIT_S = 30.0


@contextmanager
def build(spec: Spec) -> Iterator[Callable[[int], int]]:
    """Yield a step function.

    `settings["min_slots"]` asks for first come first served, `settings["num_workers"]` for another number of workers.
    """
    table = action_table(num_actions(spec), spec.num_envs, spec.seed)
    envs = clusterenv.make_vec(
        env_id_here(spec),
        num_envs=spec.num_envs,
        cluster=f"local:{spec.settings.get('num_workers', spec.workers)}",
        wrappers=env_wrappers(spec.preset),
        **env_kwargs(spec.preset),
    )
    counter = RealSteps()
    min_slots: int = spec.settings.get("min_slots", 0)

    def lock_step(i: int) -> int:
        _, _, terminated, truncated, _ = envs.step(table[i % ROWS])
        return counter.count(terminated, truncated)

    def first_ready(i: int) -> int:
        _, _, terminated, truncated, info = envs.recv(min_slots=min_slots, timeout=RECV_LIMIT_S)
        slots = info["env_id"]
        envs.send(table[i % ROWS, : len(slots)], slots)
        return counter.count(terminated, truncated)

    try:
        envs.reset(seed=spec.seed)
        if not min_slots:
            yield lock_step
        else:
            envs.send(table[0], np.arange(spec.num_envs))
            yield first_ready
            envs.recv(min_slots=spec.num_envs, timeout=RECV_LIMIT_S)
    finally:
        envs.close()


if __name__ == "__main__":
    run(build)
