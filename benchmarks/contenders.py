"""Who is measured: the runner file of each contender, where its library lives, and the settings to try.

Several settings mean that the harness tries each in a short slice and measures the fastest one in the
rounds, per workload. So a peer is always shown at its best setting on this machine, not at its default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.workloads import Workload

Mode = Literal["lock step", "first ready", "limit", "policy"]
Settings = dict[str, Any]

SYNC = "sync"
LIMIT = "bare-loop"
OURS: dict[str, str] = {"lock step": "clusterenv", "first ready": "clusterenv-async", "policy": "clusterenv-rollout"}
"""Which of our contenders another one is compared with, by its mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One way to step a batch of environments."""

    name: str
    title: str
    runner: str
    """File in `benchmarks/runners`."""
    module: str
    """Import name of the library; it tells whether this interpreter can stand in for a missing venv."""
    candidates: Callable[[Workload, int], list[Settings]]
    """The settings worth trying for a workload on a number of workers, the likely best one first."""
    mode: Mode = "lock step"
    venv: str | None = None
    """Environment made by `benchmarks.setup_peers`; None for the interpreter that runs the harness."""
    own_venv_only: bool = False
    """The versions in the venv are the point, so that no other interpreter will do."""


def _only(settings: Settings) -> Callable[[Workload, int], list[Settings]]:
    return lambda workload, workers: [settings]


def _cluster_lock_step(workload: Workload, workers: int) -> list[Settings]:
    # A head with a core of its own spins instead of sleeping; with few cores that core is worth more to a worker.
    spared = (workers - 1, workers - 2) if workers >= 8 else ()
    return [{"num_workers": w} for w in (workers, *spared)]


def _cluster_first_ready(workload: Workload, workers: int) -> list[Settings]:
    n = workload.num_envs
    found: list[Settings] = [{"min_slots": k} for k in _distinct(n // workers, n // 2, n // 4) if k >= 1]
    return found if workers < 8 else [*found, {"min_slots": n // workers, "num_workers": workers - 1}]


def _torchrl(workload: Workload, workers: int) -> list[Settings]:
    blocks = ["sync", "serial"] if workload.num_envs % workers == 0 else []
    # One process per environment is what its tutorials show; beyond 64 it only takes longer to start.
    return [{"block": block} for block in [*blocks, *(["one"] if workload.num_envs <= 64 else [])]]


def _puffer_lock_step(workload: Workload, workers: int) -> list[Settings]:
    # Its main process busy-waits like its workers do, so that leaving it a core of its own comes first.
    spare = [w for w in range(workers - 1, 0, -1) if workload.num_envs % w == 0]
    counts = [w for w in _distinct(*spare[:1], workers, 2 * workers) if workload.num_envs % w == 0]
    return [{"backend": "Multiprocessing", "num_workers": w, "overwork": True} for w in counts]


def _puffer_first_ready(workload: Workload, workers: int) -> list[Settings]:
    n = workload.num_envs
    found: list[Settings] = []
    for w in (workers, 2 * workers):
        if w < 2 or n % w:
            continue
        base = {"backend": "Multiprocessing", "num_workers": w, "overwork": True, "sync_traj": False}
        found.append({**base, "batch_size": n // w})
        # Several workers per batch: either a fixed neighbourhood without a copy, or any of them with one.
        if w > 2 and w % 2 == 0:
            found += [{**base, "batch_size": n // 2, "zero_copy": zero_copy} for zero_copy in (True, False)]
    return found


def _envpool_lock_step(workload: Workload, workers: int) -> list[Settings]:
    found: list[Settings] = [{"num_threads": w} for w in _distinct(workers, 1, 2 * workers)]
    return [*found, {"num_threads": workers, "thread_affinity_offset": 0}]


def _envpool_first_ready(workload: Workload, workers: int) -> list[Settings]:
    n = workload.num_envs
    found: list[Settings] = [
        {"num_threads": w, "batch_size": b}
        for w in _distinct(workers, max(1, workers - 1))
        for b in _distinct(n // 2, n // 4)
    ]
    return [*found, {"num_threads": workers, "batch_size": n // 2, "thread_affinity_offset": 0}]


def _distinct(*values: int) -> list[int]:
    return list(dict.fromkeys(values))


CONTENDERS: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        Contender(
            name=LIMIT,
            title="bare loop (limit)",
            runner="bare_loop",
            module="gymnasium",
            mode="limit",
            candidates=_only({}),
        ),
        Contender(
            name=SYNC,
            title="Gymnasium SyncVectorEnv",
            runner="gym_vector",
            module="gymnasium",
            candidates=_only({"mode": "sync"}),
        ),
        Contender(
            name="async",
            title="Gymnasium AsyncVectorEnv",
            runner="gym_vector",
            module="gymnasium",
            candidates=_only({"mode": "async"}),
        ),
        Contender(
            name="clusterenv",
            title="ClusterEnv",
            runner="cluster_env",
            module="clusterenv",
            candidates=_cluster_lock_step,
        ),
        Contender(
            name="clusterenv-async",
            title="ClusterEnv send/recv",
            runner="cluster_env",
            module="clusterenv",
            mode="first ready",
            candidates=_cluster_first_ready,
        ),
        *(
            Contender(
                name=f"clusterenv-{where}",
                title=title,
                runner="cluster_policy",
                module="clusterenv",
                mode="policy",
                candidates=_only({"where": where}),
            )
            for where, title in (
                ("rollout", "ClusterEnv, policy on workers, lock step"),
                ("stream", "ClusterEnv, policy on workers, stream"),
                ("head", "ClusterEnv, policy on the head"),
            )
        ),
        Contender(
            name="sb3",
            title="SB3 SubprocVecEnv",
            runner="sb3_subproc",
            module="stable_baselines3",
            venv="sb3",
            candidates=_only({}),
        ),
        Contender(
            name="torchrl",
            title="TorchRL ParallelEnv",
            runner="torchrl_parallel",
            module="torchrl",
            venv="torchrl",
            candidates=_torchrl,
        ),
        Contender(
            name="tianshou",
            title="Tianshou SubprocVectorEnv",
            runner="tianshou_subproc",
            module="tianshou",
            venv="tianshou",
            candidates=_only({"memory": "pipe"}),
        ),
        Contender(
            name="tianshou-shmem",
            title="Tianshou ShmemVectorEnv",
            runner="tianshou_subproc",
            module="tianshou",
            venv="tianshou",
            candidates=_only({"memory": "shared"}),
        ),
        Contender(
            name="pufferlib",
            title="PufferLib",
            runner="puffer_vector",
            module="pufferlib",
            venv="pufferlib-unpinned",
            candidates=_puffer_lock_step,
        ),
        Contender(
            name="pufferlib-async",
            title="PufferLib send/recv",
            runner="puffer_vector",
            module="pufferlib",
            venv="pufferlib-unpinned",
            mode="first ready",
            candidates=_puffer_first_ready,
        ),
        Contender(
            name="pufferlib-serial",
            title="PufferLib Serial",
            runner="puffer_vector",
            module="pufferlib",
            venv="pufferlib-unpinned",
            candidates=_only({"backend": "Serial"}),
        ),
        Contender(
            name="pufferlib-pinned",
            title="PufferLib (its pins)",
            runner="puffer_vector",
            module="pufferlib",
            venv="pufferlib",
            own_venv_only=True,
            candidates=_puffer_lock_step,
        ),
        Contender(
            name="pufferlib-pinned-async",
            title="PufferLib (its pins) send/recv",
            runner="puffer_vector",
            module="pufferlib",
            venv="pufferlib",
            own_venv_only=True,
            mode="first ready",
            candidates=_puffer_first_ready,
        ),
        Contender(
            name="envpool",
            title="EnvPool (C++ environments)",
            runner="envpool_pool",
            module="envpool",
            venv="envpool",
            candidates=_envpool_lock_step,
        ),
        Contender(
            name="envpool-async",
            title="EnvPool (C++) send/recv",
            runner="envpool_pool",
            module="envpool",
            venv="envpool",
            mode="first ready",
            candidates=_envpool_first_ready,
        ),
    )
}


def contenders_of(suite: str) -> list[str]:
    """Who is measured in a suite, unless the user names them: policies have suites of their own."""
    if suite.startswith("policy"):
        return [LIMIT, SYNC, "async", *(name for name, each in CONTENDERS.items() if each.mode == "policy")]
    return [name for name, each in CONTENDERS.items() if each.mode != "policy"]
