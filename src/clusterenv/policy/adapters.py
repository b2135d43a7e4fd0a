"""Makes a policy that can act on workers out of what the user trains.

Importing this module imports no torch, and a NumPy policy never does.
"""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from clusterenv import spaces
from clusterenv.errors import ConfigError, ConfigTypeError, unknown, words_of
from clusterenv.policy import graph
from clusterenv.policy.categorical import Categorical, MultiCategorical
from clusterenv.policy.discrete import EpsilonGreedy
from clusterenv.policy.modules import ACCEPTED, TorchActor, state_of
from clusterenv.policy.on_device import DeviceRuntime, device_of
from clusterenv.policy.protocol import Distribution, Policy
from clusterenv.policy.runtime import NumpySpec, TorchSpec

if TYPE_CHECKING:
    from gymnasium import Space

    from clusterenv.policy.protocol import Array, Output, Runtime, RuntimeSpec

_logger = logging.getLogger(__name__)

RUNTIMES = ("auto", "onnx", "torch")
_EXAMPLES = 5


def as_policy(obj: Any, observation_space: Space[Any], action_space: Space[Any], runtime: str = "auto") -> Policy:
    """The policy for the object that a user attaches.

    The spaces are those of one environment. The object is run once or twice on made-up observations, in eval mode and
    without gradients, and keeps its training flags; no other thread may use it meanwhile.

    Args:
        obj: a policy of `clusterenv.policy.protocol`, a NumPy policy, or a torch module: with `distribution` and
            `forward(obs, state)`, a CleanRL agent, one whose `forward(x)` gives (action, log-probability, entropy,
            value), or an actor-critic policy (or model) of Stable-Baselines3.
        observation_space: what it observes.
        action_space: what its actions must fit.
        runtime: for torch modules. "onnx": as a graph, on workers without torch. "torch": the module itself, on
            workers of this host. "auto": "onnx" where that works, else "torch".

    Raises:
        ConfigError: the object is none of these, does not fit the spaces, or cannot run in the way that was asked for.

    Example:
        >>> import numpy as np
        >>> from gymnasium.spaces import Box, Discrete
        >>> from clusterenv.policy.distributions import Categorical
        >>> class Linear:
        ...     distribution = Categorical(2)
        ...     matrix = np.zeros((4, 2), np.float32)
        ...     def weights(self):
        ...         return {"matrix": self.matrix}
        ...     def forward(self, weights, obs, state):
        ...         return obs @ weights["matrix"], None, state
        >>> policy = as_policy(Linear(), Box(-1, 1, (4,)), Discrete(2))
        >>> runtime = policy.build().make()
        >>> runtime.load(policy.weights())
        >>> runtime([np.ones((3, 4), np.float32)], ()).params.shape
        (3, 2)
    """
    if runtime not in RUNTIMES:
        raise ConfigError(unknown("runtime", str(runtime), RUNTIMES))
    if isinstance(obj, Policy) and not isinstance(obj, type):
        state_of(obj)
        _check_actions(obj.distribution, action_space)
        return obj
    leaves = _example_leaves(observation_space)
    module = _module_of(obj)
    if module is not None:
        return _torch_policy(obj, module, observation_space, action_space, runtime, leaves)
    if isinstance(getattr(obj, "distribution", None), Distribution) and _has(obj, "weights") and _has(obj, "forward"):
        return NumpyPolicy(obj, observation_space, action_space, leaves)
    raise ConfigTypeError(f"{type(obj).__name__} is not a policy. Accepted are:\n{ACCEPTED}")


