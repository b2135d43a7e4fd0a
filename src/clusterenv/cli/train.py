"""`clusterenv train`: a run with its folder, its checkpoints and its view."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import math
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console

from clusterenv.cli.direct import direct_stdout, tell
from clusterenv.cli.dry_run import would_start
from clusterenv.cli.exits import FAILED, OK, USAGE, add_note, banner, code_of, complain
from clusterenv.cli.json_lines import json_line
from clusterenv.cli.live import JsonSink, LiveSink
from clusterenv.cli.options import parse
from clusterenv.clusters import Remote
from clusterenv.config import parse_cluster
from clusterenv.errors import ClusterEnvError, ConfigError
from clusterenv.learners.catalog import settings_of
from clusterenv.learners.common.env_args import secrets_among
from clusterenv.learners.common.runfolder import RunFolder
from clusterenv.learners.common.settings import flat, to_table
from clusterenv.metrics.recorder import Recorder
from clusterenv.metrics.sinks.background import BackgroundSink
from clusterenv.metrics.sinks.console import ConsoleSink
from clusterenv.metrics.sinks.csv import CsvSink

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clusterenv.cli.options import RunOptions, TrainOptions
    from clusterenv.config import Cluster
    from clusterenv.learners.catalog import Entry
    from clusterenv.learners.common.checkpoint import Checkpoint
    from clusterenv.learners.common.config import LearnerConfig
    from clusterenv.learners.common.tracking import Summary
    from clusterenv.metrics.recorder import Sink

# What the network and the optimiser in a checkpoint were made for, of whichever learner has it.
_FIXED = (
    *("env_id", "tasks", "show_task", "last_inputs", "body", "hidden", "lstm", "dueling", "popart"),
    *("normalize_observations", "optimizer"),
)
_LAST_S = 1.0  # after a signal the run does not wait longer for somebody who does not read its output


class _LatestSink:
    """Lets `latest` point to a run with its first row of metrics, or with a checkpoint that came before one."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder, self._waits = folder, True

    def write(self, values: Mapping[str, float], global_step: int, seconds: float) -> None:
        """Point to it once: a run that began later keeps the link."""
        if self._waits:
            self._folder.point_latest()
            self._waits = False

    def close(self) -> None:
        """A run that is stopped between two rows has saved a checkpoint."""
        if self._folder.has_begun:
            self.write({}, 0, 0.0)


def run(entry: Entry, arguments: list[str]) -> int:
    """Run `clusterenv train`; 0 if it ended as asked, 1 if a target return was not reached."""
    options = parse(entry, arguments)
    if options.run.dry_run:
        return _show(options)
    # torch takes seconds to import: not before the options are known to be right.
    from clusterenv.learners.common.checkpoint import Checkpoints

    settings = options.settings
    cluster = _cluster(options)
    if secrets := secrets_among(settings.env_args):
        complain(
            f"clusterenv: env_args has {', '.join(secrets)}, in plain text: who can read the run's folder, or the "
            "list of processes, can read it. Let the environment take secrets from a file or an environment variable."
        )
    with (
        _folder(entry, options) as (folder, start),
        _recorder(entry, options, folder, start) as recorder,
    ):
        learner = entry.learner()(
            settings, recorder=recorder, checkpoints=Checkpoints(folder.checkpoints), resume=start, cluster=cluster
        )
        try:
            for number, _ in enumerate(learner.updates()):
                if start is not None and number == 0:  # not before: the checkpoint might not fit the new settings
                    folder.write(entry.name, to_table(settings))
        except KeyboardInterrupt as stop:
            recorder.close()
            _say_stopped(entry, _so_far(learner.summary(), start), folder, options.run)
            stop.told = True  # type: ignore[attr-defined]
            raise
    summary = learner.summary()
    _say_end(summary, settings, folder, options.run)
    missed = settings.target_return is not None and not summary.final_return >= settings.target_return
    return FAILED if missed else OK


def _show(options: TrainOptions[Any]) -> int:
    """What would be started, without starting it."""
    settings, run = options.settings, options.run
    if run.resume is not None:
        _check_fixed(run.resume, RunFolder.open(run.resume), settings)
    text = would_start(_cluster(options), [task.env_id for task in settings.all_tasks()], settings.num_envs)
    tell(json_line({"would_start": text}) if run.json else text)
    return OK


