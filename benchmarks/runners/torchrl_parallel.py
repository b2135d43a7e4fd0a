"""TorchRL's ParallelEnv: one process per worker, each with a block of environments, shared TensorDicts."""

# mypy: disable-error-code="import-not-found"
# The library lives in an environment of its own, where mypy does not run.

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import torch
from torchrl.envs import GymWrapper, ParallelEnv, SerialEnv

from benchmarks.runners.common import ROWS, Spec, action_table, env_maker, num_actions, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def _single(spec: Spec) -> Any:
    return GymWrapper(env_maker(spec)(), categorical_action_encoding=True)


def _serial(spec: Spec, num_envs: int) -> Any:
    return SerialEnv(num_envs, partial(_single, spec))


def _gym_sync(spec: Spec, num_envs: int) -> Any:
    # TorchRL refuses Gymnasium's default, next-step autoreset.
    mode = gym.vector.AutoresetMode.SAME_STEP
    envs = gym.vector.SyncVectorEnv([env_maker(spec)] * num_envs, autoreset_mode=mode)
    return GymWrapper(envs, categorical_action_encoding=True)


@contextmanager
def build(spec: Spec) -> Iterator[Callable[[int], int]]:
    """Yield a step function.

    `settings["block"]` says what a worker holds: `one` environment (then there are `num_envs` workers), a
    TorchRL `serial` block, or a Gymnasium `sync` block.
    """
    torch.set_num_threads(1)
    block = spec.settings["block"]
    workers = spec.num_envs if block == "one" else spec.workers
    share = spec.num_envs // workers
    makers = {
        "one": partial(_single, spec),
        "serial": partial(_serial, spec, share),
        "sync": partial(_gym_sync, spec, share),
    }
    table = torch.from_numpy(action_table(num_actions(spec), spec.num_envs, spec.seed))
    # fork: the default (spawn) imports torch and torchrl in each process, minutes for 256 of them.
    envs: Any = ParallelEnv(workers, makers[block], mp_start_method="fork")
    try:
        state = envs.reset()
        table = table.reshape(ROWS, *envs.batch_size)

        def step(i: int) -> int:
            nonlocal state
            state["action"] = table[i % ROWS]
            _, state = envs.step_and_maybe_reset(state)
            return spec.num_envs

        yield step
    finally:
        envs.close()


if __name__ == "__main__":
    run(build)
