"""Headers: every class comes back as it was, and everything else is a ProtocolError, quickly."""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.errors import ProtocolError
from clusterenv.wire import messages as m

FROM_NODE: list[Any] = [
    m.Hello(
        protocol=1,
        run="r",
        incarnation="i",
        name="n\u00e4me",
        clusterenv="1",
        python="3",
        gymnasium="1",
        cores=4,
        workers=0,
        imports=["a.b"],
        index=None,
    ),
    m.Answer(number=3, value=b"\x00\xff", error="no"),
    m.Answer(number=0),
    m.Rows(number=None, report=b"r", whole=False),
    m.Rows(number=2**62),
    m.Lost(worker=0, life=0, cause="its memory grew", outgrown=True),
    m.Lost(worker=4095, life=2, cause="signal 9", slot=7, torn=None, reported=False),
    m.Beat(progress=[0, 5, 2**62], seen=9),
    m.Leave(reason="told to"),
    m.Leave(reason="signal SIGTERM", preempted=True),
]
FROM_HEAD: list[Any] = [
    m.Welcome(silence_s=10.0, beat_s=0.5),
    m.Welcome(silence_s=10.0, beat_s=0.5, epoch=3),
    m.Refuse(reason="full"),
    m.Build(number=1, settled=0, blocks=[(0, 2), (2, 3)], recipes=b"x", limit_s=None),
    m.Build(number=1, settled=0, blocks=[(0, 2)], recipes=b"x", limit_s=9.0, worker_memory="2GiB"),
    m.Bind(number=2, settled=1, spaces=b"s"),
    m.Step(number=3, settled=2, lock_step=True, whole=False, objects=b"o"),
    m.Post(number=4, settled=3, worker=0, message=b"m"),
    m.Lend(number=5, settled=4, workers=[0, 1], name="attach", memory=1, message=b"p"),
    m.Tell(number=6, settled=5, worker=1, order=(1, True, False)),
    m.Tell(number=7, settled=6, worker=1, order=None),
    m.Weights(
        number=8, settled=7, memory=1, offset=0, size=9, kind="whole", base=None, version=(0, 1), digest=b"d" * 64
    ),
    m.Weights(number=8, settled=7, memory=1, offset=9, size=99, kind="delta", base=(0, 1), version=(0, 2), digest=b""),
    m.Replace(number=9, settled=8, worker=0, seeds=[None, -3, 5], limit_s=60.0),
    m.Lose(worker=0, cause="late"),
    m.Heard(),
    m.Halt(),
    m.Ping(),
    m.Again(),
    m.Close(limit_s=0.0),
]
SIDES = [(m.decode_from_node, each) for each in FROM_NODE] + [(m.decode_from_head, each) for each in FROM_HEAD]
IDS = [type(each).__name__ for _, each in SIDES]


def named() -> set[type]:
    return {kind for kind in vars(m).values() if isinstance(kind, type) and issubclass(kind, m.Message)}


def test_every_message_is_tested() -> None:
    assert named() - {m.Message, m.Request} == {type(each) for _, each in SIDES}


@pytest.mark.parametrize(("decode", "message"), SIDES, ids=IDS)
def test_every_message_comes_back_as_it_was(decode: Any, message: Any) -> None:
    assert decode([m.encode(message), b"frames behind it"]) == message
    assert decode([memoryview(m.encode(message))]) == message


@pytest.mark.parametrize("message", FROM_NODE, ids=[type(each).__name__ for each in FROM_NODE])
def test_a_message_of_a_node_is_none_of_the_head(message: Any) -> None:
    refused(m.decode_from_head, m.encode(message))


@pytest.mark.parametrize("message", FROM_HEAD, ids=[type(each).__name__ for each in FROM_HEAD])
def test_a_message_of_the_head_is_none_of_a_node(message: Any) -> None:
    refused(m.decode_from_node, m.encode(message))


def refused(decode: Any, data: bytes) -> None:
    began = time.thread_time()  # of this thread alone, however busy the machine
    with pytest.raises(ProtocolError) as caught:
        decode([data])
    assert time.thread_time() - began < 1.0
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(("decode", "message"), SIDES, ids=IDS)
def test_a_message_that_was_cut_off_is_refused(decode: Any, message: Any) -> None:
    data = m.encode(message)
    for length in range(len(data)):
        refused(decode, data[:length])
    refused(decode, data + b"\x00")


@pytest.mark.parametrize(("decode", "message"), SIDES, ids=IDS)
def test_flipped_bits_are_refused_or_another_message(decode: Any, message: Any) -> None:
    data = m.encode(message)
    for place in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        with contextlib.suppress(ProtocolError):
            assert isinstance(decode([bytes(flipped)]), m.Message)


WRONG: list[Any] = [{}, [[]], "text", -1.5, True, 2**63, -(2**63), b"\xff", [None, {}], msgspec.msgpack.Ext(1, b"")]


