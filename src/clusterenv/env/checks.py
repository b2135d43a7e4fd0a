"""Checks of what a user passes to `reset`, `call` and `send`: value, rule and fix in every message."""

from __future__ import annotations

import logging
import math
import numbers
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium.error import ResetNeeded

from clusterenv.config import check_seconds
from clusterenv.errors import ConfigError, ConfigTypeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from clusterenv.transport.arena import Arena
    from clusterenv.worker.base import ResetOptions

_logger = logging.getLogger(__name__)

# What Gymnasium's own seeding takes: it turns a seed into 32-bit words, and more than this is a mistake.
_MAX_SEED = 2**63 - 1

_NOT_BY_CALL = ("reset", "step", "close", "_setattr", "_check_spaces")


class OptionsPerSlot(NamedTuple):
    """Options of a reset that differ between slots. Gymnasium knows no such thing, Stable-Baselines3 does."""

    listed: list[dict[str, Any] | None]


def seeds_per_slot(seed: object, num_envs: int) -> list[int | None]:
    """One seed per slot: an int counts up, a list is taken as it is, None leaves the environments alone."""
    if seed is None:
        return [None] * num_envs
    if _is_int(seed):
        first = _checked_seed(seed)
        return [first + slot for slot in range(num_envs)]
    # An array without dimensions has `__len__` too, and no length.
    if isinstance(seed, (str, bytes, dict)) or not hasattr(seed, "__len__") or getattr(seed, "ndim", 1) == 0:
        raise ConfigTypeError(f"seed={seed!r} must be a whole number, a list of {num_envs} of them, or None.")
    listed = list(seed)  # type: ignore[call-overload]
    if len(listed) != num_envs:
        raise ConfigError(
            f"seed has {len(listed)} entries, but the length must match num_envs={num_envs}. "
            "Pass one seed per slot, or a single whole number."
        )
    return [None if one is None else _checked_seed(one) for one in listed]


def reset_options(options: object, num_envs: int) -> tuple[npt.NDArray[np.intp], ResetOptions]:
    """The slots to reset and the options for the environments. The caller's dictionary is left alone."""
    everything = np.arange(num_envs)
    if options is None:
        return everything, None
    if isinstance(options, OptionsPerSlot):
        return everything, options.listed
    if not isinstance(options, dict):
        raise ConfigTypeError(f"options={options!r} must be a dictionary or None.")
    rest = dict(options)
    if "reset_mask" not in rest:
        return everything, rest
    mask = rest.pop("reset_mask")
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        # Gymnasium's own words, as far as they go: users search for them.
        rule = f"have `dtype=np.bool_`, got {mask.dtype}" if isinstance(mask, np.ndarray) else ""
        rule = rule or f"be a numpy array, got {type(mask)}. Make it one of dtype bool"
        raise ConfigTypeError(f"`options['reset_mask']` must {rule}.")
    if mask.shape != (num_envs,):
        raise ConfigError(f"`options['reset_mask']` must have shape `({num_envs},)`, got {mask.shape}.")
    if not mask.any():
        raise ConfigError(
            f"`options['reset_mask']` must contain a boolean array with at least one True value, got reset_mask={mask}."
        )
    return np.flatnonzero(mask), rest


def slot_indices(indices: object, num_envs: int, *, name: str = "indices") -> npt.NDArray[np.intp]:
    """A slot, or several, as an array; None means all."""
    if indices is None:
        return np.arange(num_envs)
    try:
        array = np.atleast_1d(np.asarray(indices))
    except (TypeError, ValueError):  # lists of different lengths, a tensor on another device
        array = np.empty(0)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise ConfigTypeError(f"{name}={indices!r} must be a slot, or a non-empty list of slots (whole numbers).")
    if array.min() < 0 or array.max() >= num_envs:
        outside = array[(array < 0) | (array >= num_envs)][0]
        raise ConfigError(f"{name} names slot {outside}, but the slots are 0 to {num_envs - 1}.")
    named = np.zeros(num_envs, dtype=np.bool_)
    named[array] = True
    if np.count_nonzero(named) != len(array):
        raise ConfigError(f"{name}={array.tolist()} names a slot twice.")
    return array.astype(np.intp, copy=False)


