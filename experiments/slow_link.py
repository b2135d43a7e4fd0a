"""What a slow link does to learning: asynchronous PPO with its workers behind ten megabits per second, rule by rule.

python -m experiments.slow_link --seconds 60                # as root: it makes two hosts in network namespaces

Head and node run on two hosts of their own. Every rule gets the same time, and the same link. Steps and returns
against time go to docs/results/slow-link.json, with a picture beside it.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

from clusterenv.testing import Network

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
PORT, START_S = 5555, 120.0


@dataclass(frozen=True, kw_only=True)
class Args:
    """Train under several sync rules behind a slow link."""

    mbit: float = 10.0
    """the rate of the link, each way; 0 for no limit"""
    rules: list[str] = field(default_factory=lambda: ["on-change", "aps:0.01"])
    """which rules"""
    seconds: float = 60.0
    """how long each is trained"""
    seeds: int = 3
    """how often, with seeds 1, 2, …; the rules take turns"""
    env_id: str = "CartPole-v1"
    """the environment"""
    hidden: int = 256
    """the width of the two hidden layers of actor and critic"""
    epochs: int = 4
    """passes of the learner over each batch, of four gradient steps and so four versions each"""
    out: pathlib.Path = RESULTS
    """folder for the JSON file and the picture"""
    train: str | None = None
    """used by the program itself: the address and the token file of a run, with its rule and seed"""


def measure(args: Args, rule: str, seed: int) -> dict[str, Any]:
    """Train once, head and node on two hosts."""
    with Network(2) as net, tempfile.TemporaryDirectory() as folder:
        head, node = net.hosts
        token = pathlib.Path(folder) / "token"
        run = json.dumps([f"{head.address}:{PORT}", str(token), rule, seed])
        words = [sys.executable, "-m", "experiments.slow_link", "--train", run, "--seconds", str(args.seconds)]
        words += ["--env-id", args.env_id, "--hidden", str(args.hidden), "--epochs", str(args.epochs)]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
        with head.popen(words, env=environ, stdout=subprocess.PIPE, text=True) as training:
            try:
                return _play(args, node, head.address, token, training)
            finally:
                training.kill()


def _play(args: Args, node: Any, address: str, token: pathlib.Path, training: subprocess.Popen[str]) -> dict[str, Any]:
    end = time.monotonic() + START_S
    while not (token.exists() and token.stat().st_size):
        if time.monotonic() > end or training.poll() is not None:
            raise RuntimeError("the head did not start")
        time.sleep(0.05)
    if args.mbit:
        node.rate(args.mbit)
    words = [sys.executable, "-m", "clusterenv", "join", f"cluster://{address}:{PORT}", "--token-file", str(token)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with node.popen([*words, "--workers", "2"], env=environ, stderr=subprocess.DEVNULL) as joined:
        try:
            told, _ = training.communicate(timeout=args.seconds + START_S)
            found: dict[str, Any] = json.loads(told)
            return found
        finally:
            joined.terminate()


def train(args: Args, address: str, token: str, rule: str, seed: int) -> dict[str, Any]:
    """The head: trains for the given time, which begins with the first batch."""
    from clusterenv.learners.common.sync import SyncConfig
    from clusterenv.learners.ppo import PPO, PPOConfig
    from clusterenv.metrics import keys

    name, _, number = rule.partition(":")
    settings = PPOConfig(
        env_id=args.env_id,
        cluster=f"join:nodes=1,workers=2,bind={address},token_file={token}",
        seed=seed,
        total_steps=10**9,
        mode="stream",
        publish_every="gradient step",
        sync=SyncConfig(rule=name, **({"threshold": float(number)} if number else {})),  # type: ignore[arg-type]
        anneal=False,
        learning_rate=3e-4,
        epochs=args.epochs,
        minibatches=4,
        hidden=(args.hidden, args.hidden),
    )
    learner = PPO(settings)
    curve: list[tuple[float, int, float | None]] = []
    began = None
    updates = learner.updates()
    for update in updates:
        now = time.monotonic()
        began = now if began is None else began
        value = update.metrics.get(keys.EPISODIC_RETURN.name)
        curve.append((round(now - began, 2), update.global_step, None if value is None else round(float(value), 1)))
        if now - began >= args.seconds:
            break
    told = learner.summary()
    updates.close()  # type: ignore[attr-defined]
    steps, seconds = curve[-1][1] - curve[0][1], curve[-1][0]
    return {
        "rule": rule,
        "seed": seed,
        "steps_per_s": steps / seconds,
        "final_return": curve[-1][2],
        "publishes": told.publishes,
        "syncs": told.syncs,
        "bytes": told.bytes,
        "curve": curve,
    }


def draw(path: pathlib.Path, runs: list[dict[str, Any]]) -> None:
    """Steps and returns against time, a line per run, a colour per rule."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    rules = list(dict.fromkeys(run["rule"] for run in runs))
    for run in runs:
        seconds, steps, returns = zip(*run["curve"], strict=True)
        style = {"color": f"C{rules.index(run['rule'])}", "label": run["rule"] if run["seed"] == 1 else None}
        left.plot(seconds, steps, **style)
        right.plot(seconds, [float("nan") if value is None else value for value in returns], **style)
    left.set(xlabel="seconds", ylabel="environment steps")
    right.set(xlabel="seconds", ylabel="return (last 100 episodes)")
    left.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(args: Args) -> None:
    """Measure, show and save; or, if we are the head of a run, train."""
    if args.train is not None:
        sys.stdout.write(json.dumps(train(args, *json.loads(args.train))) + "\n")
        return
    runs = [measure(args, rule, seed) for seed in range(1, args.seeds + 1) for rule in args.rules]
    table = Table("rule", "seed", "steps/s", "return at the end", "versions", "syncs", "weight MB")
    for run in runs:
        cells = [run["steps_per_s"], run["final_return"], run["publishes"], run["syncs"], run["bytes"] / 1e6]
        table.add_row(run["rule"], str(run["seed"]), *(f"{cell:,.0f}" for cell in cells))
    Console(width=120).print(table)
    about = {"mbit": args.mbit, "env_id": args.env_id, "hidden": args.hidden, "seconds": args.seconds}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "slow-link.json").write_text(json.dumps({"about": about, "runs": runs}) + "\n")
    draw(args.out / "slow-link.png", runs)


if __name__ == "__main__":
    main(tyro.cli(Args))
