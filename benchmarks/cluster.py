"""What the network costs: the same batches on this host over shared memory, and over TCP with and without CURVE.

python -m benchmarks.cluster [--rounds 5] [--out DIR]

All ways are measured in turn, round after round; the table shows medians over rounds, with the lowest and highest.
"""

from __future__ import annotations

import json
import pathlib  # noqa: TC003 - tyro reads the annotations
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

import clusterenv
from benchmarks.paths import RESULTS
from benchmarks.stats import spread
from clusterenv import Local, Tcp

Way = Callable[[int], "Local | Tcp"]
WAYS: dict[str, Way] = {
    "local": Local,
    "tcp": lambda workers: Tcp(nodes=1, workers=workers),
    "insecure": lambda workers: Tcp(nodes=1, workers=workers, insecure=True),
}


@dataclass(frozen=True, kw_only=True)
class Args:
    """Measure shared memory against TCP."""

    rounds: int = 5
    """how often all ways are measured"""
    seconds: float = 2.0
    """length of one measurement"""
    out: pathlib.Path = RESULTS
    """folder for the JSON file"""


def step_latency(cluster: Way, seconds: float) -> float:
    """The median time of a step of 64 CartPoles on one worker, in milliseconds."""
    with clusterenv.make_vec("CartPole-v1", num_envs=64, cluster=cluster(1)) as envs:
        envs.reset(seed=1)
        times = _step_times(envs, seconds)
    return float(np.median(times)) * 1e3


def pixel_rate(cluster: Way, seconds: float) -> float:
    """Megabytes of observations per second, 64 environments with 84 x 84 x 4 bytes each on one worker."""
    with clusterenv.make_vec(
        "benchmarks.envs:Pixels-v0", num_envs=64, cluster=cluster(1), vector_kwargs={"copy": False}
    ) as envs:
        observations, _ = envs.reset(seed=1)
        times = _step_times(envs, seconds)
        return float(observations.nbytes * len(times) / sum(times)) / 1e6


def _step_times(envs: Any, seconds: float) -> list[float]:
    actions = np.zeros(envs.num_envs, np.int64)
    for _ in range(20):
        envs.step(actions)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        envs.step(actions)
        times.append(time.perf_counter() - began)
    return times


def _agent() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(1)

    class Agent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.actor = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
            self.critic = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

        def get_value(self, x: Any) -> Any:
            return self.critic(x)

        def get_action_and_value(self, x: Any, action: Any = None) -> Any:
            chosen: Any = torch.distributions.Categorical(logits=self.actor(x))
            action = chosen.sample() if action is None else action
            return action, chosen.log_prob(action), chosen.entropy(), self.critic(x)

    return Agent()


def rollout_rate(cluster: Way, seconds: float) -> float:
    """Environment steps per second of `rollout(128)`, 64 LunarLanders on two workers with a 64-64 policy."""
    return _played(cluster, seconds, stream=False)


def stream_rate(cluster: Way, seconds: float) -> float:
    """The same with `stream(steps=128)`."""
    return _played(cluster, seconds, stream=True)


def _played(cluster: Way, seconds: float, *, stream: bool) -> float:
    with clusterenv.make_vec("LunarLander-v3", num_envs=64, cluster=cluster(2)) as envs:
        envs.reset(seed=1)
        envs.attach(_agent(), sync="on-change", seed=1)
        envs.rollout(128)
        steps, began = 0, time.perf_counter()
        if stream:
            with envs.stream(steps=128, slots=32) as batches:
                for batch in batches:
                    steps += batch.steps
                    if time.perf_counter() - began > seconds:
                        break
        else:
            while time.perf_counter() - began < seconds:
                steps += envs.rollout(128).steps
        return steps / (time.perf_counter() - began)


MEASURES: dict[str, tuple[str, Callable[[Way, float], float]]] = {
    "step": ("one step of 64 CartPoles, ms", step_latency),
    "pixels": ("84x84x4 x 64 to the head, MB/s", pixel_rate),
    "rollout": ("rollout, LunarLander 64, steps/s", rollout_rate),
    "stream": ("stream, LunarLander 64, steps/s", stream_rate),
}


def main(args: Args) -> None:
    """Measure, show and save."""
    found: dict[str, dict[str, list[float]]] = {name: {way: [] for way in WAYS} for name in MEASURES}
    for _ in range(args.rounds):
        for name, (_, measure) in MEASURES.items():
            for way, cluster in WAYS.items():
                found[name][way].append(measure(cluster, args.seconds))
    table = Table(
        "measured", "shared memory", "TCP + CURVE", "difference", "TCP / shared memory", "without CURVE / with"
    )
    for name, (title, _) in MEASURES.items():
        local, tcp = found[name]["local"], found[name]["tcp"]
        pairs = list(zip(local, tcp, strict=True))
        bare = [b / a for a, b in zip(tcp, found[name]["insecure"], strict=True)]
        columns = [local, tcp, [b - a for a, b in pairs], [b / a for a, b in pairs], bare]
        table.add_row(title, *(_shown(column) for column in columns))
    Console(width=160).print(table)
    args.out.mkdir(parents=True, exist_ok=True)
    about = {"machine": platform.processor() or platform.machine(), "python": platform.python_version()}
    (args.out / "cluster.json").write_text(json.dumps({"about": about, "found": found}, indent=1) + "\n")


def _shown(values: list[float]) -> str:
    seen = spread(values)
    if seen is None:
        return ""
    return f"{seen.median:,.2f} ({seen.low:,.2f}..{seen.high:,.2f})"


if __name__ == "__main__":
    main(tyro.cli(Args))
