"""The messages between head and nodes: a typed header each, and raw frames of arrays behind it.

A message is a list of frames. The first is the header, one of the classes below in MessagePack, which names its kind
by a tag. The others are bytes of arrays whose sizes both sides know beforehand. Whatever does not fit a class exactly
raises ProtocolError: unknown tags, missing fields, other types, texts that are too long.

Requests of the head are numbered, and a node carries out each number once (`cluster.requests`).

Workers are counted within their node here, slots within the batch.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from clusterenv.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Grows with every change to what follows. Head and node must have the same.
PROTOCOL = 8

NAME_CHARS = 256
MAX_NUMBER = 2**62
_TEXT_CHARS, _MAX_WORKERS = 100_000, 4096

Name = Annotated[str, Meta(max_length=NAME_CHARS)]
Text = Annotated[str, Meta(max_length=_TEXT_CHARS)]
Number = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Worker = Annotated[int, Meta(ge=0, lt=_MAX_WORKERS)]
# Times are finite: whoever is told to wait without an end, or until NaN, would never find that it is over.
Seconds = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
SecondsLeft = Annotated[float, Meta(ge=0, le=sys.float_info.max)]


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """A header."""


# From a node.


class Hello(Message, frozen=True):
    """A node is there, or is there again after a broken connection."""

    protocol: Number
    run: Name
    incarnation: Name  # another for every process
    name: Name
    index: Number | None  # which node of its launcher it is
    clusterenv: Name
    python: Name
    gymnasium: Name
    cores: Number
    workers: Number  # how many it wants to have; 0 for one per core
    imports: Annotated[list[Name], Meta(max_length=1000)]
    epoch: Number = 0  # of the last head that has let this process in
    fresh: bool = True  # whether it holds nothing of any head: no environments, no answers


class Answer(Message, frozen=True):
    """A request was carried out. `value` is packed plain data; an `error` says why it could not be done."""

    number: Number
    value: bytes = b""
    error: Text = ""


class Rows(Message, frozen=True):
    """Slots have been stepped: their rows follow as frames (see `wire.frames`).

    `number` is that of a lock-step request which is complete with this, or None; `report` is a packed Report.
    """

    number: Number | None = None
    report: bytes = b""
    whole: bool = True  # all slots of the node, in their order; otherwise the first frame says which


class Lost(Message, frozen=True):
    """A worker has ended. `life` counts its processes, so that an old message is known as such."""

    worker: Worker
    life: Number
    cause: Text
    slot: Number | None = None
    torn: Number | None = None
    reported: bool = True
    outgrown: bool = False  # it has ended by itself, because of its memory


class Beat(Message, frozen=True):
    """Now and then: how many steps each worker has played, and the last request that arrived."""

    progress: Annotated[list[Number], Meta(max_length=_MAX_WORKERS)]
    seen: Number


class Leave(Message, frozen=True):
    """The node goes, and why; `preempted` if its host is taken back."""

    reason: Text
    preempted: bool = False


# From the head. Those with a number are carried out in their order, each once, and answered.


class Welcome(Message, frozen=True):
    """The node is in."""

    silence_s: Seconds
    beat_s: Seconds
    epoch: Number = 0  # of this head


class Heard(Message, frozen=True):
    """A beat has been read, so the next may come.

    A head that is busy elsewhere must not find a heap of them: libzmq closes a connection whose messages nobody takes.
    """


class Refuse(Message, frozen=True):
    """The node is not wanted; it ends and shows the reason."""

    reason: Text


class Request(Message, frozen=True):
    """What all requests have. The answers up to `settled` have come, and those behind it that are `arrived`."""

    number: Number
    settled: Number
    arrived: Annotated[tuple[Number, ...], Meta(max_length=1_000_000)] = ()


class Build(Request, frozen=True, kw_only=True):
    """Start workers with these blocks of slots. `recipes` is packed: how each slot's environment is made."""

    blocks: Annotated[list[tuple[Number, Number]], Meta(max_length=_MAX_WORKERS)]
    recipes: bytes
    limit_s: Seconds | None
    worker_memory: Name = ""


class Bind(Request, frozen=True, kw_only=True):
    """The spaces agreed by all (packed). The node makes its arena for them."""

    spaces: bytes


class Step(Request, frozen=True, kw_only=True):
    """Step slots: all of the node in lock step, or some and answer as they finish. Frames as in `wire.frames`."""

    lock_step: bool
    whole: bool
    objects: bytes = b""  # packed actions that fit no array, by worker and row, each with its request number


class Post(Request, frozen=True, kw_only=True):
    """A message for one worker: the name of a method and its arguments, packed."""

    worker: Worker
    message: bytes


class Lend(Request, frozen=True, kw_only=True):
    """A message for workers that share memory, which the node makes once for every `memory` number."""

    workers: Annotated[list[Worker], Meta(max_length=_MAX_WORKERS)]
    name: Name
    memory: Number
    message: bytes


class Tell(Request, frozen=True, kw_only=True):
    """The next order of a streaming worker, or the end of its stream."""

    worker: Worker
    order: tuple[Number, bool, bool] | None


class Weights(Request, frozen=True, kw_only=True):
    """A piece of a version of the weights: the frame that follows, at this place of `size` bytes."""

    memory: Number
    offset: Number
    size: Number
    kind: Name
    base: tuple[Number, Number] | None
    version: tuple[Number, Number]
    digest: Annotated[bytes, Meta(max_length=64)]


class Replace(Request, frozen=True, kw_only=True):
    """Start a fresh worker in the place of a lost one and wait until it is built."""

    worker: Worker
    seeds: Annotated[list[int | None], Meta(max_length=1_000_000)]
    limit_s: Seconds | None


class Lose(Message, frozen=True):
    """End a worker, now."""

    worker: Worker
    cause: Text


class Ping(Message, frozen=True):
    """Nothing: whether it can be sent tells whether there is a connection."""


class Halt(Message, frozen=True):
    """Whoever plays stops after the step that it is in, now."""


class Again(Message, frozen=True):
    """Rows of steps that were sent may have been lost: send those that have not been handed over once more, now."""


class Close(Message, frozen=True):
    """Close the environments within the limit, then go."""

    limit_s: SecondsLeft


FromNode = Hello | Answer | Rows | Lost | Beat | Leave
FromHead = (
    Welcome
    | Heard
    | Refuse
    | Build
    | Bind
    | Step
    | Post
    | Lend
    | Tell
    | Weights
    | Replace
    | Lose
    | Ping
    | Halt
    | Again
    | Close
)

_encoder = msgspec.msgpack.Encoder()
_from_node: msgspec.msgpack.Decoder[FromNode] = msgspec.msgpack.Decoder(FromNode)
_from_head: msgspec.msgpack.Decoder[FromHead] = msgspec.msgpack.Decoder(FromHead)


def encode(message: Message) -> bytes:
    """The header as bytes.

    Example:
        >>> decode_from_head([encode(Close(limit_s=5.0))]).limit_s
        5.0
    """
    return _encoder.encode(message)


def decode_from_node(frames: Sequence[Any]) -> FromNode:
    """The header of a message that a node sent."""
    found: FromNode = _decode(_from_node, frames)
    return found


def decode_from_head(frames: Sequence[Any]) -> FromHead:
    """The header of a message that the head sent."""
    found: FromHead = _decode(_from_head, frames)
    return found


def _decode(decoder: Any, frames: Sequence[Any]) -> Any:
    if not frames:
        raise ProtocolError("a message without a frame arrived.")
    try:
        return decoder.decode(frames[0])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a message arrived that is none of ours: {error}") from error
