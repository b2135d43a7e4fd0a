"""A block: the environments of one worker, stepped straight into the arena.

The same class runs in a worker process and, for `cluster="inproc"`, in the head.
"""

from __future__ import annotations

import copy
import logging
import operator
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, iterate

from clusterenv import spaces
from clusterenv.cluster.restart import fresh_seed
from clusterenv.envs import EPISODE_CONTINUES
from clusterenv.errors import named, words_of
from clusterenv.transport.arena import Word
from clusterenv.worker.describe import WRAPPER_CLASSES, BlockDescription, describe_envs, wrapper_classes
from clusterenv.worker.report import EnvFailed, Report, failure_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterenv.transport.arena import Arena

    Env = gymnasium.Env[Any, Any]

_logger = logging.getLogger(__name__)

# How often a reset is tried in fresh environments before the head is told that it is hopeless.
_RESET_ATTEMPTS = 3


class EnvBlock:
    """Steps a list of environments, one row each.

    Args:
        env_fns: one factory per slot; they are kept to replace an environment that raised.
        slots: the slots of these environments.
        autoreset_mode: when an environment whose episode ended is reset.
        rebuild: whether an environment that raised is replaced here (`on_loss="restart"`).
    """

    whole = False  # the block may be stepped in part

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Env]],
        slots: range,
        autoreset_mode: AutoresetMode,
        *,
        rebuild: bool,
    ) -> None:
        self.slots = slots
        self._env_fns = env_fns
        self.autoreset_mode = autoreset_mode
        # A policy that plays sets this, to get the last observation and info of every episode; they go into no report.
        self.keep_final: Callable[[int, Any, Any], None] | None = None
        self._rebuild_lost = rebuild
        self._envs = [self._build(row) for row in range(len(slots))]
        self._done = [False] * len(slots)  # slots whose next step is a reset
        # Rows whose last episode, which a step has ended, goes on in the next: a life of a game.
        self.going_on: set[int] = set()
        # The last seed of each slot, and how often its environment was replaced since: the next fresh seed follows.
        self._seeds: list[int | None] = [None] * len(slots)
        self._restarts = [0] * len(slots)
        # The seed for the first reset of a fresh environment that takes the place of a lost one.
        self._fresh_seeds: list[int | None] = [None] * len(slots)

    def describe(self) -> BlockDescription:
        """The spaces and metadata of the environments."""
        return describe_envs(self._envs, self.slots)

    def bind(self, arena: Arena, worker: int, observation_space: Any, action_space: Any) -> None:
        """Take the rows of this block in the arena."""
        rows = arena.spec.rows(self.slots)
        self._words = arena.words
        self._slot_word = arena.word(worker, Word.SLOT)
        self._writing_word = arena.word(worker, Word.WRITING)
        self._words[self._slot_word] = self._words[self._writing_word] = -1
        # Memoryviews store a scalar in 30 ns where an array takes 50.
        self._reward: Any = arena.reward[rows].data
        self._terminated, self._truncated = arena.terminated[rows].data, arena.truncated[rows].data
        self.observation_space = observation_space
        self._observation = [array[rows] for array in arena.observation]
        self._action = [array[rows] for array in arena.action]
        self._action_space = action_space
        self._nested_actions = isinstance(action_space, (gymnasium.spaces.Tuple, gymnasium.spaces.Dict))
        # Where no array can hold observations: those on their way to the head, and the last of each row.
        self._objects: list[tuple[int, Any]] = []
        self._seen: list[Any] = [None] * len(self.slots)
        self._write = self._observation_writer()

    def replace_lost(self, seeds: Sequence[int | None]) -> None:
        """Start as the replacement of a lost block: the first thing each slot does is a reset with these seeds."""
        self._fresh_seeds = list(seeds)
        # From these follow the seeds of environments that raise later.
        self._seeds = list(seeds)
        self._done = [self.autoreset_mode is AutoresetMode.NEXT_STEP] * len(self.slots)

    def actions(self, rows: Sequence[int]) -> list[Any]:
        """The actions of these rows in the arena, as `SyncVectorEnv` would hand them over."""
        # Always a copy: an environment may keep its action, and the arena is overwritten by the next one.
        whole = len(rows) == len(self.slots)
        taken = [array.copy() if whole else array[rows] for array in self._action]
        if not self._nested_actions:
            return list(taken[0])
        batch = spaces.assemble(self._action_space, taken)
        return list(iterate(batch_space(self._action_space, len(rows)), batch))

    def step(self, rows: Sequence[int], actions: Sequence[Any]) -> Report:
        """Step these rows once, each with its action.

        This is the hot loop: about half a microsecond of ours per environment, beside the environment's own time.
        """
        report = Report()
        envs, done, first = self._envs, self._done, self.slots.start
        words, slot_word, writing_word = self._words, self._slot_word, self._writing_word
        write, reward_of = self._write, self._reward
        terminated_of, truncated_of = self._terminated, self._truncated
        reward: Any
        for row, action in zip(rows, actions, strict=True):
            words[slot_word] = first + row
            try:
                if done[row]:
                    observation, info = self._reset_env(row)
                    reward, terminated, truncated = 0.0, False, False
                else:
                    observation, reward, terminated, truncated, info = envs[row].step(action)
                    if terminated or truncated:
                        observation, info = self._end_episode(row, observation, info, report)
                words[writing_word] = first + row
                write(row, observation)
                reward_of[row] = reward if type(reward) is float else as_reward(reward)
                terminated_of[row] = terminated
                truncated_of[row] = truncated
                if info:
                    report.infos.append((first + row, info if type(info) is dict else checked_info(info)))
            except Exception as error:  # the user's code: whatever it raises is reported
                self._failed_in_step(row, _explained(error), report)
        words[slot_word] = words[writing_word] = -1
        self._take_objects(report)
        return report

    def owing(self, rows: Sequence[int]) -> list[int]:
        """Those of these rows whose next step is a reset."""
        done = self._done
        return [row for row in rows if done[row]] if True in done else []

    def reset(self, rows: Sequence[int], seeds: Sequence[int | None], options: dict[str, Any] | None) -> Report:
        """Reset these rows, each with its seed."""
        report = Report()
        for row, seed in zip(rows, seeds, strict=True):
            self._words[self._slot_word] = self.slots.start + row
            self._reset_row(row, seed, options, report)
        self._words[self._slot_word] = -1
        self._take_objects(report)
        return report

    def begin_episodes(self, mode: AutoresetMode, *, every: bool) -> tuple[list[int], Report]:
        """Before a policy plays: reset the rows that owe a reset in this mode, or every row. Returns these rows."""
        owed = self._done if mode is AutoresetMode.NEXT_STEP else [False] * len(self.slots)
        if mode is AutoresetMode.DISABLED:
            owed = [bool(ended) for ended in map(max, self._terminated, self._truncated)]
        rows = [row for row, owes in enumerate(owed) if every or owes]
        return rows, self.reset(rows, [None] * len(rows), None)

    def call(self, rows: Sequence[int], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Call a method of these environments, or read an attribute."""

        def use(env: Env) -> Any:
            if name == WRAPPER_CLASSES:
                return wrapper_classes(env)
            attribute = env.get_wrapper_attr(name)
            return attribute(*args, **kwargs) if callable(attribute) else attribute

        return [self._guarded(row, name, use) for row in rows]

    def set_attr(self, rows: Sequence[int], name: str, values: Sequence[Any]) -> None:
        """Set an attribute of these environments."""
        for row, value in zip(rows, values, strict=True):
            self._guarded(row, name, operator.methodcaller("set_wrapper_attr", name, value))

    def close(self) -> None:
        """Close every environment, also when some raise."""
        for env in self._envs:
            _close_quietly(env)

    def _guarded(self, row: int, doing: str, act: Callable[[Env], Any]) -> Any:
        try:
            return act(self._envs[row])
        except Exception as error:  # the user's code
            raise EnvFailed(failure_of(error, self.slots.start + row, doing)) from error

    def _end_episode(self, row: int, observation: Any, info: Any, report: Report) -> tuple[Any, Any]:
        """An episode has ended: reset now, with the next step, or not at all. Returns what the slot shows now."""
        if self.keep_final is not None:
            self.keep_final(row, observation, info)
            return self._next_episode(row, report)
        if isinstance(info, dict) and info.get(EPISODE_CONTINUES):
            self.going_on.add(row)
        else:
            self.going_on.discard(row)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            # Copies, because many environments reuse their buffers in the reset that follows.
            final = {"final_obs": _snapshot(observation), "final_info": _snapshot(info)}
            report.infos.append((self.slots.start + row, final))
            return self._next_episode(row, report)
        self._done[row] = self.autoreset_mode is AutoresetMode.NEXT_STEP
        return observation, info

    def _next_episode(self, row: int, report: Report) -> tuple[Any, dict[str, Any]]:
        """Reset at the end of an episode. One that raises there is replaced: the step that ended the episode stands."""
        told: dict[str, Any] = {}
        for attempt in range(1, _RESET_ATTEMPTS + 1):
            try:
                observation, info = self._reset_env(row)
                break
            except Exception as error:  # the user's code
                if attempt == _RESET_ATTEMPTS or not self._rebuild_lost or not self._replace(row, report):
                    raise
                report.failures.append(failure_of(error, self.slots.start + row, "reset", recovered=True))
                told = {"env_error": named(error)}
        return observation, {**info, **told} if told else info

    # Resets and replacements.

    def _reset_env(self, row: int) -> tuple[Any, dict[str, Any]]:
        """A reset without seed and options of the user's: at the end of an episode, or of a fresh environment."""
        seed, self._fresh_seeds[row] = self._fresh_seeds[row], None
        env = self._envs[row]
        result = _checked_reset(env.reset() if seed is None else env.reset(seed=seed))
        self._done[row] = False
        return result

    def _reset_row(self, row: int, seed: int | None, options: dict[str, Any] | None, report: Report) -> None:
        slot = self.slots.start + row
        if seed is not None:
            self._seeds[row], self._restarts[row] = seed, 0
        for attempt in range(1, _RESET_ATTEMPTS + 1):
            try:
                chosen = self._fresh_seeds[row] if seed is None else seed
                observation, info = _checked_reset(self._envs[row].reset(seed=chosen, options=options))
                self._write(row, observation)
            except Exception as error:  # the user's code
                recovered = self._rebuild_lost and attempt < _RESET_ATTEMPTS and self._replace(row, report)
                report.failures.append(failure_of(error, slot, "reset", recovered=recovered))
                if not recovered:
                    return
            else:
                self._reward[row], self._terminated[row], self._truncated[row] = 0.0, False, False
                self._done[row], self._fresh_seeds[row] = False, None
                if info:
                    report.infos.append((slot, info))
                return

    def _failed_in_step(self, row: int, error: Exception, report: Report) -> None:
        """An environment raised in a step: put a fresh one in its place, if that is wanted."""
        slot = self.slots.start + row
        recovered = self._rebuild_lost and self._replace(row, report)
        report.failures.append(failure_of(error, slot, "step", recovered=recovered))
        if not recovered:
            return
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            self._reset_replacement(row, report)
        self._reward[row], self._terminated[row], self._truncated[row] = 0.0, False, True
        self._done[row] = self.autoreset_mode is AutoresetMode.NEXT_STEP
        report.infos.append((slot, {"worker_lost": True, "env_error": named(error)}))

    def _reset_replacement(self, row: int, report: Report) -> None:
        """With autoreset in the same step, a fresh environment shows its first observation at once."""
        slot = self.slots.start + row
        if self._observation:
            before = spaces.assemble(self.observation_space, [array[row].copy() for array in self._observation])
        else:
            before = _snapshot(self._seen[row])
        if self.keep_final is not None:
            self.keep_final(row, before, None)
        try:
            observation, info = self._reset_env(row)
            self._write(row, observation)
        except Exception as error:  # the user's code
            report.failures.append(failure_of(error, slot, "reset"))
            return
        report.infos += [(slot, {"final_obs": before, "final_info": {}}), (slot, info)]

    def _replace(self, row: int, report: Report) -> bool:
        _close_quietly(self._envs[row])
        try:
            self._envs[row] = self._build(row)
        except EnvFailed as error:
            report.failures.append(error.failure)
            return False
        self._restarts[row] += 1
        self.going_on.discard(row)
        self._fresh_seeds[row] = fresh_seed(self._seeds[row], self.slots.start + row, self._restarts[row])
        return True

    def _build(self, row: int) -> Env:
        try:
            env = self._env_fns[row]()
            if not all(hasattr(env, name) for name in ("observation_space", "action_space", "step", "reset")):
                raise TypeError(f"the factory returned {str(env)[:80]!r} ({type(env).__name__}), not an environment")
            return env
        except Exception as error:  # the user's code
            raise EnvFailed(failure_of(error, self.slots.start + row, "build")) from error

    # Observations that fit no array.

    def _observation_writer(self) -> Callable[[int, Any], None]:
        if self._observation:
            return spaces.row_writer(self.observation_space, self._observation)

        def keep(row: int, observation: Any) -> None:
            self._seen[row] = _snapshot(observation)
            self._objects.append((self.slots.start + row, self._seen[row]))

        return keep

    def _take_objects(self, report: Report) -> None:
        if self._objects:
            report.observations, self._objects[:] = self._objects.copy(), []


def as_reward(value: Any) -> float:
    """A reward as a float: any real number, also as an array or a tensor of one element."""
    if isinstance(value, (int, float, np.integer, np.floating, np.bool_)):
        return float(value)
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "biuf":
        return float(value.item())
    # NumPy's other scalars, complex numbers and texts among them, have `__float__` too.
    if hasattr(type(value), "__float__") and not isinstance(value, (np.generic, np.ndarray)):
        return float(value)
    raise TypeError(f"the reward {str(value)[:80]!r} ({type(value).__name__}) is not a real number")


def checked_info(info: Any) -> dict[str, Any]:
    """An info that is a dictionary of whatever kind."""
    if not isinstance(info, dict):
        raise TypeError(f"step() returned {str(info)[:80]!r} ({type(info).__name__}) as info; Gymnasium expects a dict")
    return info


def _explained(error: Exception) -> Exception:
    """Python's words for a step() with the wrong number of results, made clearer. Other errors pass."""
    ours = error.__traceback__ is not None and error.__traceback__.tb_next is None
    if ours and "unpack" in words_of(error):
        clearer = f"step() must return (observation, reward, terminated, truncated, info): {error}"
        return TypeError(clearer).with_traceback(error.__traceback__)
    return error


def _checked_reset(result: Any) -> tuple[Any, dict[str, Any]]:
    if type(result) is not tuple or len(result) != 2:
        raise TypeError(f"reset() returned {_shape_of(result)}; Gymnasium expects (observation, info)")
    if not isinstance(result[1], dict):
        raise TypeError(f"reset() returned a {type(result[1]).__name__} as info; Gymnasium expects a dict")
    return result


def _shape_of(result: Any) -> str:
    return f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"


def _snapshot(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # an object that cannot be copied is handed over as it is
        return value


def _close_quietly(env: Env) -> None:
    try:
        env.close()
    except Exception:  # the user's code; closing goes on with the next
        _logger.warning("an environment raised in close()", exc_info=True)
