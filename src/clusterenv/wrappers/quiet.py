"""Steps without the infos that nobody reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from clusterenv.errors import ConfigTypeError

if TYPE_CHECKING:
    from collections.abc import Sequence


class KeepInfos(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Drops the infos of an environment, apart from those that are named.

    Observations and rewards lie in shared memory, or in one message per host, but infos travel by themselves: many
    environments have one for each step, which then costs more than the step.

    Args:
        env: the environment.
        keep: the keys that are kept, as a tuple or a list.

    Raises:
        ConfigTypeError: `keep` is one text, which would be taken for its letters.

    Example:
        >>> from gymnasium.wrappers import RecordEpisodeStatistics
        >>> env = KeepInfos(RecordEpisodeStatistics(gymnasium.make("CartPole-v1", max_episode_steps=1)))
        >>> env.reset(seed=1)[1], env.step(1)[4]
        ({}, {})
    """

    def __init__(self, env: gymnasium.Env[Any, Any], keep: Sequence[str] = ()) -> None:
        if isinstance(keep, str):
            raise ConfigTypeError(
                f"keep={keep[:80]!r} must be several keys, not one text: write keep=({keep[:80]!r},)."
            )
        RecordConstructorArgs.__init__(self, keep=keep)
        gymnasium.Wrapper.__init__(self, env)
        self._keep = tuple(keep)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment's."""
        obs, info = self.env.reset(seed=seed, options=options)
        return obs, self._kept(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment's."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, self._kept(info) if info else info

    def _kept(self, info: dict[str, Any]) -> dict[str, Any]:
        return {key: info[key] for key in self._keep if key in info}
