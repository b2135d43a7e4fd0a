"""How far one head reaches: many nodes without environments on this machine, over real sockets.

python -m benchmarks.scale [--nodes 1 16 64 256 1000] [--out DIR]

Measured for each number of nodes, in a process of its own: how long they take to join, what they cost a head that does
something else, and one that waits and hears their beats, the head's time per environment step in lock step with blocks
of 64, and how long a policy of 10 MB takes to reach 32 of them.
"""

from __future__ import annotations

import json
import pathlib  # noqa: TC003 - tyro reads the annotations
import platform
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import tyro
from gymnasium.vector import AutoresetMode
from rich.console import Console
from rich.table import Table

from benchmarks.paths import RESULTS, ROOT
from clusterenv.clusters import Join
from clusterenv.config import OnLoss, Timeouts
from clusterenv.env.opening import Plan, open_batch
from clusterenv.node.remote import RemoteNode
from clusterenv.sync.codec import Decoded, EncodeOnce
from clusterenv.sync.versions import Version
from clusterenv.sync.weights import WeightSpec
from clusterenv.transport.shared import SharedArrays
from clusterenv.transport.weights import weights_layout
from clusterenv.wire.envs import BuildOrder

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = 64
PER_PROCESS = 250
_ONE = """
import json, sys
from benchmarks.scale import Args, measure
nodes, steps_s, idle_s = map(float, sys.argv[1:])
print(json.dumps(measure(int(nodes), Args(steps_s=steps_s, idle_s=idle_s))))
"""
# How long weights may be on their way.
_WEIGHTS_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Args:
    """Measure a head with many nodes."""

    nodes: list[int] = field(default_factory=lambda: [1, 16, 64, 256, 1000])
    """how many nodes, one measurement each"""
    steps_s: float = 5.0
    """how long steps are measured"""
    idle_s: float = 5.0
    """how long a head is watched that does something else, and one that waits"""
    out: pathlib.Path = RESULTS
    """folder for the JSON file"""


class StubLauncher:
    """Starts stub nodes, many in a process."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self._processes: list[subprocess.Popen[bytes]] = []

    def script(self, job: Any) -> str:
        """Nothing to show."""
        return ""

    def start(self, job: Any) -> None:
        """Start the processes."""
        head = job.arguments[job.arguments.index("--head") + 1]
        for first in range(0, self.nodes, PER_PROCESS):
            count = str(min(PER_PROCESS, self.nodes - first))
            words = [sys.executable, "-m", "benchmarks.stub_nodes", "--head", head, "--first", str(first)]
            process = subprocess.Popen([*words, "--count", count], stdin=subprocess.PIPE, bufsize=0)
            assert process.stdin is not None
            process.stdin.write(job.keys.encode() + b"\n")
            self._processes.append(process)

    def restart(self, node: int) -> bool:
        """Never."""
        return False

    def status(self) -> str:
        """Nothing to tell."""
        return "stub nodes"

    def failure(self) -> str | None:
        """An exit code, if there is one."""
        codes = [process.poll() for process in self._processes]
        return f"stub processes ended: {codes}" if any(codes) else None

    def logs(self) -> dict[str, str]:
        """They write nothing."""
        return {}

    def close(self, limit_s: float) -> None:
        """End the processes."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            process.wait(max(5.0, limit_s))


def measure(nodes: int, args: Args) -> dict[str, Any]:
    """One head with this many nodes."""
    cluster = Join(nodes=nodes, bind="127.0.0.1", wait_s=60.0)
    memory_before = psutil.Process().memory_info().rss
    order = BuildOrder([], [0] * (BLOCK * nodes), AutoresetMode.NEXT_STEP, False)
    node = RemoteNode(order, BLOCK * nodes, cluster, StubLauncher(nodes))
    plan = Plan(
        cluster, BLOCK * nodes, lambda: node, "same", AutoresetMode.NEXT_STEP, OnLoss.RAISE, Timeouts(start_s=120.0)
    )
    began = time.perf_counter()
    engine, _, _ = open_batch(plan)
    joined_s = time.perf_counter() - began
    try:
        found = {"nodes": nodes, "joined_s": joined_s}
        found |= _idle(node, args.idle_s) | _steps(engine, nodes, args)
        found["memory_mb"] = (psutil.Process().memory_info().rss - memory_before) / 1e6
        if nodes >= 32:
            found |= _weights(node, 32)
    finally:
        node.close(5.0)
    return found


