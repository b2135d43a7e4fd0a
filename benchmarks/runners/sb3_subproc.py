"""Stable-Baselines3's SubprocVecEnv: one process per environment, pipes and pickle."""

# mypy: disable-error-code="import-not-found"
# The library lives in an environment of its own, where mypy does not run.

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from stable_baselines3.common.vec_env import SubprocVecEnv

from benchmarks.runners.common import ROWS, Spec, action_table, env_maker, num_actions, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def build(spec: Spec) -> Iterator[Callable[[int], int]]:
    """Yield a step function; episodes are reset within the step, so that every row is a step."""
    table = action_table(num_actions(spec), spec.num_envs, spec.seed)
    # fork: the default (forkserver) imports torch in each of the processes, which takes minutes and tens of
    # gigabytes for 256 of them. The start method makes no difference to a step.
    envs = SubprocVecEnv([env_maker(spec)] * spec.num_envs, start_method="fork")

    def step(i: int) -> int:
        envs.step(table[i % ROWS])
        return spec.num_envs

    try:
        envs.seed(spec.seed)
        envs.reset()
        yield step
    finally:
        envs.close()


if __name__ == "__main__":
    run(build)
