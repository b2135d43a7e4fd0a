"""What the tests of synchronisation share: odd weights, and situations with everything but the point left out."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
from hypothesis.extra import numpy as hnp

from clusterenv.sync.rules import Reason, Rule, Situation
from clusterenv.sync.versions import Version

Array = npt.NDArray[Any]
V0, V1, V2 = Version(0, 0), Version(0, 1), Version(0, 2)

# float32 bit patterns: zeros of both signs, subnormals, ordinary and the largest numbers; no NaN, no infinity.
FINITE_BITS = st.one_of(
    st.sampled_from([0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F808000, 0x3F818000]),
    st.integers(0, 0x7F7FFFFF),
    st.integers(0x80000000, 0xFF7FFFFF),
)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@st.composite
def float_tensors(draw: st.DrawFn, shape: tuple[int, ...]) -> Array:
    count = int(np.prod(shape))
    bits = draw(st.lists(FINITE_BITS, min_size=count, max_size=count))
    return np.array(bits, dtype=np.uint32).view(np.float32).reshape(shape)


@st.composite
def tensors(draw: st.DrawFn) -> Array:
    shape = draw(SHAPES)
    kind = draw(st.sampled_from(["f4", "f4", "f4", "f8", "f2", "i8", "u1", "?"]))
    if kind == "f4":
        return draw(float_tensors(shape))
    return draw(hnp.arrays(kind, shape, elements={"allow_nan": False, "allow_infinity": False} if "f" in kind else {}))


@st.composite
def weights(draw: st.DrawFn) -> dict[str, Array]:
    """A policy's tensors of any shape, scalars and empty ones included."""
    return draw(st.dictionaries(st.text(max_size=5), tensors(), max_size=4))


@st.composite
def two_versions(draw: st.DrawFn) -> tuple[dict[str, Array], dict[str, Array]]:
    """Two sets of weights with one layout; some tensors are the same in both."""
    first = draw(weights())
    second = {}
    for name, value in first.items():
        change = value.dtype == np.float32 and draw(st.booleans())
        second[name] = draw(float_tensors(value.shape)) if change else value.copy()
    return first, second


def same_bits(left: Array, right: Array) -> bool:
    """Equal to the bit: -0.0 is not 0.0."""
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def situation(
    held: Version | int | None,
    newest: Version | int,
    divergence: float | list[float] = 0.0,
    **more: Any,
) -> Situation:
    """A situation of a node; plain numbers are versions of epoch 0."""
    return Situation(
        held=Version(0, held) if isinstance(held, int) else held,
        newest=Version(0, newest) if isinstance(newest, int) else newest,
        divergence=np.atleast_1d(np.array(divergence, dtype=np.float64)),
        **{"now_s": 0.0, **more},
    )


class Node:
    """Plays the head for one node: asks the decider, moves weights when told to, and keeps the reasons."""

    def __init__(self, rule: Rule, nbytes: int = 1000) -> None:
        self.decider = rule.start(1)
        self.held: Version | None = None
        self.newest = V0
        self.now_s, self.batches, self.nbytes = 0.0, 0, nbytes
        self.syncs: list[tuple[float, Reason]] = []
        self.ask()

    def ask(self, divergence: float | list[float] = 0.0, **more: Any) -> Reason | None:
        facts = {"now_s": self.now_s, "batches": self.batches, "sync_bytes": self.nbytes, **more}
        reason = self.decider.consider(situation(self.held, self.newest, divergence, **facts))
        if reason is not None:
            self.held = self.newest
            self.syncs.append((self.now_s, reason))
            self.decider.synced(self.newest, reason, now_s=self.now_s, nbytes=self.nbytes)
        return reason

    def publish(self, divergence: float | list[float] = 0.0, **more: Any) -> Reason | None:
        """A new version exists; the workers are this far away from it."""
        self.newest = self.newest.next()
        return self.ask(divergence, request=False, **more)

    def learn(self, divergence: float | list[float] = 0.0, **more: Any) -> Reason | None:
        """The learner takes a batch and publishes once."""
        self.batches += 1
        return self.publish(divergence, **more)

    @property
    def lag(self) -> int:
        assert self.held is not None
        return self.held.lag(self.newest)

    @property
    def reasons(self) -> list[Reason]:
        return [reason for _, reason in self.syncs]
