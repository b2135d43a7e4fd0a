"""Reads the action distribution off an agent that samples inside its own forward pass.

CleanRL agents, Stable-Baselines3 policies and most hand-written ones hand out an action, not the distribution it came
from. So they are run while `torch.distributions` records: `sample` and `rsample` give the mode, without any randomness,
and the object they were called on is kept. Its parameters are what travels.

Threads: the recording belongs to the thread that asked for it. While it lasts the methods of `torch.distributions` are
replaced for the whole process, but in every other thread the replacements only call the originals.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import spaces

from clusterenv.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch
    from gymnasium import Space

    from clusterenv.policy.protocol import Array, Distribution

_lock = threading.Lock()
_local = threading.local()
_users = 0
_replaced: list[tuple[Any, str, Any]] = []  # (class or module, name, the original)

READABLE = "Categorical, Bernoulli, Normal, Independent of these, or a Normal squashed by a TanhTransform"


class Recorded(NamedTuple):
    """A distribution that was sampled from, and its parameters [n, ...] in the layout of our distributions."""

    distribution: Any
    params: torch.Tensor


@contextlib.contextmanager
def capture() -> Iterator[list[Recorded]]:
    """While this lasts, sampling in this thread gives the mode; the distributions sampled from are in the list."""
    outer = getattr(_local, "recorded", None)
    recorded: list[Recorded] = []
    _install()
    _local.recorded = recorded
    try:
        yield recorded
    finally:
        _local.recorded = outer
        _uninstall()


def _install() -> None:
    global _users
    import torch
    from torch.distributions import Distribution

    normal: Any = torch.distributions.normal
    with _lock:
        _users += 1
        if _users > 1:
            return
        for kind in _with_subclasses(Distribution):
            for name in ("sample", "rsample"):
                if name in vars(kind):
                    _replace(kind, name, _recording(vars(kind)[name]))
        _replace(Distribution, "__init__", _unchecked(Distribution.__init__))
        _replace(normal, "broadcast_all", _sparing(normal.broadcast_all))


def _uninstall() -> None:
    global _users
    with _lock:
        _users -= 1
        while _users == 0 and _replaced:
            owner, name, original = _replaced.pop()
            setattr(owner, name, original)


def _replace(owner: Any, name: str, replacement: Any) -> None:
    _replaced.append((owner, name, vars(owner)[name]))
    setattr(owner, name, replacement)


def _with_subclasses(kind: type) -> set[type]:
    """`kind` and all that inherits from it: a user's own distribution may sample in its own way."""
    children: list[type] = kind.__subclasses__()
    return {kind}.union(*map(_with_subclasses, children))


