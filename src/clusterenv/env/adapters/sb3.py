"""A ClusterEnv as a Stable-Baselines3 `VecEnv`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode

from clusterenv.env.infos import DIALECTS
from clusterenv.errors import ConfigError

try:
    from stable_baselines3.common.vec_env import VecEnv
except ImportError as error:
    raise ImportError("as_sb3() needs Stable-Baselines3. Install it with: pip install 'clusterenv[sb3]'") from error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterenv.env.vector import ClusterEnv


def as_sb3(envs: ClusterEnv) -> Sb3VecEnv:
    """Wrap a batch that resets in the same step, as Stable-Baselines3 expects."""
    if envs.autoreset_mode is not AutoresetMode.SAME_STEP:
        raise ConfigError(
            f"Stable-Baselines3 needs autoreset in the same step, but this batch has {envs.autoreset_mode.value}. "
            "Make it with vector_kwargs={'autoreset_mode': 'SameStep'}."
        )
    if envs._dialect != DIALECTS[0]:
        raise ConfigError(
            f"Stable-Baselines3 needs the last observation of an episode, which infos={envs._dialect!r} calls by "
            "another name. Make the batch without infos=."
        )
    if not envs.copy:
        raise ConfigError(
            "Stable-Baselines3 keeps the observations of one step over the next, which overwrites them with "
            "copy=False. Make the batch without copy=."
        )
    return Sb3VecEnv(envs)


class Sb3VecEnv(VecEnv):
    """The batch with Stable-Baselines3's names: four values from `step`, infos as a list of dictionaries."""

    def __init__(self, envs: ClusterEnv) -> None:
        self.envs = envs
        self.metadata = envs.metadata
        self._sent: Any = None
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> Any:
        """Reset every slot, with the seeds and options given by `seed` and `set_options`."""
        options = [dict(option) for option in self._options]
        seeds = [None if seed is None else int(seed) for seed in self._seeds]
        if any(option != options[0] for option in options):
            raise ConfigError(
                "set_options with different options per environment is not supported; pass one dictionary."
            )
        observations, infos = self.envs.reset(
            seed=None if all(seed is None for seed in seeds) else seeds, options=options[0] or None
        )
        self.reset_infos = self._listed(infos)
        self._reset_seeds()
        self._reset_options()
        return observations

    def step_async(self, actions: Any) -> None:
        """Send the actions."""
        self.envs.step_async(actions)

    def step_wait(self) -> tuple[Any, Any, Any, list[dict[str, Any]]]:
        """Take the results."""
        observations, rewards, terminated, truncated, infos = self.envs.step_wait()
        listed = self._listed(infos)
        for slot in np.flatnonzero(terminated | truncated).tolist():
            # The infos of the last step go to the user now, those of the reset that followed it are kept apart.
            began = listed[slot]
            last = began.pop("final_info", None) or {}
            listed[slot] = {**last, "terminal_observation": began.pop("final_obs", None)}
            if "worker_lost" in began:
                listed[slot]["worker_lost"] = began.pop("worker_lost")
            self.reset_infos[slot] = began
        for slot, info in enumerate(listed):
            info["TimeLimit.truncated"] = bool(truncated[slot] and not terminated[slot])
        return observations, rewards.astype(np.float32), terminated | truncated, listed

    def close(self) -> None:
        """Close the batch."""
        self.envs.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Read an attribute."""
        return list(self.envs.get_attr(attr_name, indices=self._slots(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute to one value, which may itself be a list."""
        slots = self._slots(indices)
        self.envs.set_attr(attr_name, [value] * len(slots), indices=slots)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """Call a method."""
        return list(self.envs.call(method_name, *method_args, indices=self._slots(indices), **method_kwargs))

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """Whether each environment is wrapped by this class."""
        # The text of a wrapped environment names its wrappers from the outside in: <TimeLimit<OrderEnforcing<...>>>.
        texts = self.envs.call("__str__", indices=self._slots(indices))
        return [wrapper_class.__name__ in re.split(r"[<>]+", text) for text in texts]

    def has_attr(self, attr_name: str) -> bool:
        """Whether every environment has this attribute; it is not read, so a method is not called."""
        return all(self.envs.call("has_wrapper_attr", attr_name))

    def get_images(self) -> Sequence[Any]:
        """What each environment renders."""
        return list(self.envs.render() or ())

    def _slots(self, indices: Any) -> list[int]:
        return list(self._get_indices(indices))

    def _listed(self, infos: dict[str, Any]) -> list[dict[str, Any]]:
        """One dictionary per slot."""
        return [_one(infos, slot) for slot in range(self.num_envs)]


def _one(infos: dict[str, Any], slot: int) -> dict[str, Any]:
    """The info of one slot, taken out of a batch with its masks."""
    info = {}
    for key, value in infos.items():
        mask = infos.get(f"_{key}")
        if mask is None or not mask[slot]:
            continue
        info[key] = _one(value, slot) if isinstance(value, dict) else value[slot]
    return info
