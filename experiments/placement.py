"""Where should the policy act? Steps per second with inference on the workers and on the head, as the network grows.

python -m experiments.placement                                   # on this machine's cores
python -m experiments.placement --device cuda --workers 15 --envs-per-worker 16

Each cell is a process of its own with a time limit. By turns it lets all cores step the same environments in a bare
loop, which is the limit, takes batches without learning from them, which shows what acting alone allows, and takes them
with IMPALA's update after each. Medians of all turns: a table, a JSON file, and docs/results/placement.md.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import psutil
import tyro
from rich.console import Console
from rich.table import Table

from experiments import bare, placement_report

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterenv.env.vector import ClusterEnv
    from clusterenv.learners.common.source import Source

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
START_S = 120.0  # to import torch, to export the policy, to start the workers
SLACK_S = 60.0  # of a turn, for the batches that were played ahead; a large network learns from one in seconds
IDLE_S = 0.3  # those who use less than a tenth of a core, all together, for so long wait for somebody

NETWORKS: dict[str, dict[str, Any]] = {
    "mlp 64-64": {"body": "mlp"},
    "shallow": {"body": "shallow"},
    "deep, LSTM 256": {"body": "deep", "lstm": 256},
}


@dataclass(frozen=True, kw_only=True)
class Args:
    """Measure every network with inference on the workers and on the head."""

    device: str = "cpu"
    """where the head infers and learns"""
    workers: int = max(1, (os.cpu_count() or 2) - 1)
    """worker processes"""
    envs_per_worker: int = 16
    """environments of each"""
    networks: list[str] = field(default_factory=lambda: list(NETWORKS))
    """which of the networks"""
    step_us: list[float] = field(default_factory=lambda: [100.0, 1000.0])
    """how long a step of the made-up environment takes, in microseconds"""
    atari: bool = True
    """Pong too, where it is installed"""
    inference_batch: int | None = None
    """rows of an inference batch on the head; half of the environments if it is not given"""
    torch_threads: int = 1
    """threads of the head on a CPU"""
    cuda_graphs: Literal["auto", "on", "off"] = "auto"
    """of inference on the head, and of updates"""
    seconds: float = 4.0
    """how long each part of a turn is measured"""
    turns: int = 3
    """how often all parts of a cell are measured"""
    out: pathlib.Path = RESULTS
    """folder for placement-DEVICE.json; the page placement.md there is made of all of these"""
    cell: str | None = None
    """used by the program itself: one cell, as JSON"""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One network, environment and placement."""

    network: str
    env: str
    env_id: str
    env_args: tuple[str, ...]
    inference: str


def cells(args: Args) -> list[Cell]:
    """All that is to be measured, worker and head by turns."""
    found = []
    for network in args.networks:
        image = NETWORKS[network]["body"] != "mlp"
        worlds: list[tuple[str, str, tuple[str, ...]]] = [
            (f"{us:g} us", "experiments.busy:Busy-v0", (f"step_us={us:g}", f"image={str(image).lower()}"))
            for us in args.step_us
        ]
        if image and args.atari and has_atari():
            worlds.append(("Pong", "clusterenv/AtariPong-v0", ()))
        for env, env_id, env_args in worlds:
            found += [
                Cell(network=network, env=env, env_id=env_id, env_args=env_args, inference=where)
                for where in ("worker", "head")
            ]
    return found


def has_atari() -> bool:
    """Whether the games can be played here: the emulator and what shrinks its screens."""
    return all(importlib.util.find_spec(name) is not None for name in ("ale_py", "cv2"))


def run(cell: Cell, args: Args) -> dict[str, Any]:
    """Measure one cell in a process of its own."""
    words = [sys.executable, "-m", "experiments.placement", "--cell", json.dumps(asdict(cell))]
    numbers = ("workers", "envs_per_worker", "inference_batch", "torch_threads", "seconds", "turns")
    for name in ("device", "cuda_graphs", *numbers):
        value = getattr(args, name)
        words += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    limit_s = START_S + args.turns * (6 * args.seconds + SLACK_S)
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, env=environ, cwd=ROOT, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return {**asdict(cell), "error": f"not done within {limit_s:.0f} s"}
    if done.returncode:
        return {**asdict(cell), "error": done.stderr.strip().splitlines()[-1][:300] if done.stderr else "no words"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**asdict(cell), **found}


