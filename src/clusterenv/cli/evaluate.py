"""`clusterenv eval`: let the agent of a run play whole episodes, and say what came of it."""

from __future__ import annotations

import functools
import os
import pathlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import tyro

from clusterenv.cli.dry_run import would_start
from clusterenv.cli.exits import OK, complain, say
from clusterenv.cli.json_lines import json_line
from clusterenv.config import Timeouts, check_num_envs, parse_cluster
from clusterenv.errors import ConfigError
from clusterenv.learners import catalog
from clusterenv.learners.common.config import check
from clusterenv.learners.common.env_args import parse_env_args
from clusterenv.learners.common.runfolder import RunFolder

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from clusterenv.env.vector import ClusterEnv
    from clusterenv.learners.catalog import Entry
    from clusterenv.learners.common.checkpoint import Checkpoint
    from clusterenv.learners.common.config import LearnerConfig
    from clusterenv.learners.common.evaluate import Scores

FILMS = 3


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Let the agent of a run play whole episodes, with the newest sound checkpoint, and say what came of it."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """the folder of a run, such as runs/latest"""
    episodes: int = 20
    """how many, over all environments; each plays a number of them that is fixed beforehand"""
    greedy: tyro.conf.FlagCreatePairsOff[bool] = False
    """take the most likely action"""
    sample: tyro.conf.FlagCreatePairsOff[bool] = False
    """sample actions, as in training; this is what happens if nothing is said, but for Ape-X and R2D2, which are always
    judged by their greedy actions"""
    seed: int = 1_000_000
    """of environments and actions; runs are trained with other ones"""
    num_envs: int = 16
    """number of environments (slots), at most one per episode"""
    cluster: str = "local"
    """where they run"""
    on_loss: Literal["restart", "raise"] = "restart"
    """when a worker is lost or an environment raises: play on in fresh ones, or end"""
    timeouts: Timeouts = field(default_factory=Timeouts)
    """how long something may take before it counts as lost; where nothing is said, as in training"""
    env_args: tuple[str, ...] = ()
    """arguments of the environment that shall be other than in training, such as delay=20"""
    max_steps: int = 100_000
    """an episode is cut after so many steps, for environments that never end by themselves"""
    video: str | None = None
    """a folder for films of the first episodes, as .gif"""
    films: int | None = None
    """how many of them, with --video; three if it is not given"""
    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False
    """only show what would be started or submitted for the environments"""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """write one JSON object, for machines"""

    def __post_init__(self) -> None:
        for name in ("episodes", "max_steps"):
            check(name, getattr(self, name), least=1)
        if self.films is not None:
            check("films", self.films, least=1)
            if self.video is None:
                raise ConfigError(f"--films {self.films} says how many, and not where: add --video FOLDER.")
        check("seed", self.seed, least=0)
        check_num_envs(self.num_envs)
        parse_cluster(self.cluster)
        parse_env_args(self.env_args)
        if self.greedy and self.sample:
            raise ConfigError("--greedy and --sample cannot both be given.")


class Trained(NamedTuple):
    """A run that has learned something."""

    name: str
    entry: Entry
    config: LearnerConfig
    checkpoint: Checkpoint


def parse(arguments: list[str]) -> EvalOptions:
    """The options of `clusterenv eval`."""
    return tyro.cli(EvalOptions, args=arguments, prog="clusterenv eval")


def parse_for_run(arguments: list[str]) -> EvalOptions:
    """The same. Environments that are slow in training are so here too: what is not said is taken from the run."""
    run = parse(arguments).run
    config = catalog.settings_of(*RunFolder.open(run).read())
    default = EvalOptions(run=run, timeouts=config.timeouts)
    return tyro.cli(EvalOptions, args=arguments, prog="clusterenv eval", default=default)


def run(arguments: list[str]) -> int:
    """Run `clusterenv eval`."""
    options = parse_for_run(arguments)
    if options.dry_run:
        return _show(options)
    trained = _load(options.run)
    if options.sample and trained.config.judged_greedily:
        raise ConfigError(
            f"--sample with a run of {trained.entry.name}: its random actions explore and are no part of what it has "
            "learned, so it is judged by its greedy ones. Leave --sample out."
        )
    scores, network = _play(options, trained)
    if not options.json:
        _say_scores(options, trained, scores)
    films: list[str] = []
    try:
        if options.video is not None:
            films = _film(options, trained, network)
    finally:  # a film that cannot be made must not cost the scores
        if options.json:
            say(json_line(report(options, trained, scores, films)))
    if not options.json:
        for film in films:
            say(film)
    return OK


def _show(options: EvalOptions) -> int:
    """What would be started, without starting it."""
    tasks = catalog.settings_of(*RunFolder.open(options.run).read()).all_tasks()
    text = would_start(parse_cluster(options.cluster), [task.env_id for task in tasks], _slots(options, len(tasks)))
    say(json_line({"would_start": text}) if options.json else text)
    return OK


def _say_scores(options: EvalOptions, trained: Trained, scores: Scores) -> None:
    config, step = trained.config, trained.checkpoint.facts["global_step"]
    say(
        f"{trained.entry.name.upper()} on {config.title} after {step:,} steps: {options.episodes} episodes, "
        f"{'greedy' if _greedy(options, trained) else 'sampled'} actions, seed {options.seed}."
    )
    for task, mine in (_by_task(options, trained, scores) or {"": scores}).items():
        if task:
            say(f"{task}: {len(mine.returns)} episodes.")
        for name, spread in zip(("return", "length"), _spreads(mine), strict=True):
            say(f"{name}: " + ", ".join(f"{what} {_shown(value)}" for what, value in spread._asdict().items()))
    if cut := _cut(options, scores):
        complain(f"{cut} of these episodes did not end and were cut after {options.max_steps:,} steps (--max-steps).")


def report(options: EvalOptions, trained: Trained, scores: Scores, films: list[str]) -> dict[str, Any]:
    """All that is known, for machines."""
    returns, lengths = _spreads(scores)
    return {
        "run": trained.name,
        "algorithm": trained.entry.name,
        "env_id": trained.config.title,
        "global_step": trained.checkpoint.facts["global_step"],
        "episodes": options.episodes,
        "greedy": _greedy(options, trained),
        "seed": options.seed,
        "return": returns._asdict(),
        "length": lengths._asdict(),
        "cut": _cut(options, scores),
        "returns": scores.returns,
        "lengths": scores.lengths,
        "films": films,
        "tasks": {
            task: {name: spread._asdict() for name, spread in zip(("return", "length"), _spreads(mine), strict=True)}
            for task, mine in _by_task(options, trained, scores).items()
        },
    }


def _greedy(options: EvalOptions, trained: Trained) -> bool:
    return options.greedy or trained.config.judged_greedily


def _spreads(scores: Scores) -> tuple[Any, Any]:
    from clusterenv.learners.common.evaluate import Spread

    return Spread.of(scores.returns), Spread.of(scores.lengths)


def _by_task(options: EvalOptions, trained: Trained, scores: Scores) -> dict[str, Scores]:
    """The scores of each task by its name; nothing if there is one task."""
    from clusterenv.learners.common.evaluate import by_task

    names = [task.name for task in trained.config.all_tasks()]
    if len(names) == 1:
        return {}
    return dict(zip(names, by_task(scores, slots=_slots(options, len(names)), tasks=len(names)), strict=True))


def _shown(value: float) -> str:
    # Rewards of any task are told; what is small needs other digits than what is large.
    return f"{value:,.2f}" if value == 0 or abs(value) >= 0.1 else f"{value:.3g}"


def _cut(options: EvalOptions, scores: Scores) -> int:
    return sum(length >= options.max_steps for length in scores.lengths)


def _load(path: str) -> Trained:
    # torch takes seconds to import: not before the options are known to be right.
    from clusterenv.learners.common.checkpoint import Checkpoints

    folder = RunFolder.open(path)
    algorithm, table = folder.read()
    entry, config = catalog.find(algorithm), catalog.settings_of(algorithm, table)
    checkpoint = Checkpoints(folder.checkpoints).load()
    if checkpoint is None:
        raise ConfigError(
            f"{path} has no checkpoint to evaluate. A run saves one now and then and at its end: wait for it, or "
            "start it again if it was killed before."
        )
    # Where it was trained is no matter here.
    return Trained(folder.path.name, entry, replace(config, device="cpu"), checkpoint)


def _play(options: EvalOptions, trained: Trained) -> tuple[Scores, Any]:
    """Play the episodes: the scores, and the network that acted."""
    from clusterenv.learners.common import evaluate

    learner = trained.entry.learner()(trained.config.for_playing())
    slots = _slots(options, len(trained.config.all_tasks()))
    with _environments(options, trained, slots, options.cluster) as envs:
        if options.video is not None:
            _check_camera(trained.config.title, envs)
            _make_folder(options.video)
        network = evaluate.acting_network(learner, trained.checkpoint.tensors, envs)
        scores = evaluate.play(
            envs,
            network,
            episodes=options.episodes,
            seed=options.seed,
            greedy=options.greedy,
            runtime=trained.config.runtime,
        )
    return scores, network


def _slots(options: EvalOptions, tasks: int) -> int:
    """How many play: at most one per episode, and as many of each task."""
    slots = min(options.episodes, options.num_envs)
    if slots < tasks:
        raise ConfigError(
            f"--episodes {options.episodes} and --num-envs {options.num_envs} must both be at least {tasks}: the run "
            "has so many tasks."
        )
    return slots - slots % tasks


def _environments(
    options: EvalOptions, trained: Trained, slots: int, cluster: str, camera: tuple[Any, ...] = ()
) -> AbstractContextManager[ClusterEnv]:
    from gymnasium.wrappers import TimeLimit

    from clusterenv.learners.common.environments import closing, make
    from clusterenv.learners.common.evaluate import arguments_for_evaluation

    own = {**parse_env_args(options.env_args), **({"render_mode": "rgb_array"} if camera else {})}
    limit = functools.partial(TimeLimit, max_episode_steps=options.max_steps)
    tasks = [
        task._replace(
            kwargs={**task.kwargs, **arguments_for_evaluation(task.env_id), **own},
            wrappers=(*task.wrappers, limit, *camera),
        )
        for task in trained.config.all_tasks()
    ]
    return closing(make(tasks, slots, cluster, on_loss=options.on_loss, timeouts=options.timeouts))


def _check_camera(env_id: str, envs: ClusterEnv) -> None:
    modes = envs.metadata.get("render_modes") or []
    if "rgb_array" not in modes:
        raise ConfigError(
            f"{env_id} draws no pictures: its render modes are {list(modes)}, and --video needs 'rgb_array'. "
            "Leave it out."
        )


def _make_folder(name: str) -> None:
    """The folder for the films, before hours are played for them."""
    try:
        pathlib.Path(name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--video {name}: {error.strerror}. Name a folder that can be made.") from error
    if not os.access(name, os.W_OK):
        raise ConfigError(f"--video {name}: you may not write there. Name a folder of yours.")


def _film(options: EvalOptions, trained: Trained, network: Any) -> list[str]:
    """The first episode of the first slots again, in this process: same seeds, same policy, with a camera."""
    from clusterenv.learners.common import evaluate
    from clusterenv.learners.common.film import Film, save_gif

    cameras: list[Film] = []

    def camera(env: Any) -> Film:
        cameras.append(Film(env))
        return cameras[-1]

    count = min(options.films or FILMS, _slots(options, len(trained.config.all_tasks())))  # those that have played
    with _environments(options, trained, count, "inproc", (camera,)) as envs:
        fps = float(envs.metadata.get("render_fps") or 30)
        evaluate.play(envs, network, episodes=count, seed=options.seed, greedy=options.greedy, runtime="torch")
    paths = [pathlib.Path(str(options.video)) / f"{trained.name}-{number}.gif" for number in range(1, count + 1)]
    for path, film in zip(paths, cameras, strict=True):
        save_gif(path, film.frames, fps)
    return [str(path) for path in paths]
