"""One life of a ClusterEnv on this host: until the first observation, idle, closed.

Run as `python -m benchmarks.runners.cluster_startup RESULT NUM_ENVS WORKERS IDLE_S`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import psutil

import clusterenv

SETTLE_S = 1.0
"""After the last step the workers may still look for the next one for a moment; that is not idling."""


def cpu_s(pids: list[int]) -> float:
    """Return the processor time that the processes have used so far."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return float(sum(each.user + each.system for each in times))


def live(num_envs: int, workers: int, idle_s: float) -> dict[str, float]:
    """Start, step once, be idle, close; return what each part took."""
    start = time.perf_counter()
    envs = clusterenv.make_vec("CartPole-v1", num_envs=num_envs, cluster=f"local:{workers}")
    try:
        envs.reset(seed=1)
        found = {"first_observation_s": time.perf_counter() - start}
        if idle_s > 0:
            envs.step(envs.action_space.sample())
            time.sleep(SETTLE_S)
            pids = [pid for pid in envs.worker_pids() if pid is not None]
            before, begin = cpu_s(pids), time.perf_counter()
            time.sleep(idle_s)
            elapsed_s = time.perf_counter() - begin
            # Of one core, all workers together.
            found["idle_percent"] = 100.0 * (cpu_s(pids) - before) / elapsed_s
    finally:
        start = time.perf_counter()
        envs.close()
    found["close_s"] = time.perf_counter() - start
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(live(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))))
