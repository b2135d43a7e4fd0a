"""Plain values as bytes: each comes back as it was, what is not plain is named, and no bytes do harm."""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
import sys
import time
import tracemalloc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import hypothesis.extra.numpy as npst
import hypothesis.strategies as st
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from msgspec import msgpack

from clusterenv.errors import ConfigError, ProtocolError, ResultError
from clusterenv.wire.plain import Codec
from clusterenv.wire.plain_tags import MAX_DEPTH

if TYPE_CHECKING:
    import random


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Size(enum.IntEnum):
    SMALL = 1


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: Any
    y: Any = 0


@dataclass(frozen=True, slots=True)
class Note:
    slots: range
    infos: list[Any] = field(default_factory=list)


@dataclass
class Positive:
    number: int

    def __post_init__(self) -> None:
        if self.number <= 0:
            raise ValueError(f"number={self.number} must be positive")


Loose = collections.namedtuple("Loose", "a")
Other: Any = enum.Enum("Other", "A")
OtherPoint: Any = enum.Enum("Point", "A")  # type: ignore[misc]
CODEC = Codec([Colour, Access, Point, Note, Positive])


def again(value: Any) -> Any:
    return CODEC.unpack(CODEC.pack(value))


def same(left: Any, right: Any) -> bool:
    """Equal, of the same types all the way down, NaN for NaN, and in the same order."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        if left.dtype != right.dtype or left.shape != right.shape:
            return False
        return same(left.ravel().tolist(), right.ravel().tolist()) if left.dtype == object else same_bytes(left, right)
    if dataclasses.is_dataclass(left):
        return same(vars_of(left), vars_of(right))
    if isinstance(left, np.generic):
        return left.dtype == right.dtype and same_bytes(left, right)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left.items()), list(right.items()))
    if isinstance(left, (set, frozenset)):
        return len(left) == len(right) and all(any(same(a, b) for b in right) for a in left)
    if isinstance(left, (float, complex)):
        return repr(left) == repr(right)
    return bool(left == right)


def vars_of(record: Any) -> list[Any]:
    return [getattr(record, part.name) for part in dataclasses.fields(record)]


def same_bytes(left: Any, right: Any) -> bool:
    return bool(left.tobytes() == right.tobytes())


DTYPES = st.one_of(
    npst.boolean_dtypes(),
    npst.integer_dtypes(endianness="?"),
    npst.unsigned_integer_dtypes(endianness="?"),
    npst.floating_dtypes(endianness="?"),
    npst.complex_number_dtypes(endianness="?"),
    npst.datetime64_dtypes(endianness="?"),
    npst.byte_string_dtypes(),
    npst.unicode_string_dtypes(endianness="?"),
)
ARRAYS = npst.arrays(DTYPES, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
SCALARS = st.one_of(
    *(npst.arrays(dtype, 1).map(lambda array: array[0]) for dtype in ("<i1", "<u8", "<f2", "<f4", "<f8", "<c8", "?")),
    st.text(max_size=5).filter(lambda text: "\0" not in text).map(np.str_),
    st.binary(max_size=5).filter(lambda data: not data.endswith(b"\0")).map(np.bytes_),
)
KEYS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**200), 2**200),
    st.floats(allow_nan=False),
    st.text(st.characters(), max_size=5),
    st.binary(max_size=5),
    st.tuples(st.integers(), st.text(max_size=3)),
    st.frozensets(st.integers(0, 9), max_size=3),
    st.sampled_from([*Colour, np.int64(77), np.str_("key")]),
)
LEAVES = st.one_of(
    KEYS, st.floats(), st.complex_numbers(), ARRAYS, SCALARS, st.sampled_from([range(1, 9, 2), slice(3)])
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=4), inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=4),
        st.sets(KEYS, max_size=3),
        st.builds(Point, inner, inner),
        st.builds(Note, st.just(range(2)), st.lists(inner, max_size=2)),
    )


VALUES = st.recursive(LEAVES, containers, max_leaves=12)


@given(VALUES)
@settings(max_examples=400)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    assert same(again(value), value)


def test_the_measure_of_sameness_sees_differences() -> None:
    different = [1, 1.0, True, np.int64(1), np.int32(1), np.ones(1), np.ones(1, "f4"), [1], (1,), "1", b"1", -0.0, 0.0]
    for i, left in enumerate(different):
        for j, right in enumerate(different):
            assert same(left, right) == (i == j), (left, right)
    assert not same({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert not same(np.array([[1]], object), np.array([1], object))


@pytest.mark.parametrize(
    "value",
    [0, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 2**4096 - 1, -(2**4096 - 1), "\ud800", {"\ud800": "\udfff"}],
)
def test_numbers_and_texts_at_the_edges(value: Any) -> None:
    assert same(again(value), value)
    assert same(again([("x", value)]), [("x", value)])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0, complex(math.nan, -0.0)])
def test_special_floats(value: Any) -> None:
    assert repr(again(value)) == repr(value)


def test_arrays_come_back_whole_and_writable() -> None:
    base = np.arange(24, dtype=">i4").reshape(4, 6)
    for array in (base, base.T, base[::2, ::-3], base[0, 0, ...], np.asfortranarray(base), np.array(5), base[:0]):
        back = again(array)
        assert same(back, np.asarray(array))
        assert back.flags.writeable
        assert back.flags.c_contiguous
        assert (back.base if back.base is not None else back).flags.owndata


def test_an_array_does_not_lie_in_the_message() -> None:
    data = bytearray(CODEC.pack(np.zeros(3, np.uint8)))
    back = CODEC.unpack(memoryview(data))
    data[:] = b"\xff" * len(data)
    assert back.tolist() == [0, 0, 0]


def test_arrays_of_objects() -> None:
    array = np.empty((2, 2), object)
    array[:] = [[None, {"a": np.float32(1)}], [[1, 2], "x"]]
    assert same(again(array), array)
    # NumPy would make this one two-dimensional if it had the choice.
    ragged = np.empty(2, object)
    ragged[0], ragged[1] = [1, 2], [3, 4]
    assert again(ragged).shape == (2,)
    assert again(np.empty((0, 3), object)).shape == (0, 3)


@pytest.mark.parametrize("dtype", ["<f4", ">i2", "<M8[25s]", "<m8", "|S7", "<U3", "|V5", "?"])
def test_dtypes(dtype: str) -> None:
    assert again(np.dtype(dtype)) == np.dtype(dtype)
    assert again(np.zeros(2, dtype)).dtype == np.dtype(dtype)


def test_a_random_generator_goes_on_where_it_was() -> None:
    rng = np.random.default_rng(3)
    rng.integers(0, 9, 3, dtype=np.int32)  # leaves half a draw behind
    back = again(rng)
    assert np.array_equal(back.integers(0, 99, 9, dtype=np.int32), rng.integers(0, 99, 9, dtype=np.int32))
    assert back.normal() == rng.normal()


def test_spaces_and_graphs() -> None:
    assert again({"space": spaces.Discrete(3, start=2)}) == {"space": spaces.Discrete(3, start=2)}
    sample = spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(2), seed=1).sample(num_nodes=3, num_edges=2)
    assert same(again(sample), sample)
    assert isinstance(again(sample), spaces.GraphInstance)


def test_records_and_members() -> None:
    note = Note(range(3), [Point(1, Colour.BLUE), Access.WRITE])
    assert again(note) == note
    assert again(Positive(3)) == Positive(3)
    assert again(Colour.RED) is Colour.RED


def test_subclasses_travel_as_what_they_are_based_on() -> None:
    class Words(list[str]):
        pass

    class Word(str):
        __slots__ = ()

    values: list[Any] = [collections.OrderedDict(b=1, a=2), collections.defaultdict(int, a=1), Size.SMALL, Word("x")]
    expected: list[Any] = [{"b": 1, "a": 2}, {"a": 1}, 1, "x"]
    assert same(again([*values, Words("ab"), {Word("k"): 1}]), [*expected, ["a", "b"], {"k": 1}])


HINT = r"; make it plain data \(numbers, text, lists, dictionaries, NumPy arrays\)$"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "object"),
        ({"x": [1, 2, 3, print]}, r"builtin_function_or_method at \['x'\]\[3\]"),
        ([({"a": Point(1, {object()})},)], r"object at \[0\]\[0\]\['a'\].y\{...\}"),
        ({("a", 1): lambda: 0}, r"function at \[tuple\]"),
        ({object(): 1}, r"object at .keys\(\)\[0\]"),
        (slice(None, object()), "object at .stop"),
        (Note(range(1), [1, Size]), r"enum.Enum\w+ at .infos\[1\]"),
        (np.array([1, {"k": object}], object), r"type at .flat\[1\]\['k'\]"),
        (2**4096, r"a whole number of 4097 bits \(at most 4096 travel\)"),
        ([np.zeros(2, "i4,i4")], r"the NumPy dtype .* has elements that are not plain at \[0\]"),
        (np.zeros(2, "i4,i4")[0], "the NumPy dtype .* has elements that are not plain"),
        (np.ma.zeros(2), "numpy.ma.*.MaskedArray"),
        (Loose(1), ".*Loose"),
        ({"rng": np.random.Generator(np.random.MT19937(1))}, r"a random generator of .*MT19937.*at \['rng'\]"),
        (Access.READ | Access.WRITE, ".*which has no name"),
        (Other.A, ".*Other"),
        (bytearray(b"x"), "bytearray"),
    ],
)
def test_what_is_not_plain_is_named(value: Any, words: str) -> None:
    with pytest.raises(ResultError, match=f"^cannot travel to another host: {words}{HINT}"):
        CODEC.pack(value)


@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: (x,), lambda x: {"k": x}, lambda x: {1: x}, Point])
def test_depth(wrap: Any) -> None:
    value: Any = 0
    for _ in range(MAX_DEPTH):
        value = wrap(value)
    assert same(again(value), value)
    with pytest.raises(ResultError, match=f"nested more than {MAX_DEPTH} deep"):
        CODEC.pack(wrap(value))


def test_what_holds_itself() -> None:
    ring: list[Any] = [1]
    ring += [ring, ring]
    with pytest.raises(ResultError, match=r"within itself at (\[1\])+.*\.\.\.;"):
        CODEC.pack(ring)


def test_a_stack_that_is_nearly_full() -> None:
    value: Any = 0
    for _ in range(MAX_DEPTH):
        value = [value]
    packed = CODEC.pack(value)

    def deep(levels: int, call: Any) -> Any:
        return call() if levels == 0 else deep(levels - 1, call)

    frames = 0
    frame = sys._getframe()
    while frame.f_back is not None:
        frames, frame = frames + 1, frame.f_back
    left = sys.getrecursionlimit() - frames - 60
    with pytest.raises(ResultError, match="too deep"):
        deep(left, lambda: CODEC.pack(value))
    with pytest.raises(ProtocolError, match="too deep"):
        deep(left, lambda: CODEC.unpack(packed))


def test_records_are_checked_when_they_are_registered() -> None:
    class Bare:
        pass

    @dataclass
    class Hidden:
        number: int = field(init=False)

    for wrong in (Bare, Hidden):
        with pytest.raises(ConfigError, match=f"{wrong.__name__} cannot be a record"):
            Codec([wrong])
    with pytest.raises(ConfigError, match="same name"):
        Codec([Point, OtherPoint])


@pytest.mark.parametrize("value", [Colour.RED, Point(1, 2), Note(range(1))], ids=["enum", "named tuple", "dataclass"])
def test_a_receiver_that_does_not_know_a_record(value: Any) -> None:
    with pytest.raises(ProtocolError, match=r"not known|unknown record"):
        Codec().unpack(CODEC.pack(value))


def tries(data: bytes) -> None:
    """Whatever these bytes are, they give a value or a ProtocolError that can be read."""
    words = ""
    try:
        CODEC.unpack(data)
    except ProtocolError as error:
        words = str(error)
    assert len(words) < 500


@given(st.binary(max_size=200))
@settings(max_examples=500)
def test_any_bytes(data: bytes) -> None:
    tries(data)


@given(VALUES, st.randoms(use_true_random=False))
@settings(max_examples=300)
def test_damaged_messages(value: Any, rng: random.Random) -> None:
    packed = CODEC.pack(value)
    tries(packed[: rng.randrange(len(packed))])
    for _ in range(5):
        damaged = bytearray(packed)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        tries(bytes(damaged))
    with pytest.raises(ProtocolError, match="trailing"):
        CODEC.unpack(packed + b"\xc0")


RAW = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.integers(-3, 70),
        st.floats(),
        st.text(max_size=4),
        st.binary(max_size=20),
        st.sampled_from(
            ["<f4", "|O", "|b1", "<U2", "Box", "Point", "Colour", "RED", "x", "y", "ValueError", "OSError"]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(st.integers(-1, 21), inner, min_size=1, max_size=1),
        st.dictionaries(st.text(max_size=2), inner, max_size=2),
    ),
    max_leaves=15,
)


@given(st.integers(0, 20), RAW)
@settings(max_examples=800)
def test_any_content_under_any_tag(tag: int, content: Any) -> None:
    tries(msgpack.encode({tag: content}))
    tries(msgpack.encode([{tag: [content, content]}, {tag: ["<f4", content, b""]}]))


TAGS = {"tuple": 0, "dict": 1, "set": 2, "int": 4, "text": 6, "range": 7, "array": 9, "objects": 10, "scalar": 11}


def tag(name: str, content: Any) -> bytes:
    return msgpack.encode({TAGS[name]: content})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"GET / HTTP/1.1\r\n",
        b"\x91" * 100_000 + b"\xc0",
        b"\x91" * 101 + b"\xc0",
        b"\x81\x00" * 400 + b"\xc0",
        b"\x81\x00\x91" * 200 + b"\xc0",
        b"\xdd\xff\xff\xff\xff" * 300,
        b"\xdf\xff\xff\xff\xff" * 300,
        b"\xc6\xff\xff\xff\xff",
        b"\xd4\x05a",  # an extension
        b"\xd6\xff\x00\x00\x00\x00",  # a timestamp
        b"\xa2\xff\xfe",  # text that is none
        msgpack.encode({99: 1}),
        msgpack.encode({-1: 1}),
        msgpack.encode({1: 1, 2: 2}),
        msgpack.encode({1.5: 1}),
        msgpack.encode({b"k": 1}),
        tag("int", b"\x01" * 514),
        tag("dict", [1, 2, 3]),
        tag("dict", [1, 1, 2, 3]),
        tag("dict", [[], 1]),
        tag("set", [1, 1]),
        tag("text", b"\xff"),
        tag("range", [0, 1, 0]),
        tag("range", [0, 1.0, 1]),
        tag("array", ["|O", [1], b"12345678"]),
        tag("array", ["<f4", [2**62, 2], b""]),
        tag("array", ["<f4", [2**31, 2**31, 4], b"1234"]),
        tag("array", ["<f4", [-1], b"1234"]),
        tag("array", ["<f4", [-1, -1], b"1234"]),
        tag("array", ["<f4", [True], b"1234"]),
        tag("array", ["<f4", [1] * 33, b"1234"]),
        tag("array", ["<f4", [2], b"1234"]),
        tag("array", ["<f4", [1], "1234"]),
        tag("array", ["<f4,<f4", [1], b"12345678"]),
        tag("array", ["(9,9)<f4", [1], b"1234"]),
        tag("array", ["<i3", [1], b"123"]),
        tag("array", ["<M8[xx]", [1], b"12345678"]),
        tag("array", ["|S999999999", [0], b""]),
        tag("array", ["<f4", [0, 2**62, 2**62], b""]),
        tag("array", ["<U1", [1], b"\xff\xff\xff\xff"]),
        tag("scalar", ["<U1", b"\xff\xff\xff\xff"]),
        tag("scalar", ["<f4", b"123"]),
        tag("objects", [1, 2**40, None]),
        tag("objects", [-1, 1]),
        tag("objects", []),
        msgpack.encode({16: ["Point", "x", "y", 1]}),
        msgpack.encode({16: ["Point", "y", "x", 1, 2]}),
        msgpack.encode({16: ["Positive", "number", -3]}),
        msgpack.encode({16: []}),
        msgpack.encode({17: ["Colour", "GREEN"]}),
        msgpack.encode({17: ["Colour", "__class__"]}),
        msgpack.encode({15: [b"1" * 16, b"1" * 16, 2, 0]}),
        msgpack.encode({15: [b"1" * 17, b"1" * 16, 1, 0]}),
    ],
)
def test_hostile_messages_are_refused(data: bytes) -> None:
    tracemalloc.start()
    began = time.thread_time()  # of this thread alone, however busy the machine
    try:
        with pytest.raises(ProtocolError):
            CODEC.unpack(data)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()
    assert time.thread_time() - began < 2


def test_truth_is_one_or_zero() -> None:
    assert CODEC.unpack(tag("array", ["|b1", [2], b"\x02\x00"])).view(np.uint8).tolist() == [1, 0]
    assert CODEC.unpack(tag("scalar", ["|b1", b"\x02"])).tobytes() == b"\x01"


def test_the_format_stays_as_it_is() -> None:
    """A head and a node of different versions must not misread each other: a change here is a new protocol."""
    value = [(1, {"a": 1.5, "b": np.int16(3)}), {2: np.array([1], "u1")}]
    expected = [{0: [1, {"a": 1.5, "b": {11: ["<i2", b"\x03\x00"]}}]}, {1: [2, {9: ["|u1", [1], b"\x01"]}]}]
    assert msgpack.decode(CODEC.pack(value)) == expected
