"""What a policy promises to the head and to the workers, and what its parts are called.

Shapes: n is the number of rows (the slots of a block), P the number of parameters of the action distribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from clusterenv.spaces import Leaf

# Text, so that importing this module needs no numpy.typing in a worker.
Array: TypeAlias = "npt.NDArray[Any]"


class Output(NamedTuple):
    """What a policy says about n observations.

    Attributes:
        params: [n, P] float32, the parameters of the action distribution.
        value: [n] float32, or None if the policy has no value.
        state: the recurrent state after this step, each [n, ...]; () if it has none.
    """

    params: Array
    value: Array | None
    state: tuple[Array, ...]


@runtime_checkable
class Distribution(Protocol):
    """How actions follow from parameters.

    Parameters are [..., P] for `log_prob`, `entropy` and `divergence`, with any leading shape; the results have that
    leading shape. Nothing is random in here: the random numbers come in as `noise`, one row each, so that the action
    of a slot depends on no other slot.
    """

    @property
    def size(self) -> int:
        """P, the number of parameters."""

    @property
    def draws(self) -> int:
        """How many random numbers one action takes."""

    @property
    def noise(self) -> str:
        """Which random numbers: "uniform" (in [0, 1)) or "normal"."""

    @property
    def unit(self) -> str:
        """What `divergence` counts: "nats", "share" or "distance"."""

    @property
    def action(self) -> Leaf:
        """Shape and dtype of one sampled action, as the learner sees it."""

    def sample(self, params: Array, noise: Array) -> Array:
        """Actions as the learner sees them, from params [n, P] and noise [n, draws]."""

    def mode(self, params: Array) -> Array:
        """The actions of a policy that does not explore."""

    def log_prob(self, params: Array, actions: Array) -> Array:
        """The log-probability (or log-density) of these actions, float32."""

    def entropy(self, params: Array) -> Array:
        """The entropy in nats, float32."""

    def divergence(self, old: Array, new: Array) -> Array:
        """How far `new` is from `old`, float64, at least 0 and exactly 0 for equal parameters.

        It is KL(old || new) where `unit` is "nats".
        """

    def to_env(self, actions: Array) -> Array:
        """What the environment's `step` gets for these actions: clipped, shifted, in the dtype of its space."""


class Runtime(Protocol):
    """Runs a policy on NumPy arrays, in a worker or on the head. One thread at a time."""

    def load(self, weights: Mapping[str, Array]) -> None:
        """Take these weights; views of them may be kept."""

    def __call__(self, leaves: Sequence[Array], state: tuple[Array, ...]) -> Output:
        """Act on the leaf arrays of n observations (in the order of `spaces.leaves_of`)."""


class RuntimeSpec(Protocol):
    """A small picklable object that becomes a `Runtime` where it arrives."""

    def make(self) -> Runtime:
        """Build the runtime here. It has no weights until `load`."""


@runtime_checkable
class Policy(Protocol):
    """What `attach` makes of the user's object, on the head.

    Attributes:
        distribution: how actions follow from the parameters.
        state: the recurrent state of one slot, zeros at the start of an episode; () if there is none.
        has_value: whether an `Output` of this policy carries values.
    """

    distribution: Distribution
    state: tuple[Leaf, ...]
    has_value: bool

    def weights(self) -> dict[str, Array]:
        """NumPy copies of the current weights, always in the same order."""

    def build(self) -> RuntimeSpec:
        """What travels to the workers, without the weights."""
