"""Shared memory for fragments: what the policy did on the workers, step by step, where the head can read it.

There are a few buffers. Each holds T steps of every slot, and a worker fills the columns of its own slots; so a buffer
that all workers have filled is the [T, N] batch itself, without a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterenv.transport.shared import Field, SharedArrays

if TYPE_CHECKING:
    import numpy.typing as npt

    from clusterenv.spaces import Leaf

    Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class FragmentSpec:
    """The sizes from which head and worker compute the same layout.

    Attributes:
        buffers: how many fragments of a slot can be under way or unread.
        steps: T.
        num_envs: N.
        num_workers: of the node.
        observation: the leaves of one observation.
        state: the leaves of one recurrent state.
        action: one action as the distribution samples it.
        params: P, the number of parameters of the distribution.
        has_value: whether the policy has a value.
        first_slot: the slot of the first column: 0 for the head, another for a node on another host.
        every_state: whether the state before every step is kept, or only that before the first.
    """

    buffers: int
    steps: int
    num_envs: int
    num_workers: int
    observation: tuple[Leaf, ...]
    state: tuple[Leaf, ...]
    action: Leaf
    params: int
    has_value: bool
    first_slot: int = 0
    every_state: bool = False

    def layout(self) -> list[Field]:
        """The fields, in order."""
        k, t, n = self.buffers, self.steps, self.num_envs
        fields = [Field("progress", (self.num_workers, 16), "<i8")]
        fields += [Field(f"obs{i}", (k, t + 1, n, *leaf.shape), leaf.dtype.str) for i, leaf in _each(self.observation)]
        fields += [Field(f"state{i}", (k, n, *leaf.shape), leaf.dtype.str) for i, leaf in _each(self.state)]
        fields += [
            Field("action", (k, t, n, *self.action.shape), self.action.dtype.str),
            Field("reward", (k, t, n), "<f8"),
            Field("terminated", (k, t, n), "|b1"),
            Field("truncated", (k, t, n), "|b1"),
            Field("first", (k, t + 1, n), "|b1"),
            Field("logp", (k, t, n), "<f4"),
            Field("params", (k, t, n, self.params), "<f4"),
            Field("version", (k, t, n), "<i8"),
            # Only where an episode ended is anything written to these. Memory that is not touched costs nothing.
            Field("episode_return", (k, t, n), "<f8"),
            Field("episode_length", (k, t, n), "<i8"),
        ]
        fields += [Field(f"final{i}", (k, t, n, *leaf.shape), leaf.dtype.str) for i, leaf in _each(self.observation)]
        if self.every_state:
            fields += [Field(f"states{i}", (k, t, n, *leaf.shape), leaf.dtype.str) for i, leaf in _each(self.state)]
        if self.has_value:
            fields.append(Field("value", (k, t, n), "<f4"))
        return fields


class Columns(NamedTuple):
    """Some slots of one buffer: views, [T, n, ...] (observations and `first` [T + 1, n, ...], states [n, ...]).

    `final`, `episode_return` and `episode_length` mean something where an episode ended, and nothing elsewhere. A
    length of 0 stands for an episode that was not seen from its beginning. `states` are those before every step, if
    they are kept.
    """

    obs: list[Array]
    state: list[Array]
    final: list[Array]
    episode_return: Array
    episode_length: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    first: Array
    logp: Array
    params: Array
    version: Array
    value: Array | None
    states: list[Array] | None = None


class Fragments:
    """The buffers, in memory that the head makes with `create` and a worker is lent."""

    def __init__(self, spec: FragmentSpec, memory: SharedArrays) -> None:
        self.spec, self.memory = spec, memory
        # A cache line per worker for each of these. How many steps it has played: the head sees by it whether the
        # worker still moves. Whether it shall stop in the middle: the head sets that to end a stream.
        self.progress, self.stop = memory["progress"][:, 0], memory["progress"][:, 8]

    @classmethod
    def create(cls, spec: FragmentSpec) -> Fragments:
        """Make the memory on the head."""
        return cls(spec, SharedArrays.create(spec.layout()))

    def columns(self, buffer: int, block: range) -> Columns:
        """These slots of a buffer."""
        memory, spec = self.memory, self.spec
        slots = slice(block.start - spec.first_slot, block.stop - spec.first_slot)

        def part(name: str) -> Array:
            array: Array = memory[name][buffer]
            return array[:, slots]

        return Columns(
            obs=[part(f"obs{i}") for i, _ in _each(spec.observation)],
            state=[memory[f"state{i}"][buffer][slots] for i, _ in _each(spec.state)],
            final=[part(f"final{i}") for i, _ in _each(spec.observation)],
            episode_return=part("episode_return"),
            episode_length=part("episode_length"),
            action=part("action"),
            reward=part("reward"),
            terminated=part("terminated"),
            truncated=part("truncated"),
            first=part("first"),
            logp=part("logp"),
            params=part("params"),
            version=part("version"),
            value=part("value") if spec.has_value else None,
            states=[part(f"states{i}") for i, _ in _each(spec.state)] if spec.every_state else None,
        )

    def close(self) -> None:
        """Give the descriptor back."""
        self.memory.close()


def _each(leaves: tuple[Leaf, ...]) -> list[tuple[int, Leaf]]:
    return list(enumerate(leaves))
