"""Tianshou's SubprocVectorEnv and ShmemVectorEnv: one process per environment, the caller resets."""

# mypy: disable-error-code="import-not-found"
# The library lives in an environment of its own, where mypy does not run.

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from tianshou.env import ShmemVectorEnv, SubprocVectorEnv

from benchmarks.runners.common import ROWS, Spec, action_table, env_maker, num_actions, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def build(spec: Spec) -> Iterator[Callable[[int], int]]:
    """Yield a step function over the class that `settings["memory"]` names (`pipe` or `shared`)."""
    table = action_table(num_actions(spec), spec.num_envs, spec.seed)
    kind = ShmemVectorEnv if spec.settings["memory"] == "shared" else SubprocVectorEnv
    envs = kind([env_maker(spec)] * spec.num_envs)

    def step(i: int) -> int:
        _, _, terminated, truncated, _ = envs.step(table[i % ROWS])
        # Resetting the ended ones at once is what Tianshou's own Collector does.
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            envs.reset(ended)
        return spec.num_envs

    try:
        envs.seed(spec.seed)
        envs.reset()
        yield step
    finally:
        envs.close()


if __name__ == "__main__":
    run(build)
