"""What the tests of synchronisation share: odd weights, and situations with everything but the point left out."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
from hypothesis.extra import numpy as hnp

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