def _idle(node: RemoteNode, seconds: float) -> dict[str, Any]:
    """What nodes cost that do nothing: beside a learner that does not listen, and in a call that waits for them."""

    def listen() -> None:
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            node.wait_any(left)

    away = _share(lambda: time.sleep(seconds))
    return {"idle_core_share": away, "waiting_core_share": _share(listen)}


def _share(act: Callable[[], None]) -> float:
    """The processor time of this process meanwhile, in cores."""
    cpu, began = _cpu(), time.perf_counter()
    act()
    return (_cpu() - cpu) / (time.perf_counter() - began)


def _steps(engine: Any, nodes: int, args: Args) -> dict[str, Any]:
    engine.arena.action[0][:] = 1
    for _ in range(3):
        engine.begin_step(None)
        engine.end_step(None)
    rounds, cpu, began = 0, _cpu(), time.perf_counter()
    while time.perf_counter() - began < args.steps_s:
        engine.begin_step(None)
        engine.end_step(None)
        rounds += 1
    wall, steps = time.perf_counter() - began, rounds * nodes * BLOCK
    return {"steps_per_s": steps / wall, "head_us_per_step": (_cpu() - cpu) / steps * 1e6, "rounds": rounds}


def _weights(node: RemoteNode, count: int) -> dict[str, Any]:
    """10 MB to each of `count` nodes, several times; the slowest round tells about the worst node."""
    weights = {"w": np.zeros(2_500_000, np.float32)}
    spec = WeightSpec.of(weights)
    memory = SharedArrays.create(weights_layout(spec))
    times = []
    for version in range(5):
        weights["w"] += 1.0
        once = EncodeOnce(spec, "fp32")
        once.offer(Version(0, version), spec.flatten(weights))
        began = time.perf_counter()
        encoded, decoded = once.encode(None), Decoded(Version(0, version), spec.flatten(weights))
        for host in range(count):
            node._crew.hosts[host].memories.add(memory.number)
            node.give(host, memory, encoded, decoded)
        while not all(node.may_give(host, memory) for host in range(count)):
            node.wait_any(0.1)
            if time.perf_counter() - began > _WEIGHTS_S:
                raise TimeoutError(f"not all of {count} nodes had taken their weights within {_WEIGHTS_S} s")
        times.append(time.perf_counter() - began)
    memory.close()
    return {"weights_to_32_s": {"median": float(np.median(times)), "worst": max(times)}}


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _in_fresh_process(nodes: int, args: Args) -> dict[str, Any]:
    """Memory that an earlier measurement has freed would be used again, and not counted."""
    words = [sys.executable, "-c", _ONE, str(nodes), str(args.steps_s), str(args.idle_s)]
    ended = subprocess.run(words, stdout=subprocess.PIPE, check=True, cwd=ROOT)
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def main(args: Args) -> None:
    """Measure, show and save."""
    console = Console(width=150)
    found = [_in_fresh_process(nodes, args) for nodes in args.nodes]
    shares = ("idle, % of a core", "waiting, % of a core")
    table = Table("nodes", "joined s", *shares, "memory MB", "steps/s", "head us/step", "10 MB to 32: worst s")
    for each in found:
        worst = each.get("weights_to_32_s", {}).get("worst")
        percent = [100 * each[name] for name in ("idle_core_share", "waiting_core_share")]
        cells = (each["joined_s"], *percent, each["memory_mb"], each["steps_per_s"])
        last = "" if worst is None else f"{worst:.2f}"
        table.add_row(str(each["nodes"]), *(f"{cell:,.2f}" for cell in cells), f"{each['head_us_per_step']:.2f}", last)
    console.print(table)
    args.out.mkdir(parents=True, exist_ok=True)
    about = {"machine": platform.processor() or platform.machine(), "python": platform.python_version()}
    (args.out / "scale.json").write_text(json.dumps({"about": about, "block": BLOCK, "found": found}, indent=1) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Args))
