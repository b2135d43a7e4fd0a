"""Gymnasium's own SyncVectorEnv and AsyncVectorEnv, as `gymnasium.make_vec` builds them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import gymnasium as gym

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


@contextmanager
def build(spec: Spec) -> Iterator[Callable[[int], int]]:
    """Yield a step function over the vectoriser that `settings["mode"]` names (`sync` or `async`)."""
    table = action_table(num_actions(spec), spec.num_envs, spec.seed)
    envs = gym.make_vec(
        env_id_here(spec),
        num_envs=spec.num_envs,
        vectorization_mode=spec.settings["mode"],
        wrappers=env_wrappers(spec.preset),
        **env_kwargs(spec.preset),
    )
    counter = RealSteps()

    def step(i: int) -> int:
        _, _, terminated, truncated, _ = envs.step(table[i % ROWS])
        return counter.count(terminated, truncated)

    try:
        envs.reset(seed=spec.seed)
        yield step
    finally:
        envs.close()


if __name__ == "__main__":
    run(build)
