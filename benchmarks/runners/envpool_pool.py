"""EnvPool: the same tasks written in C++, stepped by a pool of threads in this process."""

# mypy: disable-error-code="import-not-found"
# The library lives in an environment of its own, where mypy does not run.

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import envpool
import numpy as np

from benchmarks.runners.common import ROWS, RealSteps, Spec, action_table, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def build(spec: Spec) -> Iterator[Callable[[int], int]]:
    """Yield a step function; a `batch_size` in the settings below `num_envs` is first come first served."""
    # EnvPool's Atari has the same preset built in: skip 4, 84 x 84 grey, stack 4.
    task = spec.env_id.rpartition("/")[2]
    settings: dict[str, Any] = {"batch_size": spec.num_envs, **spec.settings}
    envs: Any = envpool.make(task, env_type="gymnasium", num_envs=spec.num_envs, seed=spec.seed, **settings)
    table = action_table(int(envs.action_space.n), settings["batch_size"], spec.seed, np.int32)
    counter = RealSteps()

    def lock_step(i: int) -> int:
        _, _, terminated, truncated, _ = envs.step(table[i % ROWS])
        return counter.count(terminated, truncated)

    def first_ready(i: int) -> int:
        _, _, terminated, truncated, info = envs.recv()
        envs.send(table[i % ROWS], info["env_id"])
        return counter.count(terminated, truncated)

    try:
        if settings["batch_size"] == spec.num_envs:
            envs.reset()
            yield lock_step
        else:
            envs.async_reset()
            yield first_ready
    finally:
        envs.close()


if __name__ == "__main__":
    run(build)
