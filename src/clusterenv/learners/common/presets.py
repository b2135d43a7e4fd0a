"""Settings that are known to work, by learner and environment, from the files in `clusterenv/presets`.

A file has a table `config`; a table `stream` with what is different when workers stream; and for each way in which it
was tried a `result`, which only people read: the command, the seeds, the mean return over the last 100 episodes of
each, and the steps.
"""

from __future__ import annotations

import importlib.resources
import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from clusterenv.learners.common import toml
from clusterenv.learners.common.settings import from_table

if TYPE_CHECKING:
    from clusterenv.learners.common.config import LearnerConfig, Mode

Config = TypeVar("Config", bound="LearnerConfig")


class Preset(NamedTuple):
    """What a file says.

    Attributes:
        config: settings that differ from the learner's defaults.
        stream: settings that differ from these when workers stream.
    """

    config: dict[str, Any]
    stream: dict[str, Any]


def find(algorithm: str, env_id: str) -> Preset | None:
    """What is known of this learner on this environment, or None.

    Example:
        >>> find("ppo", "LunarLander-v3").config["rollout_steps"]
        1024
        >>> find("ppo", "Unheard-v0")
    """
    # "ALE/Pong-v5" is an id; a file has no slash in its name.
    name = f"{algorithm}-{re.sub(r'[^A-Za-z0-9._-]', '-', env_id)}.toml"
    file = importlib.resources.files("clusterenv") / "presets" / name
    try:
        if not file.is_file():
            return None
    except OSError:  # a name that is too long for a file
        return None
    content = toml.loads(file.read_text(encoding="utf-8"))
    return Preset(content.get("config", {}), content.get("stream", {}))


def preset(algorithm: str, kind: type[Config], env_id: str, mode: Mode | None = None) -> Config:
    """The settings for an environment; the defaults if there are none of its own.

    Args:
        algorithm: the name of the learner.
        kind: its settings.
        env_id: the environment.
        mode: if it is not the learner's own.

    Example:
        >>> from clusterenv.learners.ppo import PPOConfig
        >>> preset("ppo", PPOConfig, "LunarLander-v3", "stream").rollout_steps
        256
    """
    found = find(algorithm, env_id) or Preset({}, {})
    table = {"env_id": env_id, **found.config}
    if mode is not None:
        table["mode"] = mode
    if from_table(kind, table).mode == "stream":
        table |= found.stream
    return from_table(kind, table)