@functools.cache
def _recording(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def sample(self: Any, sample_shape: Sequence[int] = (), *args: Any, **kwargs: Any) -> Any:
        recorded = getattr(_local, "recorded", None)
        if recorded is None:
            return original(self, sample_shape, *args, **kwargs)
        mode = _mode(self)
        if not any(known.distribution is self for known in recorded):
            recorded.append(Recorded(self, _params(_base(self)[0])))
        return mode.expand(*sample_shape, *mode.shape) if sample_shape else mode

    return sample


@functools.cache
def _unchecked(original: Callable[..., None]) -> Callable[..., None]:
    # The checks of a constructor look at the values, and a graph cannot hold such a look.
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if getattr(_local, "recorded", None) is not None:
            args, kwargs = args[:2], {**kwargs, "validate_args": False}
        original(self, *args, **kwargs)

    return init


@functools.cache
def _sparing(original: Callable[..., Any]) -> Callable[..., Any]:
    # A Normal broadcasts its mean and deviation, which puts seven nodes into a trace, mostly for nothing.
    import torch

    jit: Any = torch.jit  # a part without type hints

    def shape(value: Any) -> Any:
        return tuple(map(int, value.shape)) if isinstance(value, torch.Tensor) else None

    @functools.wraps(original)
    def broadcast_all(*values: Any) -> Any:
        if getattr(_local, "recorded", None) is not None and jit.is_tracing():
            shapes = {shape(value) for value in values}
            if len(shapes) == 1 and None not in shapes:
                return values
        return original(*values)

    return broadcast_all


def _mode(distribution: Any) -> torch.Tensor:
    from torch import distributions as kinds

    mode: torch.Tensor
    if isinstance(distribution, kinds.Independent):
        return _mode(distribution.base_dist)
    if isinstance(distribution, kinds.TransformedDistribution):
        mode = _mode(distribution.base_dist)
        for transform in distribution.transforms:
            mode = transform(mode)
        return mode
    if isinstance(distribution, kinds.Categorical):
        return distribution.logits.argmax(-1)
    if isinstance(distribution, kinds.Bernoulli):
        return (distribution.logits > 0).to(distribution.logits.dtype)
    if isinstance(distribution, kinds.Normal):
        return distribution.loc
    raise _unreadable([distribution])


def _params(base: Any) -> torch.Tensor:
    """The parameters of a readable distribution. Copies: a trace would take what is done to the original for them."""
    import torch
    from torch.distributions import Normal

    if isinstance(base, Normal):
        return torch.cat([_rows(base.loc), _rows(base.scale.log())], 1)
    return _rows(base.logits).clone()


def params_of(recorded: Sequence[Recorded]) -> torch.Tensor:
    """The parameters [n, P] of what was recorded, in the layout of our distributions."""
    import torch
    from torch.distributions import Categorical

    if len(recorded) == 1:
        return recorded[0].params
    if not recorded or not all(isinstance(_base(one.distribution)[0], Categorical) for one in recorded):
        raise _unreadable([one.distribution for one in recorded])
    return torch.cat([one.params for one in recorded], 1)


def distribution_of(recorded: Sequence[Recorded], action_space: Space[Any]) -> Distribution:
    """Our distribution for what was recorded. ConfigError if it does not fit the action space."""
    from torch import distributions as kinds

    from clusterenv.policy.distributions import TanhGaussian, distribution_for

    sampled = [one.distribution for one in recorded]
    base, transforms = _base(sampled[0])
    fitting: dict[type, tuple[type, ...]] = {
        kinds.Categorical: (spaces.Discrete, spaces.MultiDiscrete),
        kinds.Bernoulli: (spaces.MultiBinary,),
        kinds.Normal: (spaces.Box,),
    }
    wanted = next(kinds_of for kind, kinds_of in fitting.items() if isinstance(base, kind))
    counts, expected = _counts(sampled), _expected(action_space)
    if not isinstance(action_space, wanted) or counts != expected:
        raise ConfigError(
            f"the agent samples from {_names(sampled)} with {_words(counts)}, but the action space is {action_space}, "
            f"which takes {_words(expected)}. Give the agent the spaces of these environments."
        )
    if not transforms:
        return distribution_for(action_space)
    centre, half = (_shaped(number, action_space.shape or ()) for number in _range(transforms, sampled))
    return TanhGaussian(centre - half, centre + half, dtype=action_space.dtype)


def _base(distribution: Any) -> tuple[Any, list[Any]]:
    """The distribution under Independent and the transforms, and those transforms in the order they are applied."""
    from torch import distributions as kinds

    if isinstance(distribution, kinds.Independent):
        return _base(distribution.base_dist)
    if isinstance(distribution, kinds.TransformedDistribution):
        base, transforms = _base(distribution.base_dist)
        return base, transforms + list(_flat(distribution.transforms))
    return distribution, []


def _flat(transforms: Sequence[Any]) -> Iterator[Any]:
    from torch.distributions import transforms as kinds

    for transform in transforms:
        if isinstance(transform, kinds.ComposeTransform):
            yield from _flat(transform.parts)
        elif isinstance(transform, kinds.IndependentTransform):
            yield from _flat([transform.base_transform])
        else:
            yield transform


def _range(transforms: Sequence[Any], sampled: Sequence[Any]) -> tuple[Any, Any]:
    """Where the actions behind a tanh lie: 0 and 1 for (-1, 1), or the centre and half width of an affine transform."""
    from torch.distributions import transforms as kinds

    expected = (kinds.TanhTransform, kinds.AffineTransform)[: len(transforms)]
    if len(transforms) > 2 or not all(map(isinstance, transforms, expected)):
        raise _unreadable(sampled)
    return (0.0, 1.0) if len(transforms) == 1 else (transforms[1].loc, transforms[1].scale)


def _shaped(number: Any, shape: tuple[int, ...]) -> Array:
    """A number, or a tensor of one number per part of the action, in the shape of an action."""
    import torch

    numbers = torch.as_tensor(number).detach().cpu().numpy()
    return np.array(numbers.reshape(shape) if numbers.size > 1 else np.broadcast_to(numbers.reshape(()), shape))


def _rows(numbers: torch.Tensor) -> torch.Tensor:
    if numbers.dim() == 2:
        return numbers
    return numbers.reshape(numbers.shape[0] if numbers.dim() else 1, -1)


def _counts(sampled: Sequence[Any]) -> list[int]:
    """The choices of each categorical, or the numbers in one action of anything else."""
    from torch.distributions import Categorical

    counts = []
    for base in (_base(distribution)[0] for distribution in sampled):
        if isinstance(base, Categorical):
            rows, choices = base.logits.shape[0], base.logits.shape[-1]
            counts += [choices] * (base.logits.numel() // max(rows * choices, 1))
        else:
            counts.append(base.batch_shape.numel() // base.batch_shape[0])
    return counts


def _expected(action_space: Space[Any]) -> list[int]:
    if isinstance(action_space, spaces.Discrete):
        return [int(action_space.n)]
    if isinstance(action_space, spaces.MultiDiscrete):
        return [int(n) for n in action_space.nvec.flatten()]
    return [int(np.prod(action_space.shape or ()))]


def _words(counts: Sequence[int]) -> str:
    return " + ".join(map(str, counts)) + " number(s) per action"


def _names(sampled: Sequence[Any]) -> str:
    return ", ".join(type(distribution).__name__ for distribution in sampled) or "nothing in torch.distributions"


def _unreadable(sampled: Sequence[Any]) -> ConfigError:
    return ConfigError(
        f"the agent samples its action from {_names(sampled)}. What can be read is: {READABLE}. Sample from one of "
        "these, or write the module with `distribution` and `forward(obs, state) -> (params, value, state)`."
    )
