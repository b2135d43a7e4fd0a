"""What learners of Q-values share: exploration that differs from slot to slot, and the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from clusterenv.learners.common.config import check
from clusterenv.learners.common.exploration import epsilon_ladder, greediest
from clusterenv.learners.replay.config import ReplayConfig

if TYPE_CHECKING:
    from gymnasium import Space

    from clusterenv.learners.common.networks import QNetwork


@dataclass(frozen=True, kw_only=True)
class QConfig(ReplayConfig):
    """The settings of learners of Q-values."""

    judged_greedily: ClassVar[bool] = True

    num_envs: int = 8
    """number of environments (slots); each explores in its own measure"""
    epsilon: float = 0.4
    """share of random actions in the first slot"""
    epsilon_power: float = 7.0
    """slot i of N takes epsilon^(1 + power * i / (N - 1)), so that the last is the greediest; 0 makes all alike"""
    dueling: bool = True
    """tell the value of a state and the advantages of the choices apart"""
    body: Literal["mlp", "shallow", "deep", "nature"] = "mlp"
    """what looks at an observation: dense layers, or for images the small or the deep network of IMPALA, or DQN's"""
    stacked: bool = False
    """images are stacks of frames, the newest last, as those of Atari: keep each frame once"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check("epsilon", self.epsilon, least=0, most=1)
        check("epsilon_power", self.epsilon_power, least=0)

    def epsilons(self) -> tuple[float, ...]:
        """The share of random actions in each slot."""
        return epsilon_ladder(self.num_envs, self.epsilon, self.epsilon_power)

    def memory_settings(self) -> dict[str, Any]:
        """What every memory is made with."""
        return {**super().memory_settings(), "stacked": self.stacked}

    def scored_slots(self) -> range:
        """The slots whose returns tell how good the policy is: the greediest third, if they differ."""
        return greediest(self.num_envs) if self.epsilon_power else range(self.num_envs)


def q_network_for(
    config: QConfig, observation_space: Space[Any], action_space: Space[Any], *, lstm: int = 0
) -> QNetwork:
    """The network that the settings describe, with its first weights, on the learner's device."""
    from clusterenv.learners.common.networks import make_q_network  # it needs torch, which the settings do not
    from clusterenv.learners.common.updater import seeded

    return seeded(
        lambda: make_q_network(
            observation_space,
            action_space,
            epsilon=config.epsilons(),
            body=config.body,
            hidden=config.hidden,
            lstm=lstm,
            dueling=config.dueling,
            normalize=config.normalize_observations,
        ),
        config.seed,
    ).to(config.device)