def measure(cell: Cell, args: Args) -> dict[str, Any]:
    """Turn by turn the limit, acting, and learning."""
    import torch

    from clusterenv.learners.common.environments import environments
    from clusterenv.learners.common.source import source_for
    from clusterenv.learners.impala import IMPALA, IMPALAConfig

    slots = args.workers * args.envs_per_worker
    config = IMPALAConfig(
        env_id=cell.env_id,
        env_args=cell.env_args,
        cluster=f"local:{args.workers}",
        num_envs=slots,
        stream_slots=max(1, slots // 2),
        total_steps=10**9,
        device=args.device,
        torch_threads=args.torch_threads,
        cuda_graphs=args.cuda_graphs,
        inference=cell.inference,  # type: ignore[arg-type]
        inference_batch=args.inference_batch if cell.inference == "head" else None,
        **NETWORKS[cell.network],
    )
    torch.set_num_threads(args.torch_threads)
    limit = bare.BareLoops(cell.env_id, cell.env_args, os.cpu_count() or 1, args.envs_per_worker)
    with limit, environments(config, config.cluster) as envs:
        updater = IMPALA(config).make_updater(envs.single_observation_space, envs.single_action_space)
        with source_for(envs, updater.acting, config) as source:
            # What the workers played ahead while the limit was measured took no time.
            ahead = 2 + -(-config.stream_buffers * slots // config.batch_slots)

            def learn(batch: Any) -> None:
                updater.update(batch.to(torch, args.device), 1.0, lambda: source.publish(updater.acting))

            turns = [
                {
                    "limit": _limit(limit, envs, args.seconds),
                    "acting": _rate(source, args.seconds, lambda batch: None, ahead),
                    "learning": _rate(source, args.seconds, learn, ahead),
                }
                for _ in range(args.turns)
            ]
    weights = sum(tensor.numel() for tensor in updater.acting.state_dict().values())
    return {"parameters": weights, **medians(turns), "turns": turns}


def _limit(loops: bare.BareLoops, envs: ClusterEnv, seconds: float) -> dict[str, Any]:
    """Steps per second of the bare loops, once workers and head have played ahead as far as they may."""
    here = [psutil.Process(pid) for pid in (os.getpid(), *envs.worker_pids()) if pid is not None]
    end, spent_s = time.monotonic() + START_S, -1.0
    while (now_s := sum(sum(process.cpu_times()[:2]) for process in here)) > spent_s + IDLE_S / 10:
        if time.monotonic() > end:
            raise RuntimeError(f"the workers have not come to rest within {START_S:.0f} s.")
        spent_s = now_s
        time.sleep(IDLE_S)
    return {"steps_per_s": round(loops.steps_per_s(seconds))}


def medians(turns: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Of everything that was measured, and of the shares of the limit, each with the limit of its own turn.

    Example:
        >>> turn = {"limit": {"steps_per_s": 100}, "acting": {"steps_per_s": 90}, "learning": {"steps_per_s": 80}}
        >>> told = medians([turn])
        >>> told["acting_steps_per_s"], told["learning_of_limit"]
        (90, 0.8)
    """
    told: dict[str, Any] = {}
    for part, numbers in turns[0].items():
        for name in numbers:
            middle = statistics.median(turn[part][name] for turn in turns)
            told[f"{part}_{name}"] = round(middle) if name == "steps_per_s" else round(middle, 3)
    for part in ("acting", "learning"):
        shares = [turn[part]["steps_per_s"] / turn["limit"]["steps_per_s"] for turn in turns]
        told[f"{part}_of_limit"] = round(statistics.median(shares), 3)
    return told


def _rate(source: Source, seconds: float, use: Callable[[Any], None], ahead: int) -> dict[str, Any]:
    """Steps per second, after so many batches; how old the data was, and what inference tells of itself."""
    for _ in range(ahead):
        use(source.next())
    before = source.stats()["time_s"]
    steps, lags = 0, []
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        batch = source.next()
        use(batch)
        steps += batch.steps
        lags.append(float(batch.lag.mean()))
    rate = steps / (time.perf_counter() - began)
    told: dict[str, Any] = {"steps_per_s": round(rate), "lag": round(sum(lags) / len(lags), 2)}
    stats = source.stats()
    if "env" in before:  # what workers do with their time they tell if they act, in microseconds for a step of a slot
        spent = {name: stats["time_s"][name] - before[name] for name in ("env", "policy", "idle")}
        told |= {f"{name}_us": round(taken / steps * 1e6, 1) for name, taken in spent.items()}
    inference = stats.get("inference")
    if inference:
        told |= {"batch": round(inference["rows"] / max(1, inference["batches"]), 1)}
        told |= {f"{name}_ms": round(inference[f"{name}_s"] * 1000, 3) for name in ("p50", "p99")}
    return told


def machine(device: str) -> str:
    """What it was measured on."""
    here = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    if device == "cpu":
        return here
    import torch

    return f"{here}, {torch.cuda.get_device_name()}, torch {torch.__version__}"


def table(lines: list[dict[str, Any]]) -> Table:
    """A row for each network and environment, workers and head side by side."""
    speeds = ("bare loop", "acting, steps/s", "learning, steps/s", "of the bare loop")
    shown = Table("network", "step", "acts on", *speeds, "lag", "batch", "p50 / p99 ms")
    for line in lines:
        first = [line["network"], line["env"], line["inference"]]
        if "error" in line:
            shown.add_row(*first, line["error"])
            continue
        rates = [f"{line[f'{part}_steps_per_s']:,}" for part in ("limit", "acting", "learning")]
        shares = f"{line['acting_of_limit']:.2f}, {line['learning_of_limit']:.2f}"
        latency = f"{line['learning_p50_ms']} / {line['learning_p99_ms']}" if "learning_p50_ms" in line else ""
        shown.add_row(*first, *rates, shares, str(line["learning_lag"]), str(line.get("learning_batch", "")), latency)
    return shown


def main(args: Args) -> None:
    """All cells; a table and a JSON file, written after each."""
    if args.cell is not None:
        given = json.loads(args.cell)
        cell = Cell(**{**given, "env_args": tuple(given["env_args"])})
        sys.stdout.write(json.dumps(measure(cell, args)) + "\n")
        return
    console = Console(width=140)
    about = {
        "command": " ".join(["python -m experiments.placement", *sys.argv[1:]]),
        "machine": machine(args.device),
        "atari": args.atari and has_atari(),
        "load": ", ".join(f"{load:.1f}" for load in os.getloadavg()),
    }
    path = args.out / f"placement-{args.device.partition(':')[0]}.json"
    lines: list[dict[str, Any]] = []
    args.out.mkdir(parents=True, exist_ok=True)
    for cell in cells(args):
        lines.append(run(cell, args))
        console.print(json.dumps(lines[-1]), soft_wrap=True)
        settings = {name: str(value) for name, value in asdict(args).items() if name not in ("cell", "out")}
        path.write_text(json.dumps({**about, "settings": settings, "cells": lines}, indent=1) + "\n")
    console.print(table(lines))
    placement_report.write(args.out)


if __name__ == "__main__":
    main(tyro.cli(Args))
