"""What the action distributions share: checks of what comes in, and the shapes of what goes out."""

from __future__ import annotations

import abc
import math
import operator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from clusterenv.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Self

    from clusterenv.policy.protocol import Array, Distribution
    from clusterenv.spaces import Leaf


class DistributionBase(abc.ABC):
    """A start for a distribution of your own: the checks, and the methods that most need not write.

    Attributes:
        noise: which random numbers an action takes, "uniform" or "normal".
        unit: what `divergence` counts: "nats", "share" or "distance".
    """

    noise: ClassVar[str]
    unit: ClassVar[str]

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """The number of parameters, P."""

    @property
    @abc.abstractmethod
    def draws(self) -> int:
        """How many random numbers one action takes."""

    @property
    @abc.abstractmethod
    def action(self) -> Leaf:
        """Shape and dtype of one sampled action."""

    @abc.abstractmethod
    def sample(self, params: Array, noise: Array) -> Array:
        """Actions as the learner sees them, from params [n, P] and noise [n, draws]."""

    @abc.abstractmethod
    def log_prob(self, params: Array, actions: Array) -> Array:
        """The log-probability (or log-density) of these actions, float32."""

    def to_env(self, actions: Array) -> Array:
        """What the environment's `step` gets: the actions themselves."""
        return actions

    @property
    def slots(self) -> int | None:
        """How many slots it tells apart; None if it is the same in all of them."""
        return None

    def at(self, slots: Sequence[int] | Array) -> Self:
        """The distribution of rows that belong to these slots: itself, unless it tells slots apart."""
        return self

    def _set(self, **values: Any) -> None:
        """Put the fields into their plain form, once, when the (frozen) distribution is made."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _params(self, params: Array) -> Array:
        params = np.asarray(params)
        if params.ndim == 0 or params.shape[-1] != self.size:
            raise ConfigError(
                f"params have shape {params.shape}, but {self!r} takes {self.size} numbers per action. "
                f"Make the last axis {self.size} long."
            )
        return params

    def _noise(self, params: Array, noise: Array) -> Array:
        noise = np.asarray(noise)
        expected = (*params.shape[:-1], self.draws)
        if noise.shape != expected:
            raise ConfigError(
                f"noise has shape {noise.shape}, but params of shape {params.shape} take {expected}: "
                f"{self.draws} {self.noise} number(s) per action. Draw them with Streams.draw."
            )
        return noise

    def _actions(self, params: Array, actions: Array) -> Array:
        """The actions of these params, each flattened: [..., numbers in an action]."""
        actions = np.asarray(actions)
        expected = params.shape[:-1] + self.action.shape
        if actions.shape != expected:
            raise ConfigError(
                f"actions have shape {actions.shape}, but params of shape {params.shape} go with {expected}. "
                "Pass the params and the actions of the same steps."
            )
        return actions.reshape(*params.shape[:-1], -1)

    def _shaped(self, flat: Array) -> Array:
        """Undo the flattening of `_actions`."""
        return flat.reshape(flat.shape[:-1] + self.action.shape)


def at_slots(distribution: Distribution, slots: Sequence[int] | Array) -> Distribution:
    """The distribution of rows that belong to these slots, also if it is somebody's own, without `at`."""
    at = getattr(distribution, "at", None)
    found: Distribution = distribution if at is None else at(slots)
    return found


def check_slots(distribution: Distribution, num_envs: int) -> None:
    """Refuse a distribution that tells apart another number of slots than there are.

    Raises:
        ConfigError: says both numbers.
    """
    slots = getattr(distribution, "slots", None)
    if slots not in (None, num_envs):
        raise ConfigError(
            f"{type(distribution).__name__} has one epsilon for each of {slots} slot(s), but there are {num_envs} "
            f"environments. Give it {num_envs}, or one number for all."
        )


def why_nan(observation: Iterable[Array]) -> str:
    """What to look at if a policy gave NaN for an observation with these leaves.

    Example:
        >>> why_nan([np.array([1.0, np.inf])])
        'Its observation is not finite there: look at the environment.'
    """
    with np.errstate(over="ignore"):
        numbers = [leaf.astype(np.float32) for leaf in observation if leaf.dtype.kind == "f"]
    if all(np.isfinite(leaf).all() for leaf in numbers):
        return "Look for overflows and divisions by 0 in its forward pass, and for a learning rate that is too high."
    return "Its observation is not finite there: look at the environment."


def row_sums(parts: Array) -> Array:
    """The sums over the last axis."""
    # Running sums add each row up in order, however the array lies in memory; `sum` may choose another order, and a
    # log-probability worked out with its action should be the same, bit for bit, later in a batch.
    sums: Array = np.add.accumulate(parts, -1)[..., -1]
    return sums


def whole_number(name: str, value: Any, least: int | None = 1, most: int | None = None) -> int:
    """`value` as an int if it is a whole number of at least `least` and at most `most`; ConfigError if not."""
    rule = "a whole number" if least is None else f"a whole number of at least {least}"
    rule += "" if most is None else f" and at most {most}"
    try:
        number = operator.index(value)
    except TypeError:
        raise ConfigError(f"{name}={value!r} must be {rule}.") from None
    if isinstance(value, bool) or (least is not None and number < least) or (most is not None and number > most):
        raise ConfigError(f"{name}={value!r} must be {rule}.")
    return number


def shape_of(shape: Sequence[int] | None, count: int, what: str) -> tuple[int, ...]:
    """The shape of one action, which must hold `count` numbers; (count,) if it is not given."""
    if shape is None:
        return (count,)
    sizes = tuple(whole_number("shape", size) for size in shape)
    if math.prod(sizes) != count:
        raise ConfigError(
            f"shape={sizes} holds {math.prod(sizes)} number(s), but {what} makes it {count}. "
            "Leave shape out, or make the two agree."
        )
    return sizes


def dtype_of(dtype: Any, kinds: str, rule: str) -> np.dtype[Any]:
    """`dtype` as a NumPy dtype of one of these kinds; ConfigError if it is another."""
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        raise ConfigError(f"dtype={dtype!r} must be {rule}.") from None
    if found.kind not in kinds:
        raise ConfigError(f"dtype={found.name!r} must be {rule}.")
    return found
