"""A user's torch module as one function: leaf tensors and state in, distribution parameters, value and state out.

Importing this module imports no torch.
"""

from __future__ import annotations

import contextlib
import pickle
from typing import TYPE_CHECKING, Any

from clusterenv import spaces
from clusterenv.errors import ConfigError, named
from clusterenv.policy import capture
from clusterenv.policy.protocol import Distribution
from clusterenv.policy.runtime import as_tensors, pack

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch
    from gymnasium import Space

    from clusterenv.policy.protocol import Array

    Answer = tuple[torch.Tensor, torch.Tensor | None, tuple[torch.Tensor, ...]]

ACCEPTED = """\
  - a torch module with `distribution` and `forward(obs, state) -> (params, value, state)`
  - a torch module with `get_action_and_value(x)`, as in CleanRL
  - a torch module whose `forward(x)` gives (action, log-probability, entropy, value)
  - an actor-critic policy of Stable-Baselines3 (`model.policy`)
  - an object with `distribution`, `weights()` and `forward(weights, obs, state)` in NumPy
  - an object with the methods of clusterenv.policy.protocol.Policy"""


def kind_of(module: Any) -> str:
    """Which of the accepted kinds a torch module is: "native", "sb3", "cleanrl" or "agent" (all others)."""
    if isinstance(getattr(module, "distribution", None), Distribution):
        return "native"
    if callable(getattr(module, "get_distribution", None)) and callable(getattr(module, "predict_values", None)):
        return "sb3"
    return "cleanrl" if callable(getattr(module, "get_action_and_value", None)) else "agent"


