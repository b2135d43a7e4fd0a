"""A ClusterEnv as a Stable-Baselines3 `VecEnv`."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from clusterenv.config import Inproc
from clusterenv.env.checks import OptionsPerSlot, call_name
from clusterenv.env.infos import DIALECTS, infos_by_slot
from clusterenv.env.turns import Pending
from clusterenv.errors import ActionError, ActionTypeError, ConfigError, ConfigTypeError
from clusterenv.worker.describe import WRAPPER_CLASSES, class_name

try:
    from stable_baselines3.common.vec_env import VecEnv
except ImportError as error:
    raise ImportError("as_sb3() needs Stable-Baselines3. Install it with: pip install 'clusterenv[sb3]'") from error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterenv.env.vector import ClusterEnv

    Info = dict[str, Any]


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
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)
        # That of the environments, after the constructor has put its own there.
        self.metadata = {key: value for key, value in envs.metadata.items() if key != "autoreset_mode"}

    def reset(self) -> Any:
        """Reset every slot, with the seeds and options given by `seed` and `set_options`."""
        seeds = [None if seed is None else int(seed) for seed in self._seeds]
        with self.envs._turns:
            self.envs._begin_reset("reset", seeds, self._next_options())
            observations, reported = self.envs._end_reset(None, infos_by_slot)
        self.reset_infos = [_merged(infos) for infos in self._listed(reported)]
        self._reset_seeds()
        self._reset_options()
        return observations

    def set_options(self, options: list[dict[str, Any]] | dict[str, Any] | None = None) -> None:
        """Options for the next reset: one dictionary for all environments, or a list with one for each."""
        if options is not None and not isinstance(options, dict):
            self._check_options(options)
        super().set_options(options)

    def step_async(self, actions: Any) -> None:
        """Send the actions, one per environment. A batch of them is taken too, but not for a Tuple space."""
        by_env = isinstance(self.action_space, spaces.Tuple) or (
            isinstance(self.action_space, spaces.Dict) and not isinstance(actions, Mapping)
        )
        self.envs.step_async(self._batched(actions) if by_env else actions)

    def step_wait(self) -> tuple[Any, Any, Any, list[Info]]:
        """Take the results."""
        with self.envs._turns:
            self.envs._turns.require_pending(Pending.STEP)
            observations, rewards, terminated, truncated, reported = self.envs._end_step(None, infos_by_slot)
        listed, ended = self._listed(reported), terminated | truncated
        infos = [_merged(of_slot) for of_slot in listed]
        for slot in np.flatnonzero(ended).tolist():
            infos[slot], self.reset_infos[slot] = _parted(listed[slot])
        for info, cut_off in zip(infos, (truncated & ~terminated).tolist(), strict=True):
            info["TimeLimit.truncated"] = cut_off
        return observations, rewards.astype(np.float32), ended, infos

    def close(self) -> None:
        """Close the batch."""
        self.envs.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Read an attribute."""
        return self._called(attr_name, indices)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute to one value, which may itself be a list."""
        slots = self._slots(indices)
        if slots:
            self.envs.set_attr(attr_name, [value] * len(slots), indices=slots)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """Call a method."""
        return self._called(method_name, indices, *method_args, **method_kwargs)

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """Whether each environment is wrapped by this class, or by one that is derived from it."""
        if self.envs._whole_blocks:
            # Of an environment within a vectorised one we only get the text, which names its wrappers from the outside
            # in: <TimeLimit<OrderEnforcing<...>>>.
            texts = self._called("__str__", indices)
            return [wrapper_class.__name__ in re.split(r"[<>]+", text) for text in texts]
        wanted = class_name(wrapper_class)
        return [wanted in names for names in self._called(WRAPPER_CLASSES, indices)]

    def has_attr(self, attr_name: str) -> bool:
        """Whether every environment has this attribute; it is not read, so a method is not called."""
        return all(self.envs.call("has_wrapper_attr", attr_name))

    def get_images(self) -> Sequence[Any]:
        """What each environment renders."""
        return list(self.envs.render() or ())

    def _slots(self, indices: Any) -> list[Any]:
        """As the indices of a list: negative ones count from the end, and there may be none."""
        count = self.num_envs
        if not isinstance(indices, (Iterable, int, type(None))):
            raise ConfigTypeError(f"indices={indices!r} must be a whole number, a list of them, or None for all.")
        return [slot + count if slot in range(-count, 0) else slot for slot in self._get_indices(indices)]

    def _called(self, name: str, indices: Any, /, *args: Any, **kwargs: Any) -> list[Any]:
        # Not by `call`: a method of an environment may have an argument that is called `name`, too.
        slots = self._slots(indices)
        if not slots:
            return []
        with self.envs._turns:
            self.envs._begin_call("call", call_name(name), args, kwargs, slots)
            return list(self.envs._end_call(None))

    def _batched(self, actions: Any) -> Any:
        """The batch that is made of one action per environment, each of them of several parts."""
        if not isinstance(actions, Iterable):
            raise ActionTypeError(
                f"the actions are {actions!r}. Pass a list with one action for each of {self.num_envs} environments."
            )
        listed = list(actions)
        if len(listed) != self.num_envs:
            raise ActionError(
                f"got {len(listed)} actions for {self.num_envs} environments. Pass one action per environment."
            )
        try:
            return _turned(self.action_space, listed)
        except (TypeError, ValueError, LookupError) as error:
            raise ActionError(f"an action does not have the structure of {self.action_space}: {error!r}.") from error

    def _check_options(self, options: object) -> None:
        if not isinstance(options, (list, tuple)) or not all(isinstance(own, dict | None) for own in options):
            raise ConfigTypeError(f"options={options!r} must be a dictionary, a list of dictionaries, or None.")
        if len(options) != self.num_envs:
            raise ConfigError(
                f"options has {len(options)} dictionaries, but the batch has {self.num_envs} environments. "
                "Pass one for each, or a single dictionary for all."
            )
        if self.envs._whole_blocks:
            raise ConfigError(
                "options with a dictionary per environment cannot reach the rows of a vectorised environment. "
                "Pass a single dictionary for all."
            )

    def _next_options(self) -> dict[str, Any] | OptionsPerSlot | None:
        first = self._options[0]
        if not any(self._options):
            return None
        # A single dictionary is there once for every environment. It travels once for all of them.
        if all(options is first for options in self._options):
            return first
        return OptionsPerSlot([options or None for options in self._options])

    def _listed(self, reported: dict[Any, list[Info]]) -> list[list[Info]]:
        """What was reported of each slot."""
        if isinstance(self.envs.cluster, Inproc):
            # The environments live in this process and hand over their own objects, which their next step may change.
            reported = copy.deepcopy(reported)
        return [reported.get(slot, []) for slot in range(self.num_envs)]


def _turned(space: spaces.Space[Any], actions: list[Any]) -> Any:
    """A list of actions with parts as parts with a list each."""
    if isinstance(space, spaces.Tuple):
        columns = list(zip(*actions, strict=True))
        return tuple(_turned(part, list(column)) for part, column in zip(space.spaces, columns, strict=True))
    if isinstance(space, spaces.Dict):
        return {key: _turned(part, [action[key] for action in actions]) for key, part in space.spaces.items()}
    return actions


def _merged(infos: Iterable[Info]) -> Info:
    return {key: value for info in infos for key, value in info.items()}


def _parted(infos: list[Info]) -> tuple[Info, Info]:
    """The infos of a slot whose episode has ended, as those of its last step and those of the reset after it."""
    lost = _merged(info for info in infos if "worker_lost" in info)
    began = _merged(info for info in infos if "worker_lost" not in info)
    last = began.pop("final_info", None) or {}
    return {**last, **lost, "terminal_observation": began.pop("final_obs", None)}, began
