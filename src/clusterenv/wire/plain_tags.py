"""What writer and reader of plain values agree on: tags, limits, and the types that need no tag."""

from __future__ import annotations

MAX_DEPTH = 100
MAX_INT_BITS = 4096

# Part of the protocol: a number that is here never changes its meaning.
TUPLE, DICT, SET, FROZENSET, INT, COMPLEX, TEXT, RANGE, SLICE = range(9)
ARRAY, OBJECTS, SCALAR, NUMPY_TEXT, NUMPY_BYTES, DTYPE, GENERATOR = range(9, 16)
RECORD, ENUM, SPACE, ERROR = range(16, 20)

# What MessagePack always takes as it is; and what it nearly always takes: not a whole number of more than 64 bits, and
# not a text with half a character (a lone surrogate).
SAFE = frozenset([type(None), bool, float, bytes])
ATOMS = SAFE | {int, str}
TEXT_ONLY = frozenset([str])
