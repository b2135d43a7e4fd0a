"""Command line: what a memory of a million steps costs: drawing, new priorities, adding, and bytes.

python -m benchmarks.replay [--repeats 200] [--no-frames] [--out DIR]
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tyro
from gymnasium.spaces import Box
from rich.console import Console
from rich.table import Table

from benchmarks.paths import RESULTS
from benchmarks.report import command_line, machine
from benchmarks.stats import Spread, spread
from clusterenv.env.batch import Batch, Episodes
from clusterenv.learners.replay.sequences import SequenceReplay
from clusterenv.learners.replay.transitions import TransitionReplay
from clusterenv.spaces import Leaf

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS, SLOTS = 20, 32  # of the batches that are added
VECTOR, FRAMES = Box(-1.0, 1.0, (8,)), Box(0, 255, (4, 84, 84), np.uint8)
ACTION = Leaf((), np.dtype(np.int64))
DRAWN, TARGET_MS, TARGET_MORE = 512, 1.0, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Args:
    """Time a memory with made-up batches, on one core."""

    repeats: int = 200
    """Times that each number is measured."""
    capacity: int = 1_000_000
    """Steps in the memory."""
    frames: bool = True
    """Also with stacks of Atari frames, which takes 7 GB."""
    out: Path = RESULTS
    """Folder for the JSON file."""


@dataclass(frozen=True, slots=True)
class Line:
    """One number of the report, in milliseconds."""

    memory: str
    what: str
    target_ms: float | None
    values: list[float]

    @property
    def value(self) -> Spread:
        """Median and range."""
        told = spread(self.values)
        if told is None:
            raise ValueError("nothing was measured: repeats must be at least 1.")
        return told


@dataclass(frozen=True, slots=True)
class Bytes:
    """What a full memory takes."""

    memory: str
    observations: int
    """The bytes of its observations, each frame once."""
    arrays: int
    """The bytes of its arrays."""
    resident: int
    """By how much the process has grown."""

    @property
    def more(self) -> float:
        """What it takes beyond the observations, as a share of these."""
        return max(self.arrays, self.resident) / self.observations - 1


def main(args: Args) -> int:
    """Measure, show and save; return 1 when a target is missed."""
    console = Console()
    lines, sizes = vectors(args)
    if args.frames:
        more, size = frames(args)
        lines, sizes = lines + more, [*sizes, size]
    console.print(_times(lines, args.capacity))
    console.print(_sizes(sizes))
    path = args.out / "replay.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"command_line": command_line(), "machine": machine(), "capacity": args.capacity, "unit": "ms"}
    numbers = [{**dataclasses.asdict(line), **dataclasses.asdict(line.value)} for line in lines]
    memory = [{**dataclasses.asdict(size), "more": size.more} for size in sizes]
    path.write_text(json.dumps({**head, "numbers": numbers, "memory": memory}, indent=1) + "\n")
    console.print(f"written: {path}")
    missed = [
        f"{line.what} takes more than {line.target_ms} ms"
        for line in lines
        if line.target_ms and line.value.median > line.target_ms
    ]
    missed += [f"{size.memory} take {size.more:.1%} more" for size in sizes[1:] if size.more > TARGET_MORE]
    for words in missed:
        console.print(f"[red]{words}")
    return 1 if missed else 0


def vectors(args: Args) -> tuple[list[Line], list[Bytes]]:
    """Return the numbers for observations of 8 floats, where the memory's own work is what takes the time."""
    replay, uniform = (
        TransitionReplay(VECTOR, ACTION, slots=SLOTS, capacity=args.capacity, n_step=3, prioritized=prioritized)
        for prioritized in (True, False)
    )
    name, made = "8 floats", [_batch(0, VECTOR)]
    before = _resident()
    _fill(replay, made, args.capacity)
    size = Bytes(name, args.capacity * 8 * 4, replay.nbytes, _resident() - before)
    _fill(uniform, made, args.capacity)
    lines = _timed(name, replay, made, args.repeats, target_ms=TARGET_MS)
    lines.append(Line(name, f"draw {DRAWN}, all alike", TARGET_MS, _ms(args.repeats, lambda: uniform.sample(DRAWN))))
    return lines, [size]


def frames(args: Args) -> tuple[list[Line], Bytes]:
    """Return the numbers for stacks of frames, where copying them is what takes the time."""
    before = _resident()
    replay = TransitionReplay(
        FRAMES, ACTION, slots=SLOTS, capacity=args.capacity, n_step=3, prioritized=True, stacked=True
    )
    name, made = "Atari frames, 4 in a stack", [_batch(0, FRAMES)]
    _fill(replay, made, args.capacity)
    size = Bytes(name, args.capacity * 84 * 84, replay.nbytes, _resident() - before - _weight(made))
    lines = _timed(name, replay, made, min(args.repeats, 30), target_ms=None)
    del replay
    sequences = SequenceReplay(
        FRAMES, ACTION, slots=SLOTS, capacity=20_000, length=80, burn_in=40, overlap=40, prioritized=True, stacked=True
    )
    _fill(sequences, made, 20_000)
    values = _ms(min(args.repeats, 10), lambda: sequences.sample(64))
    return [*lines, Line(name, "draw 64 sequences of 40 + 80 steps", None, values)], size


