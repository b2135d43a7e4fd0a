"""The number of the task as a part of the observation."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from clusterenv.errors import ConfigError


class ShowTask(gymnasium.ObservationWrapper[Any, Any, Any], RecordConstructorArgs):
    """Shows the policy which of several tasks it plays, beside what it sees.

    The observation becomes a Dict of `obs` and `task`, a number that networks read as a one-hot.

    Args:
        env: the environment.
        task: which one this is, from 0.
        tasks: how many there are.

    Example:
        >>> env = ShowTask(gymnasium.make("CartPole-v1"), task=2, tasks=3)
        >>> obs, _ = env.reset(seed=1)
        >>> obs["task"], env.observation_space["task"]
        (2, Discrete(3))
    """

    def __init__(self, env: gymnasium.Env[Any, Any], task: int, tasks: int) -> None:
        RecordConstructorArgs.__init__(self, task=task, tasks=tasks)
        gymnasium.ObservationWrapper.__init__(self, env)
        if not 0 <= task < tasks:
            raise ConfigError(f"task={task} must be from 0 to {tasks - 1}, as there are tasks={tasks}.")
        self._task = task
        self.observation_space = spaces.Dict(obs=env.observation_space, task=spaces.Discrete(tasks))

    def observation(self, observation: Any) -> dict[str, Any]:
        """What is seen, and the task."""
        return {"obs": observation, "task": self._task}
