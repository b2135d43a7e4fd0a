"""A block that is one vectorised environment: EnvPool, or any `gymnasium.vector.VectorEnv`."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorWrapper

from clusterenv import spaces
from clusterenv.transport.arena import Word
from clusterenv.worker.describe import BlockDescription
from clusterenv.worker.report import EnvFailed, Report, failure_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from clusterenv.transport.arena import Arena

_logger = logging.getLogger(__name__)


class VectorBlock:
    """Steps one vectorised environment with a row per slot. It is stepped whole or not at all.

    Args:
        factory: called with the number of rows; returns the vectorised environment.
        slots: the slots of its rows.
    """

    whole = True

    def __init__(self, factory: Callable[[int], Any], slots: range) -> None:
        self.slots = slots
        try:
            self._envs = _checked(factory(len(slots)), len(slots))
        except Exception as error:  # the user's code
            raise EnvFailed(failure_of(error, slots.start, "build")) from error
        self._restart_seeds: list[int | None] | None = None

    def describe(self) -> BlockDescription:
        """The spaces and metadata of one row."""
        envs = self._envs
        # EnvPool's `observation_space` is already that of one row, and it has no `single_` names.
        observation_space = getattr(envs, "single_observation_space", envs.observation_space)
        action_space = getattr(envs, "single_action_space", envs.action_space)
        metadata = dict(getattr(envs, "metadata", None) or {})
        metadata.setdefault("autoreset_mode", AutoresetMode.NEXT_STEP)
        return BlockDescription(
            self.slots, observation_space, action_space, metadata, getattr(envs, "render_mode", None)
        )

    def bind(self, arena: Arena, worker: int, observation_space: Any, action_space: Any) -> None:
        """Take the rows of this block in the arena."""
        rows = arena.spec.rows(self.slots)
        self._words, self._slot_word = arena.words, arena.word(worker, Word.SLOT)
        self._writing_word = arena.word(worker, Word.WRITING)
        self._words[self._slot_word] = self._words[self._writing_word] = -1
        self._observation_space, self._action_space = observation_space, action_space
        self._observation = [array[rows] for array in arena.observation]
        self._action = [array[rows] for array in arena.action]
        self._reward = arena.reward[rows]
        self._terminated, self._truncated = arena.terminated[rows], arena.truncated[rows]
        self._action_dtype = _native_dtype(self._envs)

    def replace_lost(self, seeds: Sequence[int | None]) -> None:
        """Start as the replacement of a lost block: the first step is a reset with these seeds."""
        self._restart_seeds = list(seeds)

    def actions(self, rows: Sequence[int]) -> list[Any]:
        """The actions of the block; they stay in the arena until `step` takes them."""
        return [None] * len(rows)

    def owing(self, rows: Sequence[int]) -> list[int]:
        """Not known: the vectorised environment resets by itself."""
        return []

    def step(self, rows: Sequence[int], actions: Sequence[Any]) -> Report:
        """Step the whole block."""
        self._words[self._slot_word] = self.slots.start
        try:
            if self._restart_seeds is not None:
                seeds, self._restart_seeds = self._restart_seeds, None
                return self.reset(rows, seeds, None)
            parts = [array.astype(self._action_dtype or array.dtype) for array in self._action]
            observation, reward, terminated, truncated, infos = self._envs.step(
                spaces.assemble(self._action_space, parts)
            )
            self._store_observation(observation)
            self._reward[:], self._terminated[:], self._truncated[:] = reward, terminated, truncated
            return self._reported(infos)
        except Exception as error:  # the user's code
            # One environment holds all rows, so there is no single one to put in its place.
            return Report(failures=[failure_of(error, self.slots.start, "step")])
        finally:
            self._words[self._slot_word] = -1

    def reset(self, rows: Sequence[int], seeds: Sequence[int | None], options: dict[str, Any] | None) -> Report:
        """Reset all rows, or some of them by the `reset_mask` that Gymnasium defines."""
        if len(rows) < len(self.slots):
            if not _takes_mask(self._envs):
                error = NotImplementedError(
                    f"{type(self._envs).__name__} cannot reset some of its rows. Reset all slots of a worker."
                )
                return Report(failures=[failure_of(error, self.slots.start, "reset")])
            mask = np.zeros(len(self.slots), dtype=np.bool_)
            mask[list(rows)] = True
            options = {**(options or {}), "reset_mask": mask}
        fresh, self._restart_seeds = self._restart_seeds or [None] * len(self.slots), None
        seed_of = {row: fresh[row] if seed is None else seed for row, seed in zip(rows, seeds, strict=True)}
        seed = _together([seed_of.get(row) for row in range(len(self.slots))])
        try:
            observation, infos = self._envs.reset(seed=seed, options=options)
            self._store_observation(observation)
            which = list(rows)
            self._reward[which], self._terminated[which], self._truncated[which] = 0.0, False, False
            return self._reported(infos)
        except Exception as error:  # the user's code
            return Report(failures=[failure_of(error, self.slots.start, "reset")])

    def call(self, rows: Sequence[int], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Call a method of the rows or read an attribute; where rows have none, of the environment as a whole."""
        results = self._guarded(name, lambda: _asked(self._envs, len(self.slots), name, args, kwargs))
        return [results[row] for row in rows]

    def set_attr(self, rows: Sequence[int], name: str, values: Sequence[Any]) -> None:
        """Set an attribute of all rows."""
        if len(rows) != len(self.slots):
            error = ValueError(f"set_attr({name!r}) on a vectorised block must name all its slots {self.slots}")
            raise EnvFailed(failure_of(error, self.slots.start, name))
        self._guarded(name, lambda: _set(self._envs, name, list(values)))

    def close(self) -> None:
        """Close the vectorised environment."""
        try:
            self._envs.close()
        except Exception:  # the user's code
            _logger.warning("a vectorised environment raised in close()", exc_info=True)

    def _store_observation(self, observation: Any) -> None:
        parts = spaces.take_apart(self._observation_space, observation)
        self._words[self._writing_word] = self.slots.stop - 1  # all rows, one part after the other
        for array, part in zip(self._observation, parts, strict=True):
            array[...] = spaces.fitted(part, array.shape, array.dtype)
        self._words[self._writing_word] = -1

    def _reported(self, infos: dict[str, Any]) -> Report:
        if not infos:
            return Report()
        slots = np.arange(self.slots.start, self.slots.stop)
        if "env_id" in infos:  # EnvPool counts from 0 in every block
            infos = {**infos, "env_id": slots}
        return Report(block_infos=[(slots, infos)])

    def _guarded(self, doing: str, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except Exception as error:  # the user's code
            raise EnvFailed(failure_of(error, self.slots.start, doing)) from error


def _checked(envs: Any, count: int) -> Any:
    """The environment that a factory has made, if it is one with so many rows."""
    if not all(hasattr(envs, name) for name in ("observation_space", "action_space", "step", "reset")):
        raise TypeError(
            f"factory({count}) returned {str(envs)[:80]!r} ({type(envs).__name__}), not a vectorised environment"
        )
    try:
        # An EnvPool tells it by its length.
        rows = envs.num_envs if hasattr(envs, "num_envs") else len(envs) if hasattr(envs, "__len__") else None
        if rows is None:
            raise TypeError(
                f"factory({count}) returned a {type(envs).__name__}, which has no num_envs. Return a "
                "gymnasium.vector.VectorEnv; single environments are for ClusterEnv or make_vec"
            )
        if rows != count:
            raise ValueError(
                f"factory({count}) returned a {type(envs).__name__} with {rows} rows; it must have {count}, as many as "
                "the factory is asked for"
            )
    except Exception:
        with contextlib.suppress(Exception):  # the user's code; the other error is the one to tell
            envs.close()
        raise
    return envs


def _layers(envs: Any) -> Iterator[Any]:
    """The environment under its wrappers, from the outside: those for vectors do not pass on names that they lack."""
    while True:
        yield envs
        if not isinstance(envs, VectorWrapper):
            return
        envs = envs.env


def _asked(envs: Any, count: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
    """What a method or attribute says, for each row."""
    for layer in _layers(envs):
        if hasattr(layer, "call"):  # it asks the environment of each row
            results: Sequence[Any] = layer.call(name, *args, **kwargs)
            return results
        if hasattr(layer, name):
            return _shared_out(layer, count, name, args, kwargs)
    kind = type(envs.unwrapped).__name__ if hasattr(envs, "unwrapped") else type(envs).__name__
    raise AttributeError(f"{kind} has no attribute {name!r}, and no call() that would ask its rows")


def _shared_out(layer: Any, count: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
    """One value per row, of a method or attribute of all rows: what has an item for each is shared out."""
    found = getattr(layer, name)
    asked = callable(found)
    result = found(*args, **kwargs) if asked else found
    items = len(result) if isinstance(result, (tuple, list)) or np.ndim(result) else None
    if items == count:
        shared: Sequence[Any] = result
        return shared
    # An attribute may be a list of anything. What a method returns for some rows must not pass for all of them.
    if asked and items is not None:
        raise ValueError(f"{name}() of {type(layer).__name__} returned {items} values for {count} rows")
    return [result] * count


def _set(envs: Any, name: str, values: list[Any]) -> None:
    """Set an attribute of each row; where rows have none, of the environment as a whole."""
    layers = list(_layers(envs))
    for layer in layers:
        if hasattr(layer, "set_attr"):
            layer.set_attr(name, values)
            return
    if not all(value is values[0] or np.array_equal(value, values[0]) for value in values):
        raise ValueError(
            f"{type(layers[-1]).__name__} has no set_attr(), so all its rows share one {name!r}. Set the same value in "
            "all slots of a worker"
        )
    owner = next((layer for layer in layers if hasattr(layer, name)), layers[-1])
    setattr(owner, name, values[0])


def _takes_mask(envs: Any) -> bool:
    """Whether `options["reset_mask"]` means something to this environment; others would reset all their rows."""
    base = getattr(envs, "unwrapped", envs)
    if isinstance(base, (SyncVectorEnv, AsyncVectorEnv)) or type(envs).__module__.startswith("envpool"):
        return True
    return (getattr(envs, "metadata", None) or {}).get("autoreset_mode") is AutoresetMode.DISABLED


def _together(seeds: list[int | None]) -> int | list[int | None] | None:
    """Seeds as one number where they count up from it: many vectorised environments take no list."""
    first = seeds[0]
    if all(seed is None for seed in seeds):
        return None
    if first is not None and seeds == list(range(first, first + len(seeds))):
        return first
    return seeds


def _native_dtype(envs: Any) -> Any:
    """The dtype that the environment insists on where it is not that of its space (EnvPool: int32 actions)."""
    spec = getattr(envs, "spec", None)
    array_spec = getattr(spec, "action_array_spec", None)
    if isinstance(array_spec, dict) and "action" in array_spec:
        return array_spec["action"].dtype
    return None