@pytest.mark.parametrize(("decode", "message"), SIDES, ids=IDS)
def test_other_fields_are_refused(decode: Any, message: Any) -> None:
    good = msgspec.msgpack.decode(m.encode(message))
    assert decode([msgspec.msgpack.encode(good)]) == message
    refused(decode, msgspec.msgpack.encode({**good, "extra": 1}))
    refused(decode, msgspec.msgpack.encode({**good, "type": "Exec"}))
    refused(decode, msgspec.msgpack.encode({**good, "type": 7}))
    refused(decode, msgspec.msgpack.encode({key: value for key, value in good.items() if key != "type"}))
    refused(decode, msgspec.msgpack.encode(list(good.values())))
    for key in good.keys() - {"type"}:
        for wrong in WRONG:
            found = None
            with contextlib.suppress(ProtocolError):
                found = decode([msgspec.msgpack.encode({**good, key: wrong})])
            # What is taken is of the right type: it comes back as the same message.
            assert found is None or decode([m.encode(found)]) == found


TOO_MUCH: list[tuple[Any, str, Any]] = [
    (m.Answer(number=1), "number", 2**62 + 1),
    (m.Answer(number=1), "number", 2**64 - 1),
    (m.Answer(number=1), "number", -1),
    (m.Answer(number=1), "error", "x" * 100_001),
    (m.Leave(reason=""), "reason", "x" * 50_000_000),
    (m.Lost(worker=0, life=0, cause=""), "worker", 4096),
    (m.Lost(worker=0, life=0, cause=""), "slot", -1),
    (m.Beat(progress=[], seen=0), "progress", [0] * 4097),
    (m.Beat(progress=[], seen=0), "progress", [-1]),
    (FROM_NODE[0], "protocol", "1"),
    (FROM_NODE[0], "protocol", 2**63),
    (FROM_NODE[0], "name", "x" * 257),
    (FROM_NODE[0], "imports", ["x"] * 1001),
    (FROM_NODE[0], "imports", ["x" * 257]),
]


@pytest.mark.parametrize(("message", "field", "value"), TOO_MUCH)
def test_too_much_of_anything_is_refused(message: Any, field: str, value: Any) -> None:
    good = msgspec.msgpack.decode(m.encode(message))
    refused(m.decode_from_node, msgspec.msgpack.encode({**good, field: value}))


LIMITS: list[tuple[Any, str]] = [
    (m.Welcome(silence_s=10.0, beat_s=0.5), "silence_s"),
    (m.Welcome(silence_s=10.0, beat_s=0.5), "beat_s"),
    (m.Build(number=1, settled=0, blocks=[], recipes=b"", limit_s=9.0), "limit_s"),
    (m.Replace(number=1, settled=0, worker=0, seeds=[], limit_s=9.0), "limit_s"),
    (m.Close(limit_s=5.0), "limit_s"),
]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0])
@pytest.mark.parametrize(("message", "field"), LIMITS)
def test_a_time_that_is_none_is_refused(message: Any, field: str, value: float) -> None:
    good = msgspec.msgpack.decode(m.encode(message))
    refused(m.decode_from_head, msgspec.msgpack.encode({**good, field: value}))


BOMBS = {
    "nothing": b"",
    "nil": b"\xc0",
    "lists in lists": b"\x91" * 100_000,
    "maps in maps": b"\x81\xa1a" * 100_000,
    "a list that says 4 billion": b"\xdd\xff\xff\xff\xff",
    "a map that says 4 billion": b"\xdf\xff\xff\xff\xff",
    "bytes that say 4 billion": b"\xc6\xff\xff\xff\xff",
    "a text that says 4 billion": b"\xdb\xff\xff\xff\xff",
    "an extension": b"\xd4\x01\x00",
    "a timestamp": b"\xd6\xff\x00\x00\x00\x00",
    "a million entries": b"\xdf\x00\x0f\x42\x40" + b"\xa1a\x01" * 1_000_000,
    "a text that is none": b"\x82\xa4type\xa5Leave\xa6reason\xa2\xff\xfe",
    "half a character": b"\x82\xa4type\xa5Leave\xa6reason\xa3\xed\xa0\x80",
    "an overlong character": b"\x82\xa4type\xa5Leave\xa6reason\xa2\xc0\xaf",
    "a field twice": b"\x83\xa4type\xa5Leave\xa6reason\xa1a\xa6reason\x01",
    "the tag twice": b"\x83\xa4type\xa5Leave\xa4type\xa6Refuse\xa6reason\xa1a",
    "a key that is no text": b"\x82\xa4type\xa5Leave\x01\xa1a",
    "a depth bomb in a field": b"\x82\xa4type\xa4Beat\xa8progress" + b"\x91" * 100_000,
    "a depth bomb in an unknown field": b"\x82\xa4type\xa4Beat\xa8whatever" + b"\x91" * 100_000,
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x93.",
}


@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS.keys())
def test_bombs_are_refused(data: bytes) -> None:
    refused(m.decode_from_node, data)
    refused(m.decode_from_head, data)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    for decode in (m.decode_from_node, m.decode_from_head):
        with contextlib.suppress(ProtocolError):
            decode([data])


def test_no_frames_are_no_message() -> None:
    for decode in (m.decode_from_node, m.decode_from_head):
        with pytest.raises(ProtocolError, match="without a frame"):
            decode([])
