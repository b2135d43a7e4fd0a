"""The options of `clusterenv train`: typed settings, whose defaults come from a preset, a file or a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, cast, get_args

import tyro

from clusterenv.errors import ConfigError
from clusterenv.learners import catalog
from clusterenv.learners.common.config import LearnerConfig, Mode
from clusterenv.learners.common.runfolder import RunFolder, read_settings
from clusterenv.learners.common.sync import SyncConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterenv.learners.catalog import Entry

Config = TypeVar("Config", bound=LearnerConfig)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where a run keeps its files and whom it tells."""

    resume: str | None = None
    """go on with this run, a folder such as runs/latest"""
    config: str | None = None
    """a run.toml with settings; options beside it win"""
    runs: str = "runs"
    """the folder of all runs"""
    tensorboard: bool = False
    """write TensorBoard files into the folder of the run"""
    track: bool = False
    """log to Weights & Biases"""
    project: str = "clusterenv"
    """the project there"""
    quiet: bool = False
    """say only how it ended"""
    insecure: bool = False
    """no encryption between this machine and the nodes, for a network on which you trust everybody; to be typed each
    time, also with --resume"""
    dry_run: bool = False
    """only show what would be started or submitted for the environments; nothing is, and no folder is made"""
    json: bool = False
    """write one JSON object per update, and the summary, for machines"""

    def __post_init__(self) -> None:
        if self.resume is not None and self.config is not None:
            raise ConfigError("--resume and --config cannot both be given: a run goes on with its own settings.")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Generic[Config]):
    """The defaults shown suit the environment named."""

    settings: Annotated[Config, tyro.conf.arg(name="")]
    run: Annotated[RunOptions, tyro.conf.arg(name="")]


def parse(learner: Entry, arguments: Sequence[str]) -> TrainOptions[Any]:
    """The options of `clusterenv train`.

    Precedence: the defaults, those tuned for the environment, the file or run named, the options themselves.

    Raises:
        ConfigError: they do not fit together.
        SystemExit: they could not be read (code 2), or help was asked for (code 0); tyro has written why.
    """
    kind: Any = TrainOptions[learner.config]  # type: ignore[name-defined]  # known only now
    options: TrainOptions[Any] = tyro.cli(
        kind,
        args=list(arguments),
        default=TrainOptions(settings=_defaults(learner, arguments), run=RunOptions()),
        prog=f"clusterenv train {learner.name}",
        description=f"Train an agent with {learner.title}. The defaults shown suit the environment named.",
    )
    return options


def _defaults(learner: Entry, arguments: Sequence[str]) -> LearnerConfig:
    """The settings that the options start from."""
    resume, config, env_id = (_value_of(arguments, name) for name in ("resume", "config", "env-id"))
    if resume is not None:
        return _own(learner, *RunFolder.open(resume).read())
    if config is not None:
        return _own(learner, *read_settings(config))
    if _value_of(arguments, "tasks") is not None:
        return learner.config()
    if env_id is None:
        env_id = learner.config().env_id
    mode = _value_of(arguments, "mode")
    tuned = learner.preset(env_id, cast("Mode", mode) if mode in get_args(Mode) else None)
    return _with_own_rule(_for_fewer(tuned, _value_of(arguments, "num-envs")), arguments)


def _for_fewer(tuned: LearnerConfig, num_envs: str | None) -> LearnerConfig:
    """Without a preset's slots in a batch, if they are more than the environments asked for: nobody typed those."""
    if num_envs is None or not num_envs.isdecimal() or tuned.stream_slots is None:
        return tuned
    return replace(tuned, stream_slots=None) if 0 < int(num_envs) < tuned.stream_slots else tuned


def _with_own_rule(tuned: LearnerConfig, arguments: Sequence[str]) -> LearnerConfig:
    """Without a preset's threshold, if it has none in what is asked for: nobody typed that either."""
    other = _value_of(arguments, "sync.rule") not in (None, tuned.sync.rule)
    steered = any(_value_of(arguments, f"sync.{name}") not in (None, "None") for name in ("target-ess", "bandwidth"))
    if other or steered or _value_of(arguments, "inference") == "head":
        return replace(tuned, sync=SyncConfig())
    return tuned


def _own(learner: Entry, algorithm: str, table: dict[str, Any]) -> LearnerConfig:
    """The settings of a run.toml, if it is one of this learner."""
    if algorithm != learner.name:
        catalog.find(algorithm)
        raise ConfigError(
            f"this is a run of {algorithm}, not of {learner.name}. Go on with `clusterenv train {algorithm}`."
        )
    return catalog.settings_of(algorithm, table)


def _value_of(arguments: Sequence[str], name: str) -> str | None:
    """The value of an option before all of them are read: it decides what the others' defaults are."""
    found = None
    for index, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag.replace("_", "-") != f"--{name}":
            continue
        if equals:
            found = value
        elif index + 1 < len(arguments):
            found = arguments[index + 1]
    return found