def _cluster(options: TrainOptions[Any]) -> Cluster:
    """Where the environments live. What was typed for this run only is no part of its settings."""
    cluster = parse_cluster(options.settings.cluster)
    if not options.run.insecure:
        return cluster
    if not isinstance(cluster, Remote):
        raise ConfigError(f"--insecure with --cluster {options.settings.cluster}: nothing goes over a network there.")
    complain(banner())
    return dataclasses.replace(cluster, insecure=True)


@contextlib.contextmanager
def _folder(entry: Entry, options: TrainOptions[Any]) -> Iterator[tuple[RunFolder, Checkpoint | None]]:
    """The run's folder, for us alone, and the checkpoint that it goes on from."""
    settings, run = options.settings, options.run
    if run.resume is None:
        now = datetime.datetime.now()
        folder = RunFolder.create(run.runs, env_id=settings.title, algorithm=entry.name, seed=settings.seed, now=now)
        try:
            with _saying_how_to_go_on(entry, folder), folder.held():
                folder.write(entry.name, to_table(settings))
                yield folder, None
        finally:
            # What was refused, or stopped before it had learned anything, would only stand in the way.
            if not folder.has_begun:
                folder.discard()
    else:
        folder = RunFolder.open(run.resume)
        with _saying_how_to_go_on(entry, folder), folder.held():
            _check_fixed(run.resume, folder, settings)
            yield folder, _start(run.resume, folder, settings)


def _check_fixed(name: str, folder: RunFolder, settings: LearnerConfig) -> None:
    """Refuse settings for which the checkpoint was not made."""
    before, now = to_table(settings_of(*folder.read())), to_table(settings)
    for setting in _FIXED:
        if before.get(setting) != now.get(setting):
            raise ConfigError(
                f"{name} has {setting}={before.get(setting)!r}, and its checkpoint is of no use with "
                f"{now.get(setting)!r}. Leave --{setting.replace('_', '-')} out; or start another run with "
                f"--config {name}/run.toml in place of --resume {name}."
            )


def _start(name: str, folder: RunFolder, settings: LearnerConfig) -> Checkpoint:
    """The checkpoint that the run goes on from."""
    from clusterenv.learners.common.checkpoint import Checkpoints

    start = Checkpoints(folder.checkpoints).load()
    if start is None:
        raise ConfigError(f"{name} has no checkpoint to go on from. Start it again without --resume.")
    if start.facts["global_step"] + settings.batch_size > settings.total_steps:
        raise ConfigError(
            f"{name} has spent its budget: {start.facts['global_step']:,} of {settings.total_steps:,} steps, and a "
            f"batch takes {settings.batch_size:,}. Give it a larger one with --total-steps."
        )
    return start


@contextlib.contextmanager
def _recorder(
    entry: Entry, options: TrainOptions[Any], folder: RunFolder, start: Checkpoint | None
) -> Iterator[Recorder]:
    """All sinks that were asked for. What opens first is closed even if a later one cannot open."""
    settings, run = options.settings, options.run
    with Recorder() as recorder:
        step = None if start is None else int(start.facts["global_step"])
        recorder.sinks.append(CsvSink(folder.metrics_file, resume_at=step))
        if start is None:  # before the views: who sees the first row may use the link
            recorder.sinks.append(_LatestSink(folder))
        if run.tensorboard:
            from clusterenv.metrics.sinks.tensorboard import TensorBoardSink

            recorder.sinks.append(TensorBoardSink(folder.path / "events", flat(to_table(settings))))
        if run.track:
            from clusterenv.metrics.sinks.wandb import WandbSink

            name = folder.path.name
            recorder.sinks.append(WandbSink(run.project, name, to_table(settings), os.fspath(folder.path)))
        recorder.sinks.extend(_views(entry, settings, run, folder))
        yield recorder


def _views(entry: Entry, settings: LearnerConfig, run: RunOptions, folder: RunFolder) -> list[Sink]:
    """What is shown while the run goes on; who looks at it too slowly does not hold it up."""
    title = (
        f"{entry.name.upper()} on {settings.title}, {settings.num_envs} environments on {settings.cluster}, "
        f"seed {settings.seed}"
    )
    stream = direct_stdout()
    if stream is None:
        return []
    if run.json:
        return [BackgroundSink(JsonSink(stream))]
    if run.quiet:
        return []
    console = Console(file=stream)
    if console.is_terminal:
        return [BackgroundSink(LiveSink(console, f"{title}. {_short(folder)}", settings.total_steps))]
    tell(f"{title}. Run: {_short(folder)}")
    return [BackgroundSink(ConsoleSink(stream))]


