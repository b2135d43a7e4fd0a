"""One plain function for every decoder of bytes or text that comes from outside.

Each takes any bytes. What its decoder says it raises for nonsense is named in front of it; anything else that comes out
is a finding: another exception, a hang, or memory that the input has not paid for.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import struct
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.clusters import Remote, parse_remote
from clusterenv.config import parse_cluster
from clusterenv.errors import ConfigError, ProtocolError, ResultError, WeightsCorrupt
from clusterenv.launchers import slurm_words
from clusterenv.learners.catalog import settings_of
from clusterenv.learners.common import checkpoint
from clusterenv.learners.common.runfolder import read_settings
from clusterenv.metrics.sinks import csv
from clusterenv.node import records
from clusterenv.node.parcels import Arriving
from clusterenv.node.recipes import builders_of
from clusterenv.sync.codec import KINDS, Encoded, decode, rounded
from clusterenv.sync.parse import parse_sync
from clusterenv.sync.versions import Version
from clusterenv.sync.weights import WeightSpec
from clusterenv.transport.fragments import Fragments
from clusterenv.transport.security import make_keys, parse_keys
from clusterenv.transport.sockets import Hub, parse_address
from clusterenv.wire.frames import split
from clusterenv.wire.messages import decode_from_head, decode_from_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    Decoder = Callable[[bytes], None]

SLOTS = range(4)
ANSWERED = ("reset", "play", "call")
# What a node has before weights arrive: the layout, and the version that a difference refers to.
WEIGHTS: dict[str, npt.NDArray[Any]] = {
    "w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
    "steps": np.array([7], np.int64),
}
SPEC = WeightSpec.of(WEIGHTS)
BASE_VERSION, VERSION = Version(0, 1), Version(0, 2)
BASE = rounded(SPEC.flatten(WEIGHTS), BASE_VERSION, "bf16-delta")
WEIGHTS_HEAD = struct.Struct("<B8s")
PIECE_HEAD = struct.Struct("<BIIB")
PIECES_LIMIT = 256
_CLOSED_S = 5.0


@dataclass(frozen=True, slots=True)
class Target:
    """A decoder, and the errors with which it refuses nonsense. Calling it with nonsense is no error."""

    decode: Decoder
    refuses_with: tuple[type[Exception], ...]

    def __call__(self, data: bytes) -> None:
        """Decode; what is refused is fine."""
        with contextlib.suppress(*self.refuses_with):
            self.decode(data)


TARGETS: dict[str, Target] = {}


def target(*refuses_with: type[Exception]) -> Callable[[Decoder], Decoder]:
    """Make a function one of the targets."""

    def add(decode: Decoder) -> Decoder:
        TARGETS[decode.__name__] = Target(decode, refuses_with)
        return decode

    return add


# What comes over the network.


@target(ProtocolError)
def frames(data: bytes) -> None:
    """A message before its header is read; two newlines part the pieces in which it came."""
    for frame in split(data.split(b"\n\n")):
        assert memoryview(frame).nbytes <= len(data)


@target(ProtocolError)
def from_node(data: bytes) -> None:
    """A header from a node."""
    decode_from_node([data])


@target(ProtocolError)
def from_head(data: bytes) -> None:
    """A header from the head."""
    decode_from_head([data])


@target(ProtocolError, ResultError)
def plain(data: bytes) -> None:
    """A packed value. What was read can be packed again, or that is refused, and read again."""
    records.CODEC.unpack(records.CODEC.pack(records.CODEC.unpack(data)))


@target(ProtocolError)
def reports(data: bytes) -> None:
    """What a node tells beside its rows."""
    records.unpack_report(data, SLOTS)


@target(ProtocolError)
def replies(data: bytes) -> None:
    """The answer of a worker to a message, which the first byte chooses."""
    records.unpack_reply(data[1:], SLOTS, ANSWERED[(data or b"\0")[0] % len(ANSWERED)], len(SLOTS))


@target(ProtocolError, ConfigError)
def recipes(data: bytes) -> None:
    """How a node shall build environments. ConfigError is for those that it does not know."""
    builders_of(records.CODEC.unpack(data), [SLOTS], ())


@target(ProtocolError)
def policies(data: bytes) -> None:
    """A policy without its weights."""
    records.attachment_from_data(records.CODEC.unpack(data))


@target(ProtocolError, ConfigError)
def fragments(data: bytes) -> None:
    """The sizes of what a policy plays, and memory for them. ConfigError is for more than this host has."""
    spec = records.fragment_spec_from_data(records.CODEC.unpack(data), SLOTS, 1)
    Fragments.create(spec).memory.close()


@target(WeightsCorrupt)
def weights(data: bytes) -> None:
    """A version of the weights: one byte for its kind and whether there is a base, eight for its hash, its payload."""
    choice, digest = WEIGHTS_HEAD.unpack_from(data.ljust(WEIGHTS_HEAD.size, b"\0"))
    kind = KINDS[choice % len(KINDS)]
    refers = BASE_VERSION if kind == "bf16-delta" else None
    encoded = Encoded(kind, data[WEIGHTS_HEAD.size :], refers, VERSION, digest)
    found = decode(SPEC, encoded, None if choice & 0x80 else BASE)
    assert found.flat.vector.size == SPEC.floats


@target()
def pieces(data: bytes) -> None:
    """Pieces of weights, one after the other: of which version, place, size of the whole, length, bytes."""
    arriving = Arriving(PIECES_LIMIT)
    while len(data) >= PIECE_HEAD.size:
        version, offset, size, length = PIECE_HEAD.unpack_from(data)
        piece, data = data[PIECE_HEAD.size :][:length], data[PIECE_HEAD.size + length :]
        with contextlib.suppress(ProtocolError):  # what follows a piece that was refused may be taken
            whole = arriving.take(version, offset, size, piece)
            assert whole is None or len(whole) == size <= PIECES_LIMIT


@target()
def handshake(data: bytes) -> None:
    """What a stranger says at the port of the head. Nothing of it arrives, and the head lives on."""
    with contextlib.closing(Hub(make_keys(), "127.0.0.1")) as hub:
        with socket.create_connection(("127.0.0.1", hub.port), _CLOSED_S) as stranger, contextlib.suppress(OSError):
            stranger.sendall(data)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):
                pass
        assert hub.receive(0.0) is None


# What people and programs write.


@target(ConfigError)
def keys(data: bytes) -> None:
    """A key file, or the token of `join`."""
    found = parse_keys(_text(data))
    assert parse_keys(found.text()) == found


@target(ConfigError)
def addresses(data: bytes) -> None:
    """The address of a head, on a command line."""
    found = parse_address(_text(data))
    assert parse_address(found.url) == found


@target(ConfigError)
def clusters(data: bytes) -> None:
    """The text of a cluster. Its own text means the same."""
    found = parse_cluster(_text(data))
    if isinstance(found, Remote):
        assert parse_remote(found.text) == found


@target(ConfigError)
def rules(data: bytes) -> None:
    """The text of a rule for synchronisation."""
    parse_sync(_text(data))


@target()
def slurm(data: bytes) -> None:
    """What Slurm's programs write. Nothing raises: an answer that means nothing is None."""
    text = data.decode(errors="replace")
    job = slurm_words.parse_job_id(text)
    assert job is None or all(word and word.isprintable() for word in job.words)
    for parse in (slurm_words.parse_squeue, slurm_words.parse_scontrol, slurm_words.parse_sacct):
        state = parse(text)
        if state is not None:
            assert state.state in str(state)
            assert state.hopeless is None or state.ended or state.state == "PENDING"
    slurm_words.is_unknown_job(text)


@target(WeightsCorrupt)
def checkpoints(data: bytes) -> None:
    """A checkpoint."""
    with _file(data) as path:
        checkpoint.read(path)


@target(ConfigError)
def settings(data: bytes) -> None:
    """A run.toml, or the file of `--config`."""
    with _file(data) as path:
        settings_of(*read_settings(path))


@target(ConfigError)
def metrics(data: bytes) -> None:
    """A metrics.csv: a run that goes on repairs it, and `plot` draws it."""
    with _file(data) as path:
        csv.CsvSink(path, resume_at=2).close()
        list(csv.read(path))


def _text(data: bytes) -> str:
    """Bytes as Python hands them to a program: what is not UTF-8 becomes half characters."""
    return data.decode("utf-8", "surrogateescape")


@contextlib.contextmanager
def _file(data: bytes) -> Iterator[pathlib.Path]:
    """A file with these bytes, in memory where there is such a place."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        path = pathlib.Path(folder, "input")
        path.write_bytes(data)
        yield path