def _timed(name: str, replay: Any, made: list[Batch], repeats: int, target_ms: float | None) -> list[Line]:
    source = np.random.default_rng(0)
    ids = [replay.sample(DRAWN).ids for _ in range(8)]
    new = source.random((8, DRAWN))
    turn = iter(range(10**9))

    def update() -> None:
        at = next(turn) % 8
        replay.update(ids[at], new[at])

    return [
        Line(name, f"draw {DRAWN} by priority", target_ms, _ms(repeats, lambda: replay.sample(DRAWN))),
        Line(name, f"give {DRAWN} new priorities", target_ms, _ms(repeats, update)),
        Line(name, f"add {STEPS} steps of {SLOTS} slots", None, _ms(repeats, lambda: _add(replay, made, next(turn)))),
    ]


def _add(replay: Any, made: list[Batch], turn: int) -> None:
    batch = made[turn % len(made)]
    if isinstance(replay, SequenceReplay):
        replay.add(batch)
    else:
        replay.add(batch, batch.params[..., 0], batch.params[..., 1], np.zeros(len(batch.final_at[0])))


def _fill(replay: Any, made: list[Batch], capacity: int) -> None:
    for turn in range(-(-capacity // (STEPS * SLOTS)) + 1):
        _add(replay, made, turn)


def _batch(seed: int, space: Box) -> Batch:
    """A batch that nobody played, which can follow itself: it ends with what it begins with, and no episode ends."""
    source = np.random.default_rng(seed)
    shape = (STEPS, SLOTS)
    nothing: Any = np.zeros((STEPS + 1, SLOTS), np.bool_)
    age = np.arange(4)[::-1]
    film: Any = source.random((STEPS, SLOTS, 8), np.float32)
    if space.dtype == np.uint8:
        film = source.integers(256, size=(STEPS, SLOTS, 84, 84), dtype=np.uint8)
        film = np.stack([np.roll(film, back, axis=0) for back in age], axis=2)  # the newest frame last
    return Batch(
        obs=np.concatenate([film, film[:1]]),
        action=source.integers(4, size=shape),
        reward=source.normal(size=shape),
        terminated=nothing[1:],
        truncated=nothing[1:],
        first=nothing,
        final_obs=film[:0, 0],
        final_at=(np.zeros(0, np.int64), np.zeros(0, np.int64)),
        logp=np.zeros(shape, np.float32),
        params=source.random((*shape, 2), np.float32),
        value=None,
        version=np.zeros(shape, np.int64),
        epoch=0,
        lag=np.zeros(shape, np.int64),
        divergence=np.zeros(SLOTS),
        slot=np.arange(SLOTS),
        state=(),
        worker_lost=np.zeros(SLOTS, np.bool_),
        episodes=Episodes(np.zeros(0), np.zeros(0), np.zeros(0)),
    )


def _weight(made: list[Batch]) -> int:
    return sum(batch.obs.nbytes for batch in made)


def _resident() -> int:
    """Return how much memory this process holds, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def _ms(repeats: int, act: Callable[[], Any]) -> list[float]:
    times = []
    for _ in range(repeats + 3):  # the first few touch memory for the first time
        start = time.perf_counter()
        act()
        times.append(1e3 * (time.perf_counter() - start))
    return times[3:]


def _times(lines: list[Line], capacity: int) -> Table:
    table = Table(title=f"A memory of {capacity:,} steps, 3-step transitions")
    table.add_column("observations")
    for name in ("median ms", "lowest..highest", "target"):
        table.add_column(name, justify="right")
    table.add_column("what")
    for line in lines:
        value, target = line.value, "" if line.target_ms is None else f"{line.target_ms:g}"
        table.add_row(line.memory, f"{value.median:.3f}", f"{value.low:.3f}..{value.high:.3f}", target, line.what)
    return table


def _sizes(sizes: list[Bytes]) -> Table:
    table = Table(title="What a full one takes, in MB")
    table.add_column("observations")
    for name in ("observations alone", "arrays", "process grown by", "more than observations"):
        table.add_column(name, justify="right")
    for size in sizes:
        numbers = (f"{part / 1e6:,.1f}" for part in (size.observations, size.arrays, size.resident))
        table.add_row(size.memory, *numbers, f"{size.more:.1%}")
    return table


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Args)))
