"""How good an agent is: whole episodes, and in every slot a number of them that was fixed beforehand.

Whoever takes the first twenty episodes that end takes too many short ones: while a slot plays a long episode, the
others finish several. So every slot owes some, and what it plays beyond them is not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clusterenv.errors import ConfigError
from clusterenv.learners.common.config import check
from clusterenv.learners.common.tasks import task_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from clusterenv.env.batch import Episodes
    from clusterenv.env.vector import ClusterEnv
    from clusterenv.learners.common.loop import Learner

# Per request. The slots that are done first play on until the others have what they owe.
_STEPS = 64
_ATARI = "clusterenv/Atari"


class Spread(NamedTuple):
    """What a set of numbers comes to.

    Example:
        >>> Spread.of([1.0, 3.0])
        Spread(mean=2.0, deviation=1.0, min=1.0, max=3.0)
    """

    mean: float
    deviation: float
    min: float
    max: float

    @classmethod
    def of(cls, numbers: list[float] | list[int]) -> Spread:
        """Of at least one number."""
        return cls(*(float(each(numbers)) for each in (np.mean, np.std, np.min, np.max)))


class Scores(NamedTuple):
    """What came of an evaluation, slot by slot, and in each slot in the order in which it was played.

    Attributes:
        returns: the sum of rewards of each episode, as the environment gave them.
        lengths: its steps.
    """

    returns: list[float]
    lengths: list[int]


def shares(episodes: int, slots: int) -> list[int]:
    """How many episodes each slot owes.

    Example:
        >>> shares(20, 8)
        [3, 3, 3, 3, 2, 2, 2, 2]
    """
    return [episodes // slots + (slot < episodes % slots) for slot in range(slots)]


class Count:
    """Takes what was played, and keeps of every slot the first episodes, as many as it owes.

    Args:
        episodes: how many are wanted.
        slots: how many play.

    Example:
        >>> from clusterenv.env.batch import Episodes
        >>> count = Count(episodes=2, slots=2)
        >>> count.take(Episodes(np.array([1.0, 2.0]), np.array([5, 6]), np.array([1, 1])))
        >>> count.done  # slot 0 still plays
        False
        >>> count.take(Episodes(np.array([9.0]), np.array([80]), np.array([0])))
        >>> count.done, count.scores()
        (True, Scores(returns=[9.0, 1.0], lengths=[80, 5]))
    """

    def __init__(self, episodes: int, slots: int) -> None:
        check("episodes", episodes, least=1)
        self._owed = shares(episodes, slots)
        self._kept: list[list[tuple[float, int]]] = [[] for _ in range(slots)]

    def take(self, episodes: Episodes) -> None:
        """Look at the episodes of a batch."""
        for total, length, slot in zip(*episodes, strict=True):
            if len(self._kept[slot]) < self._owed[slot]:
                self._kept[slot].append((float(total), int(length)))

    @property
    def done(self) -> bool:
        """Whether every slot has played what it owes."""
        return all(len(kept) == owed for kept, owed in zip(self._kept, self._owed, strict=True))

    def scores(self) -> Scores:
        """What was kept."""
        every = [episode for kept in self._kept for episode in kept]
        return Scores([total for total, _ in every], [length for _, length in every])


def by_task(scores: Scores, *, slots: int, tasks: int) -> list[Scores]:
    """The scores of each of several tasks that were dealt out to the slots.

    Example:
        >>> by_task(Scores([1.0, 2.0, 0.1, 0.2], [9, 9, 5, 5]), slots=2, tasks=2)[1]
        Scores(returns=[0.1, 0.2], lengths=[5, 5])
    """
    owed = shares(len(scores.returns), slots)
    task = [task_of(slot, tasks) for slot, episodes in enumerate(owed) for _ in range(episodes)]
    parts = [[index for index, mine in enumerate(task) if mine == number] for number in range(tasks)]
    return [Scores([scores.returns[i] for i in part], [scores.lengths[i] for i in part]) for part in parts]


def play(envs: ClusterEnv, policy: Any, *, episodes: int, seed: int, greedy: bool, runtime: str = "auto") -> Scores:
    """Let a policy play whole episodes on the workers.

    The same seed and the same number of slots give the same episodes. With another number of workers the random numbers
    are the same, but what the policy computes may differ in its last bits, which continuous actions show.

    Args:
        envs: the environments; every episode must come to an end.
        policy: what `ClusterEnv.attach` takes.
        episodes: how many, over all slots.
        seed: of the environments and of the actions.
        greedy: take the most likely action, in place of a sampled one.
        runtime: what runs the policy on the workers.
    """
    count = Count(episodes, envs.num_envs)
    envs.reset(seed=seed)
    envs.attach(policy, sync="never", encoding="fp32", seed=seed, runtime=runtime, deterministic=greedy)
    while not count.done:
        count.take(envs.rollout(_STEPS).episodes)
    envs.detach()
    return count.scores()


def acting_network(learner: Learner[Any], tensors: Mapping[str, Tensor], envs: ClusterEnv) -> Any:
    """The network of a checkpoint that acts; of learners with a target network it may be that one. It explores no more.

    Raises:
        ConfigError: it is not one for these environments.
    """
    updater = learner.make_updater(envs.single_observation_space, envs.single_action_space)
    try:
        updater.restore(tensors)
    except (RuntimeError, KeyError, ValueError) as error:  # torch's words for other shapes and other names
        raise ConfigError(
            f"the network of the run does not fit observations {envs.single_observation_space} and actions "
            f"{envs.single_action_space}: {error}. Evaluate with the arguments of the environment that it learned with."
        ) from error
    return updater.judged


def arguments_for_evaluation(env_id: str) -> dict[str, Any]:
    """What is different from training: an Atari game is played to its end, whatever becomes of a life.

    Example:
        >>> arguments_for_evaluation("clusterenv/AtariPong-v0"), arguments_for_evaluation("CartPole-v1")
        ({'episodic_life': False}, {})
    """
    return {"episodic_life": False} if env_id.rpartition(":")[2].startswith(_ATARI) else {}
