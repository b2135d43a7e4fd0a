"""The course of a measurement: try the settings, then go round by round through all contenders."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.runners.common import Spec
from benchmarks.slices import SliceResult, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.contenders import Contender, Settings
    from benchmarks.workloads import Workload

    RunSlice = Callable[[Contender, Spec], SliceResult]
    """Measures one slice, or raises `Unavailable`."""
    Notify = Callable[[str], None]

FAILURES_ALLOWED = 2
"""After so many failed rounds a contender is left out, lest each of its time limits be waited for again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long and how often."""

    workers: int
    rounds: int
    slice_s: float
    warmup_s: float
    tune_s: float
    """Length of a slice that tries one setting; 0 takes the first setting untried."""
    seed: int


@dataclass(slots=True)
class Trial:
    """One setting, and how fast it was or why it failed."""

    settings: Settings
    steps_per_second: float | None = None
    reason: str = ""


@dataclass(slots=True)
class Entry:
    """What is known about one contender on one workload."""

    contender: Contender
    settings: Settings = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    slices: dict[int, SliceResult] = field(default_factory=dict)
    """By round; a round that failed is missing."""
    failures: list[str] = field(default_factory=list)

    @property
    def rates(self) -> dict[int, float]:
        """Environment steps per second, by round."""
        return {i: found.steps_per_second for i, found in self.slices.items()}

    @property
    def reason(self) -> str:
        """Why there is no number, or an empty text when there is one."""
        return "" if self.slices else (self.failures or ["not measured"])[0]


def count_slices(workload: Workload, contenders: Sequence[Contender], plan: Plan) -> int:
    """Return how many slices `measure_workload` runs at most."""
    trials = [len(each.candidates(workload, plan.workers)) for each in contenders]
    tuning = sum(n for n in trials if n > 1) if plan.tune_s > 0 else 0
    return tuning + plan.rounds * len(contenders)


def measure_workload(
    workload: Workload, contenders: Sequence[Contender], plan: Plan, run: RunSlice, notify: Notify
) -> list[Entry]:
    """Measure all contenders on one workload, interleaved.

    Args:
        workload: what is stepped.
        contenders: who steps it.
        plan: how long and how often.
        run: measures one slice.
        notify: is told what is about to run.
    """
    entries = [Entry(contender) for contender in contenders]
    for entry in entries:
        _choose_settings(entry, workload, plan, run, notify)
    order = random.Random(plan.seed)
    for i in range(plan.rounds):
        # A new order each round, so that nobody always comes after the one that heats the machine.
        for entry in order.sample(entries, len(entries)):
            if len(entry.failures) >= FAILURES_ALLOWED:
                continue
            notify(f"{workload.name} round {i + 1}/{plan.rounds}: {entry.contender.title}")
            spec = _spec(workload, plan, plan.slice_s, plan.seed + i, entry.settings)
            try:
                entry.slices[i] = run(entry.contender, spec)
            except Unavailable as failure:
                entry.failures.append(str(failure))
    return entries


def _choose_settings(entry: Entry, workload: Workload, plan: Plan, run: RunSlice, notify: Notify) -> None:
    """Try the contender's settings and keep the fastest one."""
    candidates = entry.contender.candidates(workload, plan.workers)
    if not candidates:
        entry.failures += [f"no setting fits {workload.num_envs} environments on {plan.workers} workers"] * 2
        return
    entry.settings = candidates[0]
    if len(candidates) == 1 or plan.tune_s <= 0:
        return
    for settings in candidates:
        notify(f"{workload.name} trying {entry.contender.title} {settings}")
        spec = _spec(workload, plan, plan.tune_s, plan.seed, settings)
        trial = Trial(settings)
        entry.trials.append(trial)
        try:
            trial.steps_per_second = run(entry.contender, spec).steps_per_second
        except Unavailable as failure:
            trial.reason = str(failure)
    entry.settings = max(entry.trials, key=lambda trial: trial.steps_per_second or 0.0).settings


def _spec(workload: Workload, plan: Plan, seconds: float, seed: int, settings: Settings) -> Spec:
    return Spec(
        env_id=workload.env_id,
        preset=workload.preset,
        num_envs=workload.num_envs,
        workers=plan.workers,
        seconds=seconds,
        warmup_s=plan.warmup_s,
        warmup_steps=workload.warmup_steps,
        seed=seed,
        settings=settings,
    )