def wait_limit(timeout: Any, name: str = "timeout") -> float | None:
    """A limit for one wait, in seconds: None for the default, 0 for a look without waiting."""
    if isinstance(timeout, numbers.Real) and not isinstance(timeout, bool) and timeout == 0:
        return 0.0
    return check_seconds(name, timeout, none="for the default")


def slot_counts(min_slots: object, max_slots: object, in_flight: int) -> None:
    """The numbers of slots that `recv` waits for and returns."""
    if not _is_int(min_slots) or not 1 <= min_slots <= in_flight:  # type: ignore[operator]
        raise ConfigError(f"min_slots={min_slots!r} must be between 1 and {in_flight}, the slots in flight.")
    if max_slots is not None and (not _is_int(max_slots) or max_slots < min_slots):  # type: ignore[operator]
        raise ConfigError(f"max_slots={max_slots!r} must be None, or at least min_slots={min_slots}.")


def check_flags(**flags: object) -> None:
    """Refuse what is neither True nor False: a text such as "no" would count as yes, and None as no.

    Example:
        >>> check_flags(copy=True)
        >>> check_flags(copy="no")
        Traceback (most recent call last):
        clusterenv.errors.ConfigTypeError: copy='no' must be True or False.
    """
    for name, value in flags.items():
        if not isinstance(value, (bool, np.bool_)):
            raise ConfigTypeError(f"{name}={value!r} must be True or False.")


def call_name(name: object) -> str:
    """The name of a method or attribute that may be used by `call`."""
    if not isinstance(name, str) or not name.isidentifier():
        raise ConfigTypeError(f"name={name!r} must be the name of a method or an attribute of the environments.")
    if name in _NOT_BY_CALL:
        raise ConfigError(f"Trying to call function `{name}` with `call`, use `{name}` directly instead.")
    return name


def values_per_slot(values: object, count: int) -> Sequence[Any]:
    """One value per slot for `set_attr`: a list or tuple is taken as it is, anything else goes to all."""
    if not isinstance(values, (list, tuple)):
        return [values] * count
    if len(values) != count:
        raise ConfigError(
            "Values must be a list or tuple with length equal to the number of environments. "
            f"Got `{len(values)}` values for {count} environments."
        )
    return values


def refuse_finished(arena: Arena, slots: npt.NDArray[np.intp] | None) -> None:
    """With autoreset disabled, a finished slot must be reset before it is stepped."""
    finished = arena.terminated | arena.truncated
    chosen = np.flatnonzero(finished) if slots is None else slots[finished[slots]]
    if len(chosen):
        raise ResetNeeded(
            f"slot {chosen[0]} has finished its episode and autoreset is disabled. "
            "Call reset(options={'reset_mask': terminated | truncated}) first."
        )


def refuse_part_of_block(whole: Sequence[range], slots: npt.NDArray[np.intp]) -> None:
    """A vectorised block is stepped as a whole."""
    for block in whole:
        named = np.count_nonzero((slots >= block.start) & (slots < block.stop))
        if 0 < named < len(block):
            raise ConfigError(
                f"slots {block.start} to {block.stop - 1} are one vectorised environment. Send them together."
            )


def warn_of_bad_rewards(rewards: npt.NDArray[np.float64], slots: npt.NDArray[np.intp] | None = None) -> bool:
    """Log the first reward that is not finite; return whether there was one. `slots` tells whose rewards they are."""
    # One sum for the ordinary case; it may overflow without any bad reward, so a closer look follows. It is what
    # `rewards.sum()` does, without the detour.
    if math.isfinite(np.add.reduce(rewards)) or np.isfinite(rewards).all():
        return False
    row = int(np.flatnonzero(~np.isfinite(rewards))[0])
    slot = row if slots is None else int(slots[row])
    _logger.warning("the environment in slot %d returned the reward %s (said once)", slot, rewards[row])
    return True


def _is_int(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _checked_seed(seed: Any) -> int:
    if not _is_int(seed):
        raise ConfigTypeError(f"seed={seed!r} must be a whole number.")
    if not 0 <= seed <= _MAX_SEED:
        raise ConfigError(f"seed={seed} must be between 0 and 2**63 - 1.")
    return int(seed)