class TorchPolicy:
    """A torch module of the user that acts on workers. Made by `as_policy`.

    Attributes:
        source: the object that the user attached.
        distribution: how actions follow from the parameters.
        state: the recurrent state of one slot.
        has_value: whether it gives a value.
        unused: the names of the module's tensors that do not travel, because its graph does not look at them.
    """

    def __init__(self, source: Any, actor: TorchActor, distribution: Distribution, spec: RuntimeSpec) -> None:
        self.source = source
        self.distribution: Distribution = distribution
        self.state: tuple[spaces.Leaf, ...] = actor.state
        self.has_value: bool = actor.has_value
        self._actor = actor
        self._spec = spec
        names = tuple(actor.tensors())
        self._names = spec.weights if isinstance(spec, graph.GraphSpec) else names
        self.unused = frozenset(names).difference(self._names)

    def weights(self) -> dict[str, Array]:
        """Copies of the weights that the workers need, under their names in the module's state dict."""
        return graph.arrays_of(self._actor, self._names)

    def build(self) -> RuntimeSpec:
        """What travels to the workers."""
        return self._spec

    def on_head(self) -> Runtime:
        """What runs it on the head: the same as on the workers, or the learner's accelerator if it has one."""
        device = device_of(self._actor)
        return self._spec.make() if device is None else DeviceRuntime(self._actor, device)


class NumpyPolicy:
    """A NumPy policy of the user. Made by `as_policy`.

    Attributes:
        source: the object that the user attached.
        distribution: how actions follow from the parameters.
        state: the recurrent state of one slot.
        has_value: whether it gives a value.
    """

    def __init__(
        self, source: Any, observation_space: Space[Any], action_space: Space[Any], leaves: list[Array]
    ) -> None:
        self.source = source
        self.distribution: Distribution = source.distribution
        self.state: tuple[spaces.Leaf, ...] = state_of(source)
        self._space = observation_space
        _check_actions(self.distribution, action_space)
        self.has_value: bool = self._probe(leaves)

    def weights(self) -> dict[str, Array]:
        """Copies of the policy's weights."""
        weights = self.source.weights()
        if not isinstance(weights, Mapping):
            raise ConfigTypeError(
                f"{type(self.source).__name__}.weights() gave a {type(weights).__name__}; it must give a dictionary of "
                "arrays by name."
            )
        return {name: self._array(name, weight) for name, weight in weights.items()}

    def _array(self, name: str, weight: Any) -> Array:
        try:
            return np.array(weight)
        except Exception as error:  # of a tensor that is trained, or lies on a device, or of rows of unequal length
            raise ConfigTypeError(
                f"{type(self.source).__name__}.weights()[{name!r}], a {type(weight).__name__}, is no array: "
                f"{words_of(error)}. Give NumPy arrays; of a torch tensor, tensor.detach().float().cpu().numpy()."
            ) from error

    def build(self) -> RuntimeSpec:
        """What travels to the workers."""
        return NumpySpec.of(self.source, self._space)

    def _probe(self, leaves: list[Array]) -> bool:
        """Act once on the head, so that what is wrong is told here and not by every worker. Tells if it has a value."""
        runtime = self.build().make()
        runtime.load(self.weights())
        name = f"{type(self.source).__name__}.forward(weights, obs, state)"
        try:
            output = runtime(leaves, tuple(_zeros(self.state, len(leaves[0]))))
        except Exception as error:  # the user's code
            raise ConfigError(
                f"{name} raised on {len(leaves[0])} observations of {self._space}: {type(error).__name__}: "
                f"{words_of(error)}."
            ) from error
        found, expected = _shapes(output), self._expected_shapes(output, len(leaves[0]))
        if found != expected:
            raise ConfigError(f"{name} gives (params, value, state) of shapes {found}; they must be {expected}.")
        return output.value is not None

    def _expected_shapes(self, output: Output, rows: int) -> list[Any]:
        value = None if output.value is None else (rows,)
        return [(rows, self.distribution.size), value, [(rows, *leaf.shape) for leaf in self.state]]


def _shapes(output: Output) -> list[Any]:
    value = None if output.value is None else output.value.shape
    return [output.params.shape, value, [np.shape(array) for array in output.state]]


def _torch_policy(
    source: Any, module: Any, observation_space: Space[Any], action_space: Space[Any], runtime: str, leaves: list[Array]
) -> TorchPolicy:
    live = TorchActor(module, observation_space, action_space)
    actor = live.on_cpu()
    state = _zeros(actor.state, _EXAMPLES)
    actor.probe(leaves, state)
    if actor.distribution is None:
        raise ConfigError(f"{type(module).__name__} shows no action distribution.")
    _check_actions(actor.distribution, action_space)
    spec = None if runtime == "torch" else _graph_of(actor, leaves, state, required=runtime == "onnx")
    live.take_over(actor)
    return TorchPolicy(source, live, actor.distribution, spec or TorchSpec.of(actor))


