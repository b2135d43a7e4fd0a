"""The last action and the last reward as a part of the observation."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from clusterenv.errors import ConfigError


class LastActionReward(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Shows the policy what it did last and what it got for it, beside what it sees.

    The observation becomes a Dict of `obs`, `last_action` and `last_reward`. It is made where the environment is, so
    the policy on the worker and the learner see the same numbers.

    At the start of an episode nothing was done yet: the action is the first of its space (for a Box the zero, or the
    number nearest to it), the reward 0. So an episode follows from its seed and its actions alone, and a policy cannot
    carry anything over from the episode before.

    Args:
        env: the environment; its actions are Discrete, MultiDiscrete, MultiBinary or Box.
        clip: the reward that is shown lies between -clip and clip; None to show it as it is. The reward that the
            learner gets is not changed.

    Example:
        >>> env = LastActionReward(gymnasium.make("CartPole-v1"))
        >>> _ = env.reset(seed=1)
        >>> obs, *_ = env.step(1)
        >>> int(obs["last_action"]), float(obs["last_reward"])
        (1, 1.0)
    """

    def __init__(self, env: gymnasium.Env[Any, Any], clip: float | None = 1.0) -> None:
        RecordConstructorArgs.__init__(self, clip=clip)
        gymnasium.Wrapper.__init__(self, env)
        if clip is not None and not clip > 0:
            raise ConfigError(f"clip={clip!r} must be positive, or None to show rewards as they are.")
        self._clip = np.inf if clip is None else float(clip)
        self._nothing = _nothing_done(env.action_space)
        self.observation_space = spaces.Dict(
            obs=env.observation_space,
            last_action=env.action_space,
            last_reward=spaces.Box(-self._clip, self._clip, (), np.float32),
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment's, with nothing done yet."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._shown(obs, self._nothing, 0.0), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment's, with this action and its reward in the observation."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._shown(obs, action, float(reward)), reward, terminated, truncated, info

    def _shown(self, obs: Any, action: Any, reward: float) -> dict[str, Any]:
        # Of the action a copy: an environment's caller may use the array again.
        return {
            "obs": obs,
            "last_action": np.array(action, self._nothing.dtype),
            "last_reward": np.array(min(max(reward, -self._clip), self._clip), np.float32),
        }


def _nothing_done(space: Any) -> Any:
    """The first action of a space, as an array."""
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return np.array(space.start, space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, space.dtype)
    if isinstance(space, spaces.Box):
        return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    raise ConfigError(
        f"LastActionReward cannot show actions of {space}: they must be Discrete, MultiDiscrete, MultiBinary or Box."
    )
