"""PufferLib's vectorisers: Multiprocessing (shared memory and busy waiting) and Serial."""

# mypy: disable-error-code="import-not-found"
# The library lives in an environment of its own, where mypy does not run.

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pufferlib.emulation
import pufferlib.vector

from benchmarks.runners.common import ROWS, RealSteps, Spec, action_table, env_maker, num_actions, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def build(spec: Spec) -> Iterator[Callable[[int], int]]:
    """Yield a step function.

    Settings: `backend` (`Multiprocessing` or `Serial`), `num_workers`, `batch_size`, `zero_copy` as
    PufferLib calls them, and `sync_traj`, false for first come first served.
    """
    settings = dict(spec.settings)
    backend = getattr(pufferlib.vector, settings.pop("backend"))
    sync_traj = settings.pop("sync_traj", True)
    creator = partial(pufferlib.emulation.GymnasiumPufferEnv, env_creator=env_maker(spec))
    envs: Any = pufferlib.vector.make(creator, backend=backend, num_envs=spec.num_envs, **settings)
    # `make` refuses this argument of Multiprocessing, though it is the one that lets `recv` take whichever
    # worker is ready instead of the next in line.
    envs.sync_traj = sync_traj
    table = action_table(num_actions(spec), envs.agents_per_batch, spec.seed, np.int32)
    counter = RealSteps()

    def step(i: int) -> int:
        envs.send(table[i % ROWS])
        _, _, terminated, truncated, *_ = envs.recv()
        return counter.count(terminated, truncated)

    try:
        envs.async_reset(spec.seed)
        envs.recv()
        yield step
    finally:
        envs.close()


if __name__ == "__main__":
    run(build)