def _say_end(summary: Summary, settings: LearnerConfig, folder: RunFolder, run: RunOptions) -> None:
    if run.json:
        tell(json_line({"summary": {**asdict(summary), "saved": summary.saved, "run": _short(folder)}}))
        return
    scored = len(settings.scored_slots())
    where = "" if scored == settings.num_envs else f" of the {scored} slots that explore least"
    found = f"return {summary.final_return:.1f} over the last 100 episodes{where}"
    if math.isnan(summary.final_return):
        found = f"no return, since no episode{where} has ended"
    tell(
        f"Done: {found}. {summary.episodes:,} episodes and "
        f"{summary.steps:,} steps in {summary.seconds:.0f} s ({summary.steps_per_second:,.0f} per second)."
    )
    wanted = settings.target_return
    if wanted is not None and not summary.final_return >= wanted:
        tell(f"The target of {wanted:g} was not reached within the budget of {settings.total_steps:,} steps.")
    for name, mean in summary.task_returns.items():
        tell(f"Return of {name}: {mean:.4g}.")
    since = f" since it was resumed at {summary.resumed_at:,} steps" if summary.resumed_at else ""
    if not summary.updates:
        tell(f"Nothing was learned{since}: there was not one update. Raise --total-steps.")
    tell(
        f"Weights{since}: {summary.syncs:,} syncs of {summary.publishes:,} versions, {size(summary.bytes)}"
        f"{_saving(summary.saved)}. Run: {_short(folder)}"
    )


def _saving(share: float) -> str:
    """What the rule has saved, in words. In a short run it may be less than nothing: the first sync is a whole one."""
    if math.isnan(share):
        return ""
    found = f"{share:.0%} less" if share >= 0 else f"{-share:.0%} more"
    return f" ({found} than all weights at every version)"


def _so_far(summary: Summary, start: Checkpoint | None) -> Summary:
    """What came of the run, also if it was stopped before the learner had got its checkpoint."""
    if summary.steps or start is None:
        return summary
    steps, episodes, seconds = (start.facts[name] for name in ("global_step", "episodes", "seconds"))
    return dataclasses.replace(summary, steps=steps, episodes=episodes, seconds=seconds, interrupted=True)


def _say_stopped(entry: Entry, summary: Summary, folder: RunFolder, run: RunOptions) -> None:
    """One line, after Ctrl-C."""
    again = f"clusterenv train {entry.name} --resume {_short(folder)}"
    if run.json:
        kept = _short(folder) if summary.steps else None
        tell(json_line({"summary": {**asdict(summary), "run": kept}}), _LAST_S)
    elif summary.steps:
        tell(f"Stopped at {summary.steps:,} steps; a checkpoint is saved. Go on: {again}", _LAST_S)
    else:
        tell("Stopped before the first update; there is nothing to go on from.", _LAST_S)


@contextlib.contextmanager
def _saying_how_to_go_on(entry: Entry, folder: RunFolder) -> Iterator[None]:
    """Add a line to the error with which a run fails: if there is a checkpoint, or the disk is full."""
    from clusterenv.learners.common.checkpoint import Checkpoints

    try:
        yield
    except (ClusterEnvError, OSError) as error:
        if isinstance(error, ClusterEnvError) and code_of(error) == USAGE:
            raise
        if paths := Checkpoints(folder.checkpoints).paths():
            add_note(
                error,
                f"The run's last checkpoint is of {int(paths[-1].stem):,} steps. When this is put right, go on: "
                f"clusterenv train {entry.name} --resume {_short(folder)}",
            )
        elif not isinstance(error, ClusterEnvError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            add_note(error, f"Make room for {_short(folder)}, or name another folder with --runs.")
        raise


def _short(folder: RunFolder) -> str:
    path = os.path.relpath(folder.path)
    return os.fspath(folder.path) if path.startswith("..") else path


def size(count: int) -> str:
    """Bytes for people.

    Example:
        >>> size(950), size(20_480), size(3_500_000)
        ('950 bytes', '20.5 kB', '3.5 MB')
    """
    if count < 1_000:
        return f"{count} bytes"
    return f"{count / 1e3:.1f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"
