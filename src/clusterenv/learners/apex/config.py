"""The settings of Ape-X DQN, and of plain DQN, which is what is left without its parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from clusterenv.learners.replay.q_learning import QConfig


@dataclass(frozen=True, kw_only=True)
class ApeXConfig(QConfig):
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

    learning_rate: float = 5e-4
    """of the optimiser"""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """rmsprop: centred, with the decay and epsilon of the paper; adam"""
    double: bool = True
    """let the network choose and the target network value the next action, which overrates it less"""
