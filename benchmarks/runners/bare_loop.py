"""The limit: one process per core, each a plain loop over its share of the environments, nothing else.

No observation is kept and nobody waits for anybody, so no vectoriser over the same environments can be
faster except by luck.
"""

from __future__ import annotations

import multiprocessing as mp
import time
from typing import TYPE_CHECKING, Any

from benchmarks.runners.common import (
    ROWS,
    Sample,
    Spec,
    action_table,
    env_maker,
    num_actions,
    run_sampler,
    warm,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Barrier

START_LIMIT_S = 120.0


def sample(spec: Spec) -> Sample:
    """Run the loops at the same time and return the sum of their rates over one slice."""
    fork = mp.get_context("fork")
    barrier = fork.Barrier(spec.workers)
    answers: Queue[Sample] = fork.Queue()
    actions = num_actions(spec)
    shares = [len(range(w, spec.num_envs, spec.workers)) for w in range(spec.workers)]
    loops = [
        fork.Process(target=_loop, args=(spec, share, actions, spec.seed + w, barrier, answers), daemon=True)
        for w, share in enumerate(shares)
    ]
    for loop in loops:
        loop.start()
    limit = START_LIMIT_S + spec.warmup_s + spec.seconds
    samples = [answers.get(timeout=limit) for _ in loops]
    for loop in loops:
        loop.join(timeout=10.0)
    # Each loop stops at its own moment: the rates may be added, the counts may not.
    rate = sum(each.steps / each.seconds for each in samples)
    return Sample(round(rate * spec.seconds), spec.seconds)


def _loop(spec: Spec, num_envs: int, actions: int, seed: int, barrier: Barrier, answers: Queue[Sample]) -> None:
    make = env_maker(spec)
    envs = [make() for _ in range(num_envs)]
    for i, env in enumerate(envs):
        env.reset(seed=seed + i)
    table = [list(row) for row in action_table(actions, num_envs, seed)]
    barrier.wait(timeout=START_LIMIT_S)
    _step_until(lambda elapsed_s, steps: warm(elapsed_s, steps, spec, num_envs), envs, table)
    answers.put(_step_until(lambda elapsed_s, steps: elapsed_s >= spec.seconds, envs, table))


def _step_until(done: Callable[[float, int], bool], envs: list[Any], table: list[list[Any]]) -> Sample:
    steps = row = 0
    elapsed_s = 0.0
    start = time.perf_counter()
    while not done(elapsed_s, steps):
        for env, action in zip(envs, table[row % ROWS], strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        steps += len(envs)
        row += 1
        elapsed_s = time.perf_counter() - start
    return Sample(steps, elapsed_s)


if __name__ == "__main__":
    run_sampler(sample)
