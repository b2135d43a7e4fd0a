"""The settings of Ape-X DQN, and of plain DQN, which is what is left without its parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from clusterenv.learners.common.config import RewardTransform, check
from clusterenv.learners.common.exploration import epsilon_ladder, greediest
from clusterenv.learners.replay.config import ReplayConfig


@dataclass(frozen=True, kw_only=True)
class ApeXConfig(ReplayConfig):
    """Train an agent with Ape-X DQN: Q-learning from a prioritised memory of what many explorers played.

    Items of the memory are transitions over `n_step` steps. Its parts can be left out one by one: `prioritized=False`
    samples evenly, `n_step=1` looks one step ahead, `double=False` and `dueling=False` are what they say, and
    `epsilon_power=0` lets all slots explore alike. Without all of them it is DQN.

    Example:
        >>> ApeXConfig(num_envs=8).epsilons()[:2]
        (0.4, 0.16000000000000003)
        >>> dqn = ApeXConfig(
        ...     cluster="local:1",
        ...     mode="lock step",
        ...     prioritized=False,
        ...     n_step=1,
        ...     double=False,
        ...     dueling=False,
        ...     epsilon=0.05,
        ...     epsilon_power=0.0,
        ... )
        >>> set(dqn.epsilons())
        {0.05}
    """

    # A share of states. On CartPole this fetched a tenth of the bytes of on-change, and learned as fast.
    aps_threshold: ClassVar[float] = 0.3
    # Nothing ties the network to the policy that acted: it does not stand still until workers have newer weights.
    aps_stall_after: ClassVar[int | None] = None

    num_envs: int = 8
    """number of environments (slots); each explores in its own measure"""
    learning_rate: float = 5e-4
    """of the optimiser"""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """rmsprop: centred, with the decay and epsilon of the paper; adam"""
    epsilon: float = 0.4
    """share of random actions in the first slot"""
    epsilon_power: float = 7.0
    """slot i of N takes epsilon^(1 + power * i / (N - 1)), so that the last is the greediest; 0 makes all alike"""
    double: bool = True
    """let the network choose and the target network value the next action, which overrates it less"""
    dueling: bool = True
    """tell the value of a state and the advantages of the choices apart"""
    body: Literal["mlp", "shallow", "deep", "nature"] = "mlp"
    """what looks at an observation: dense layers, or for images the small or the deep network of IMPALA, or DQN's"""
    stacked: bool = False
    """images are stacks of frames, the newest last, as those of Atari: keep each frame once"""
    reward: RewardTransform = "none"
    """what the learner makes of rewards; returns are told as they are"""
    reward_scale: float = 1.0
    """rewards are multiplied by this for the learner, so that returns of any size fit the learning rate"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check("epsilon", self.epsilon, least=0, most=1)
        check("epsilon_power", self.epsilon_power, least=0)
        check("reward_scale", self.reward_scale, above=0)

    def epsilons(self) -> tuple[float, ...]:
        """The share of random actions in each slot."""
        return epsilon_ladder(self.num_envs, self.epsilon, self.epsilon_power)

    def scored_slots(self) -> range:
        """The slots whose returns tell how good the policy is: the greediest third, if they differ."""
        return greediest(self.num_envs) if self.epsilon_power else range(self.num_envs)
