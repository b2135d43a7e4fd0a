"""Checks the user's actions and puts them where the workers read them.

A wrong batch is refused as a whole, before any environment is stepped. Box actions out of bounds are let through, as
`SyncVectorEnv` does: an unclipped Gaussian is a common policy, and clipping is the environment's business. Actions
arrive in the dtype of the action space.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces as gym_spaces
from gymnasium.vector.utils import batch_space, iterate

from clusterenv import spaces
from clusterenv.errors import ActionError, ActionTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    from gymnasium import Space

    from clusterenv.transport.arena import Arena

    Array = npt.NDArray[Any]


class Actions:
    """The way of the actions from the user to the arena.

    Args:
        space: of one action.
        arena: where they go.
        skips_finished: whether a slot whose episode has ended takes no action with the next step, but a reset: then
            its action is not looked at, whatever it is.
    """

    def __init__(self, space: Space[Any], arena: Arena, *, skips_finished: bool = False) -> None:
        self._space, self._arena, self._skips_finished = space, arena, skips_finished
        self._arrays = arena.action
        self._in_arrays = spaces.leaves_of(space) is not None
        leaves = spaces.array_spaces(space) if self._in_arrays else []
        self._checks = [_check_for(leaf) for leaf in leaves]
        # By Gymnasium's rule 1.0 is in a MultiBinary space but not in a Discrete one. Bernoulli policies sample floats.
        self._floats = [isinstance(leaf, gym_spaces.MultiBinary) for leaf in leaves]
        self._everything = slice(None)

    def put(self, actions: Any, slots: npt.NDArray[np.intp] | None, count: int) -> list[Any] | None:
        """Store the actions of these slots (None: of all). Returns them as a list if no array can hold them."""
        if not self._in_arrays:
            return self._as_list(actions, count)
        try:
            parts = spaces.take_apart(self._space, actions)
        except (TypeError, ValueError, KeyError) as error:
            raise ActionError(f"the actions do not have the structure of {self._space}: {error}.") from error
        rows = self._everything if slots is None else slots
        # Check every leaf before the first is stored: a refused batch must leave nothing behind.
        ready = [
            self._checked(_as_array(part, array, count, floats=floats), array, rows, check)
            for part, array, check, floats in zip(parts, self._arrays, self._checks, self._floats, strict=True)
        ]
        for array, values in zip(self._arrays, ready, strict=True):
            array[rows] = values
        return None

    def _checked(self, values: Array, target: Array, rows: Any, check: Callable[[Array], str | None]) -> Array:
        problem = check(values)
        if problem and self._skips_finished:
            skipped = (self._arena.terminated | self._arena.truncated)[rows]
            values = values.copy()
            values[skipped] = target[rows][skipped]  # what was allowed before
            problem = check(values)
        if problem:
            raise ActionError(problem)
        return values

    def _as_list(self, actions: Any, count: int) -> list[Any]:
        try:
            items = list(iterate(batch_space(self._space, count), actions))
        except (TypeError, ValueError, KeyError) as error:
            raise ActionError(f"the actions cannot be split into {count} actions of {self._space}: {error}.") from error
        if len(items) != count:
            raise ActionError(f"got {len(items)} actions for {count} slots. Pass one action per slot.")
        return items


def _as_array(part: Any, target: Array, count: int, *, floats: bool) -> Array:
    shape = (count, *target.shape[1:])
    if type(part) is np.ndarray and part.dtype == target.dtype and part.shape == shape:
        return part
    return _converted(part, target, shape, floats=floats)


def _converted(part: Any, target: Array, shape: tuple[int, ...], *, floats: bool) -> Array:
    try:
        array = np.asarray(part)
    except Exception as error:  # a tensor on another device, one that needs a gradient, a ragged list
        raise ActionError(
            f"the actions ({type(part).__name__}) cannot be read as an array: {str(error).rstrip('.')}. "
            "Pass a NumPy array, for example tensor.detach().cpu().numpy(), with .float() before it for bfloat16."
        ) from error
    if array.shape != shape:
        kind = ActionError if array.shape else ActionTypeError
        raise kind(
            f"the actions have shape {array.shape}, expected {shape}: one row of shape {shape[1:]} for each of "
            f"{shape[0]} slots."
        )
    # A list of Python numbers becomes int64. Whether they fit is seen to by the check of their space.
    checked = array.dtype.kind in ("iuf" if floats else "iu") and target.dtype.kind in "iu"
    if not checked and not np.can_cast(array.dtype, target.dtype, "same_kind"):
        raise ActionError(f"the actions have dtype {array.dtype}, which cannot become the {target.dtype} of the space.")
    return array


def _check_for(space: Space[Any]) -> Callable[[Array], str | None]:
    """A function that names what is wrong with a batch of values of `space`, or returns None."""
    if isinstance(space, gym_spaces.Discrete):
        return _range_check(int(space.start), int(space.start + space.n) - 1)
    if isinstance(space, gym_spaces.MultiBinary):
        return _bit_check
    if isinstance(space, gym_spaces.MultiDiscrete):
        start = np.asarray(space.start if space.start is not None else 0)
        return _range_check(start, start + np.asarray(space.nvec) - 1)
    if isinstance(space, gym_spaces.Box) and np.dtype(space.dtype).kind == "f":
        return _float_check(np.dtype(space.dtype))
    if isinstance(space, gym_spaces.Box) and np.dtype(space.dtype).kind in "iu":
        return _fit_check(np.dtype(space.dtype))
    return lambda array: None


def _fit_check(dtype: np.dtype[Any]) -> Callable[[Array], str | None]:
    """Bounds of a Box are not ours to keep, but a number that its dtype cannot hold would become another."""
    limits = np.iinfo(dtype)
    check = _range_check(int(limits.min), int(limits.max))
    return lambda array: None if array.dtype is dtype else check(array)


def _range_check(low: Any, high: Any) -> Callable[[Array], str | None]:
    from_zero = isinstance(high, int) and low == 0

    def check(array: Array) -> str | None:
        # Seen as unsigned, a negative number is huge: one look instead of two for the usual Discrete(n). `argmax` is no
        # reduction of NumPy's, which would take four times as long for so few numbers.
        if from_zero and array.dtype == np.int64:
            unsigned = array.view(np.uint64)
            if unsigned.item(unsigned.argmax()) <= high:
                return None
        if bool((array >= low).all()) and bool((array <= high).all()):
            return None
        slot = int(np.argwhere((array < low) | (array > high))[0][0])
        return f"the action {array[slot]} in row {slot} is out of range: the space allows {low} to {high}."

    return check


def _bit_check(array: Array) -> str | None:
    wrong = (array != 0) & (array != 1)  # NaN is neither
    if not wrong.any():
        return None
    slot = int(np.argwhere(wrong)[0][0])
    return f"the action {array[slot]} in row {slot} is out of range: the space allows 0 and 1."


def _float_check(dtype: np.dtype[Any]) -> Callable[[Array], str | None]:
    """NaN is no action, and a number that the dtype cannot hold would become infinite; infinities are taken."""
    largest = float(np.finfo(dtype).max)

    def check(array: Array) -> str | None:
        if array.dtype.itemsize <= dtype.itemsize:
            return _nan_check(array)
        wrong = np.isfinite(array) & (np.abs(array) > largest)
        if not wrong.any():
            return _nan_check(array)
        slot = int(np.argwhere(wrong)[0][0])
        return f"the action {array[slot]} in row {slot} is more than {dtype}, the dtype of the space, can hold."

    return check


def _nan_check(array: Array) -> str | None:
    # A sum is NaN if any value is, unless infinities cancel, which the slower look then tells apart.
    with np.errstate(invalid="ignore", over="ignore"):
        total = array.sum()
    if not np.isnan(total) or not np.isnan(array).any():
        return None
    slot = int(np.argwhere(np.isnan(array))[0][0])
    return f"the action {array[slot]} in row {slot} is not a number. Look at the policy that made it."