class TorchActor:
    """A user's torch module as a function of leaf tensors. It can be pickled if the module can.

    Args:
        module: the user's module.
        observation_space: how the leaf tensors make up an observation.
        action_space: what the actions must fit.

    Attributes:
        module: the user's module.
        distribution: how actions follow from the parameters; known after `probe`, unless the module says it.
        state: the recurrent state of one slot.
        has_value: whether the module gives a value; known after `probe`.
    """

    def __init__(self, module: Any, observation_space: Space[Any], action_space: Space[Any]) -> None:
        self.module = module
        self.kind = kind_of(module)
        self.state: tuple[spaces.Leaf, ...] = state_of(module) if self.kind == "native" else ()
        self.distribution: Distribution | None = module.distribution if self.kind == "native" else None
        self.has_value = False
        self._space = observation_space
        self._action_space = action_space
        self._to: tuple[str | None, ...] = ()
        self._channels_last = self._check_sb3() if self.kind == "sb3" else frozenset()

    def __call__(self, leaves: Sequence[torch.Tensor], state: Sequence[torch.Tensor]) -> Answer:
        """The parameters [n, P] float32, the value [n] float32 or None, and the state after this step."""
        params, value, after, _ = self._run(leaves, state)
        return _single(params), None if value is None else _single(value.reshape(-1)), after

    def probe(self, leaves: Sequence[Array], state: Sequence[Array]) -> None:
        """Run the module once and learn what it says. ConfigError if that is not what we can use."""
        attempts = _casts(self.kind, [leaf.dtype for leaf in leaves], spaces.array_spaces(self._space))
        errors: list[Exception] = []
        for self._to in attempts:
            try:
                with evaluation(self.module):
                    params, value, after, recorded = self._run(as_tensors(leaves), as_tensors(state))
                    if self.distribution is None:
                        self.distribution = capture.distribution_of(recorded, self._action_space)
                break
            except ConfigError:
                raise
            except Exception as error:  # the user's code
                errors.append(error)
        else:
            raise self._failed(errors[0], len(leaves[0])) from errors[0]
        self.has_value = value is not None
        rows, size = len(leaves[0]), self.distribution.size
        self._check("params", params, (rows, size), f"{self.distribution} takes {size} numbers per action")
        if value is not None:
            self._check("value", value.reshape(len(value), -1).squeeze(1), (rows,), "one per observation")
        if len(after) != len(self.state):
            raise ConfigError(f"{self._name} gives {len(after)} state(s), but its `state` lists {len(self.state)}.")
        for tensor, leaf in zip(after, self.state, strict=True):
            self._check("state", tensor, (rows, *leaf.shape), "its `state` says so")

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors of the module's state dict, each once, under the first of its names."""
        import torch

        named: dict[int, tuple[str, torch.Tensor]] = {}
        for name, tensor in self.module.state_dict(keep_vars=True).items():
            if isinstance(tensor, torch.Tensor):
                named.setdefault(id(tensor), (name, tensor))
        return dict(named.values())

    def on_cpu(self) -> TorchActor:
        """Itself, if all of it lies on the CPU, or a copy that does."""
        tensors = [*self.module.parameters(), *self.module.buffers()]
        if all(tensor.device.type == "cpu" for tensor in tensors):
            return self
        copied: TorchActor = pickle.loads(pack(self))
        return copied

    def take_over(self, probed: TorchActor) -> None:
        """Know what a copy of this module was found to say."""
        self.distribution, self.has_value, self._to = probed.distribution, probed.has_value, probed._to

    @contextlib.contextmanager
    def swapped(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """While this lasts, the module works with these tensors in the place of its own."""
        import torch

        own = self.tensors()
        new = {id(own[name]): tensor for name, tensor in tensors.items()}
        parts = list(self.module.modules())
        tables: list[dict[str, Any]] = [table for part in parts for table in (part._parameters, part._buffers)]
        places = [(table, key, old) for table in tables for key, old in table.items() if id(old) in new]
        # torch's recurrent layers keep a second list of their weights.
        lists = [(part, part._flat_weights) for part in parts if isinstance(part, torch.nn.RNNBase)]
        try:
            for table, key, old in places:
                table[key] = new[id(old)]  # not by setattr, which lets only a Parameter into a Parameter's place
            for part, _ in lists:
                part._flat_weights = [getattr(part, name, None) for name in part._flat_weights_names]
            yield
        finally:
            for table, key, old in places:
                table[key] = old
            for part, weights in lists:
                part._flat_weights = weights

    def _run(
        self, leaves: Sequence[torch.Tensor], state: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor | None, tuple[torch.Tensor, ...], list[Any]]:
        import torch

        inputs = list(leaves)
        for index, dtype in enumerate(self._to):
            if dtype is not None and inputs[index].dtype != getattr(torch, dtype):
                inputs[index] = inputs[index].to(getattr(torch, dtype))
            if index in self._channels_last:
                inputs[index] = inputs[index].permute(0, 3, 1, 2)
        obs = spaces.assemble(self._space, inputs)  # type: ignore[arg-type]  # it only moves them
        if self.kind == "native":
            params, value, after = self.module(obs, tuple(state))
            return params, value, tuple(after), []
        with capture.capture() as recorded:
            answer = self.module.get_action_and_value(obs) if self.kind == "cleanrl" else self.module(obs)
        return capture.params_of(recorded), self._value(answer), (), recorded

    def _value(self, answer: Any) -> torch.Tensor | None:
        import torch

        place = 1 if self.kind == "sb3" else 3  # (action, value, log-probability) or (action, .., .., value)
        if not isinstance(answer, tuple) or len(answer) <= place:
            shown = f"{len(answer)} things" if isinstance(answer, tuple) else type(answer).__name__
            raise ConfigError(f"{self._name} gives {shown}, not (action, log-probability, entropy, value).")
        return answer[place] if isinstance(answer[place], torch.Tensor) else None

    @property
    def _name(self) -> str:
        call = {"cleanrl": "get_action_and_value(x)", "native": "forward(obs, state)"}.get(self.kind, "forward(x)")
        return f"{type(self.module).__name__}.{call}"

    def _check(self, what: str, tensor: torch.Tensor, shape: tuple[int, ...], reason: str) -> None:
        if tuple(tensor.shape) != shape:
            raise ConfigError(
                f"{self._name} gives {what} of shape {tuple(tensor.shape)} for {shape[0]} observations; "
                f"it must be {shape}: {reason}."
            )

    def _failed(self, error: Exception, rows: int) -> ConfigError:
        return ConfigError(
            f"{self._name} raised on {rows} observations of {self._space}: {named(error)}. Accepted are:\n{ACCEPTED}"
        )

    def _check_sb3(self) -> frozenset[int]:
        """The leaves that the policy wants with their channels first, as SB3 turns images by itself."""
        policy: Any = self.module
        if getattr(policy, "use_sde", False):
            raise ConfigError(
                "a policy with use_sde=True keeps its noise over steps, which a worker cannot. Turn it off."
            )
        given, wanted = (spaces.leaves_of(space) or [] for space in (self._space, policy.observation_space))
        turned = {i for i, (a, b) in enumerate(zip(given, wanted, strict=False)) if a.shape != b.shape}
        fits = all(
            len(given[i].shape) == 3 and given[i].shape[-1:] + given[i].shape[:-1] == wanted[i].shape for i in turned
        )
        if len(given) != len(wanted) or not fits:
            raise ConfigError(
                f"the policy was made for observations of {policy.observation_space}, but the environments give "
                f"{self._space}. Make the model with these environments."
            )
        return frozenset(turned)


@contextlib.contextmanager
def evaluation(module: torch.nn.Module) -> Iterator[None]:
    """Run `module` in eval mode, without gradients; each part gets its own training flag back."""
    import torch

    flags = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in flags:
            part.training = training


def _single(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in single precision, without a node in the graph if it is so already."""
    import torch

    return tensor if tensor.dtype == torch.float32 else tensor.float()


def state_of(module: Any) -> tuple[spaces.Leaf, ...]:
    """The recurrent state of one slot, as the user's module or policy tells it."""
    state = getattr(module, "state", ())
    if not isinstance(state, (tuple, list)) or not all(isinstance(leaf, spaces.Leaf) for leaf in state):
        raise ConfigError(
            f"{type(module).__name__}.state is {state!r}; it must be a tuple of clusterenv.spaces.Leaf, one for each "
            "array of the recurrent state of one slot, or () if there is none."
        )
    return tuple(state)


def _casts(kind: str, dtypes: Sequence[Any], leaf_spaces: Sequence[Any]) -> list[tuple[str | None, ...]]:
    """What to turn the leaves into, first choice first.

    Our own modules and SB3 take the dtypes of the space, only double precision becomes single. CleanRL's loops make
    float32 tensors of everything; an agent that looks its Discrete observations up in a table wants whole numbers.
    """
    if kind in ("native", "sb3"):
        return [tuple("float32" if dtype.name in ("float64", "float16") else None for dtype in dtypes)]
    whole = tuple("float32" if hasattr(space, "low") else "int64" for space in leaf_spaces)
    floats = ("float32",) * len(dtypes)
    return [floats] if whole == floats else [floats, whole]
