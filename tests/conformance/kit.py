"""What the conformance tests share: names, references, and ways to hurt a cluster."""

from __future__ import annotations

import functools
import os
import signal
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import FlattenObservation, TimeLimit

from tests.conformance.envs import Shifted, halved
from tests.zoo import wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence

    from gymnasium.vector import VectorEnv

    from clusterenv import ClusterEnv

# Every kind of cluster that the suite knows. Behind their launchers the engines are the same as tcp: unless others are
# asked for with --engines, all tests run over the first three, and `test_engines` takes a walk through all of it.
USUAL, ENGINES = ("inproc", "local", "tcp"), ("ssh", "slurm", "ray")
WALK = ("ssh", "slurm")
TEXTS = {"inproc": "inproc", "local": "local:2", "tcp": "tcp:nodes=2,workers=1"}
# With processes to kill, and values that have to travel; with other hosts; with hosts that can be started again.
beyond = pytest.mark.kinds("local", "tcp", *ENGINES)
abroad = pytest.mark.kinds("tcp", *ENGINES)
replaceable = pytest.mark.kinds("tcp", *ENGINES)

TRIAL, SAMPLE = "tests.conformance.envs:Conformance/Trial-v0", "tests.conformance.envs:Conformance/Sample-v0"
# Two workers get three and two slots.
NUM_ENVS = 5
FIRST, SECOND = [0, 1, 2], [3, 4]
LIMIT_S = 30.0
# With this seed no trial environment ends within nine steps.
QUIET = 240

DRESS: tuple[Any, ...] = (
    functools.partial(TimeLimit, max_episode_steps=6),
    FlattenObservation,
    Shifted,
    functools.partial(Shifted, by=0.25),
    halved,
)


def slots(count: int = NUM_ENVS) -> list[dict[str, Any]]:
    """Each environment knows its slot; episodes have at most 15, 14, ... steps."""
    return [{"slot": slot, "length": 15 - slot} for slot in range(count)]


def reference(
    env_id: str = TRIAL,
    *,
    mode: str = "NextStep",
    wrappers: Sequence[Any] = (),
    slot_kwargs: Sequence[dict[str, Any]] | None = None,
    **kwargs: Any,
) -> SyncVectorEnv:
    """The same batch, by Gymnasium."""

    def factory(mine: dict[str, Any]) -> Any:
        def make() -> Any:
            env = gymnasium.make(env_id, **kwargs, **mine)
            for wrapper in wrappers:
                env = wrapper(env)
            return env

        return make

    return SyncVectorEnv([factory(mine) for mine in slot_kwargs or [{}] * NUM_ENVS], autoreset_mode=mode)


def episodes(envs: VectorEnv[Any, Any, Any], steps: int, seed: int) -> list[Any]:
    """Everything that a batch answers to a seeded reset, seeded actions, and resets of what has ended."""
    envs.action_space.seed(seed)
    answers: list[Any] = [envs.reset(seed=seed)]
    for _ in range(steps):
        answers.append(envs.step(envs.action_space.sample()))
        ended = answers[-1][2] | answers[-1][3]
        if ended.any():
            answers.append(envs.reset(options={"reset_mask": ended}))
    return answers


def actions(envs: VectorEnv[Any, Any, Any], value: int = 1) -> Any:
    """The same action for every slot."""
    return np.full(envs.num_envs, value)


def lost(infos: dict[str, Any], count: int = NUM_ENVS) -> list[int]:
    """The rows that tell that their worker was lost."""
    found: list[int] = np.flatnonzero(infos.get("_worker_lost", np.zeros(count))).tolist()
    return found


def kill(envs: ClusterEnv, worker: int) -> None:
    """Kill a worker, and wait until it is gone."""
    pid = envs.worker_pids()[worker]
    assert pid is not None
    kill_process(psutil.Process(pid))


def kill_node(envs: ClusterEnv, worker: int) -> None:
    """Kill the node of this worker, which is on this host."""
    process = psutil.Process(envs.worker_pids()[worker])
    nodes = [each for each in process.parents() if " -m clusterenv node " in f"{' '.join(each.cmdline())} "]
    kill_process(nodes[0])  # above it there may be a shell that starts it again
    wait_until(lambda: ended(process), LIMIT_S)


def kill_process(process: psutil.Process) -> None:
    """Kill a process, and wait until it is gone."""
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: ended(process), LIMIT_S)


def ended(process: psutil.Process) -> bool:
    """Whether a process has ended."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def wait_at(gate: pathlib.Path) -> str:
    """How an environment is told to wait until this file is there."""
    return f"wait {gate}"


def inside(gate: pathlib.Path) -> None:
    """Wait until an environment waits at the gate."""
    wait_until(gate.with_name(f"{gate.name}-inside").exists, LIMIT_S)
