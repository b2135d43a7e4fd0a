"""The learners by name. Importing this needs no torch: settings are asked for long before anything is computed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from clusterenv.errors import ConfigError, unknown
from clusterenv.learners.apex.config import ApeXConfig
from clusterenv.learners.common import presets
from clusterenv.learners.common.settings import from_table
from clusterenv.learners.impact.config import IMPACTConfig
from clusterenv.learners.impala.config import IMPALAConfig
from clusterenv.learners.ppo.config import PPOConfig
from clusterenv.learners.r2d2.config import R2D2Config
from clusterenv.learners.sac.config import SACConfig
from clusterenv.learners.vmpo.config import VMPOConfig

if TYPE_CHECKING:
    from clusterenv.learners.common.config import LearnerConfig, Mode
    from clusterenv.learners.common.loop import Learner


class Entry(NamedTuple):
    """One learner.

    Attributes:
        name: in commands and files.
        title: for people.
        config: the class of its settings.
        place: module and class of the learner itself.
    """

    name: str
    title: str
    config: type[LearnerConfig]
    place: tuple[str, str]

    def learner(self) -> type[Learner[Any]]:
        """The learner's class. This imports torch."""
        module, name = self.place
        return cast("type[Learner[Any]]", getattr(importlib.import_module(f"clusterenv.learners.{module}"), name))

    def preset(self, env_id: str, mode: Mode | None = None) -> LearnerConfig:
        """The settings that are known to work for an environment, or the defaults."""
        return presets.preset(self.name, self.config, env_id, mode)


LEARNERS = {
    entry.name: entry
    for entry in (
        Entry("ppo", "proximal policy optimisation", PPOConfig, ("ppo.learner", "PPO")),
        Entry(
            "impala", "IMPALA: a stream of unrolls, corrected by V-trace", IMPALAConfig, ("impala.learner", "IMPALA")
        ),
        Entry(
            "impact", "IMPACT: batches used again, with a target network", IMPACTConfig, ("impact.learner", "IMPACT")
        ),
        Entry("apex", "Ape-X DQN: Q-learning from a prioritised memory", ApeXConfig, ("apex.learner", "ApeX")),
        Entry("r2d2", "R2D2: Q-learning from sequences, with a memory", R2D2Config, ("r2d2.learner", "R2D2")),
        Entry("vmpo", "on-policy maximum a posteriori policy optimisation", VMPOConfig, ("vmpo.learner", "VMPO")),
        Entry("sac", "soft actor-critic: continuous actions, learned from a memory", SACConfig, ("sac.learner", "SAC")),
    )
}


def find(name: str) -> Entry:
    """The learner of this name.

    Raises:
        ConfigError: there is none; the message names the nearest.

    Example:
        >>> find("ppo").title
        'proximal policy optimisation'
    """
    if name not in LEARNERS:
        raise ConfigError(unknown("algorithm", name, LEARNERS))
    return LEARNERS[name]


def settings_of(name: str, table: dict[str, Any]) -> LearnerConfig:
    """The settings of a run.toml.

    Raises:
        ConfigError: there is no such learner, or a setting is wrong.
    """
    return from_table(find(name).config, table)