def _graph_of(actor: TorchActor, leaves: list[Array], state: list[Array], *, required: bool) -> graph.GraphSpec | None:
    """The graph of this module, or None, with a warning, if it cannot be had and need not be."""
    name = type(actor.module).__name__
    problem = graph.missing_packages()
    if problem is not None:
        if required:
            raise ConfigError(f'runtime="onnx" cannot be used: {problem}')
        _logger.warning("%s runs in torch on the workers, which is slower: %s", name, problem)
        return None
    # Other than the zeros of an episode's start, so that a state that is dropped on the way is noticed.
    noise = [np.random.default_rng(0).normal(0, 0.5, array.shape).astype(array.dtype) for array in state]
    try:
        return graph.export(actor, leaves, noise)
    except ConfigError as error:
        if required:
            raise
        _logger.warning("%s runs in torch on the workers, which is slower: %s", name, error)
        return None


def _module_of(obj: Any) -> Any:
    """The torch module that `obj` is or, for a model of SB3, has; None if there is none. Never imports torch."""
    torch = sys.modules.get("torch")  # whoever has a module has imported it
    if torch is None or isinstance(obj, type):
        return None
    if not isinstance(obj, torch.nn.Module) and _has(obj, "get_vec_normalize_env"):
        obj = obj.policy
    obj = getattr(obj, "_orig_mod", obj)  # what torch.compile wraps
    return obj if isinstance(obj, torch.nn.Module) else None


def _has(obj: Any, method: str) -> bool:
    return callable(getattr(obj, method, None))


def _check_actions(distribution: Distribution, action_space: Space[Any]) -> None:
    """The distribution must make actions of the space's shape, from the same choices."""
    choices: Any = None
    if isinstance(action_space, gymnasium.spaces.Discrete):
        choices = action_space.n
    elif isinstance(action_space, gymnasium.spaces.MultiDiscrete):
        choices = action_space.nvec.sum()
    problem = ""
    if distribution.action.shape != action_space.shape or choices not in (None, distribution.size):
        problem = f"of shape {distribution.action.shape} from {distribution.size} parameters"
    elif choices is not None and isinstance(distribution, (Categorical, EpsilonGreedy, MultiCategorical)):
        made, wanted = _first_and_last(distribution), _first_and_last(action_space)
        if made != wanted:
            problem = f"from {made[0]} to {made[1]}, and the space has those from {wanted[0]} to {wanted[1]}"
    if problem:
        raise ConfigError(
            f"{distribution} does not fit the action space {action_space}: it makes actions {problem}. "
            "clusterenv.policy.distributions.distribution_for(action_space) gives one that fits."
        )


def _first_and_last(choices: Any) -> tuple[list[int], list[int]]:
    """The first and the last choice of every place, as the environment counts them."""
    counts = np.ravel(choices.nvec if hasattr(choices, "nvec") else choices.n)
    first = np.ravel(choices.start)
    return first.tolist(), (first + counts - 1).tolist()


def _example_leaves(space: Space[Any]) -> list[Array]:
    """Some observations of the space, the same each time, as leaf arrays; numbers without bounds are kept small."""
    if spaces.leaves_of(space) is None:
        raise ConfigError(
            f"the observation space {space} cannot be laid out in arrays of a fixed size, which a policy on workers "
            "needs. Use Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these."
        )
    source = copy.deepcopy(space)  # drawing from the user's own would change what they draw next
    source.seed(0)
    rows = [spaces.take_apart(space, source.sample()) for _ in range(_EXAMPLES)]
    stacked = [np.stack([np.asarray(value) for value in column]) for column in zip(*rows, strict=True)]
    leaves = spaces.leaves_of(space) or []
    return [_small(array.astype(leaf.dtype)) for array, leaf in zip(stacked, leaves, strict=True)]


def _small(array: Array) -> Array:
    return np.clip(array, -10, 10) if array.dtype.kind == "f" else array


def _zeros(state: tuple[spaces.Leaf, ...], rows: int) -> list[Array]:
    return [np.zeros((rows, *leaf.shape), leaf.dtype) for leaf in state]
