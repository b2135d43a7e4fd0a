"""The options of `clusterenv train`: typed settings, whose defaults come from a preset, a file or a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from clusterenv.errors import ConfigError, unknown
from clusterenv.learners.common.runfolder import RunFolder, read_settings
from clusterenv.learners.common.settings import from_table
from clusterenv.learners.ppo import PPOConfig, preset

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    json: bool = False
    """write one JSON object per update, and the summary, for machines"""

    def __post_init__(self) -> None:
        if self.resume is not None and self.config is not None:
            raise ConfigError("--resume and --config cannot both be given: a run goes on with its own settings.")


@dataclass(frozen=True, kw_only=True)
class TrainPPO:
    """Train an agent with proximal policy optimisation. The defaults shown suit the environment named."""

    settings: Annotated[PPOConfig, tyro.conf.arg(name="")]
    run: Annotated[RunOptions, tyro.conf.arg(name="")]


def parse_ppo(arguments: Sequence[str]) -> TrainPPO:
    """The options of `clusterenv train ppo`.

    Precedence: the defaults, those tuned for the environment, the file or run named, the options themselves.

    Raises:
        ConfigError: they do not fit together.
        SystemExit: they could not be read (code 2), or help was asked for (code 0); tyro has written why.
    """
    default = TrainPPO(settings=_defaults(arguments), run=RunOptions())
    return tyro.cli(TrainPPO, args=list(arguments), default=default, prog="clusterenv train ppo")


def _defaults(arguments: Sequence[str]) -> PPOConfig:
    """The settings that the options start from."""
    resume, config, env_id = (_value_of(arguments, name) for name in ("resume", "config", "env-id"))
    if resume is not None:
        return settings_of(*RunFolder.open(resume).read())
    if config is not None:
        return settings_of(*read_settings(config))
    if env_id is None:
        return PPOConfig()
    return preset(env_id, "stream" if _value_of(arguments, "mode") == "stream" else "lock step")


def settings_of(algorithm: str, table: dict[str, Any]) -> PPOConfig:
    """The settings of a run.toml of PPO."""
    if algorithm != "ppo":
        raise ConfigError(unknown("algorithm", algorithm, ["ppo"]) + " This file belongs to another command.")
    return from_table(PPOConfig, table)


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
