"""Where each target starts: bytes that its decoder takes, made by the other side of the same protocol."""

from __future__ import annotations

import functools
import pathlib
import struct
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    GraphInstance,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Text,
)
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import TimeLimit

from clusterenv.learners.common import checkpoint
from clusterenv.learners.common.runfolder import RunFolder
from clusterenv.learners.common.settings import to_table
from clusterenv.learners.ppo import PPOConfig
from clusterenv.metrics.sinks.csv import CsvSink
from clusterenv.node import records
from clusterenv.node.parcels import pieces_of
from clusterenv.policy.distributions import Categorical, DiagGaussian
from clusterenv.policy.graph import GraphSpec
from clusterenv.spaces import Leaf
from clusterenv.sync.codec import ENCODINGS, KINDS, encode, rounded
from clusterenv.transport.fragments import FragmentSpec
from clusterenv.transport.security import NodeKeys
from clusterenv.wire import messages as m
from clusterenv.wire.envs import recipe_to_data
from clusterenv.wire.frames import join
from clusterenv.worker.actor import Attachment, Fragment
from clusterenv.worker.describe import BlockDescription
from clusterenv.worker.loop import Reply
from clusterenv.worker.report import Failure, Report
from fuzz.targets import ANSWERED, BASE, PIECE_HEAD, SPEC, VERSION, WEIGHTS, WEIGHTS_HEAD

if TYPE_CHECKING:
    from collections.abc import Callable

_BLOCK = BlockDescription(range(4), Box(-1, 1, (2,)), Discrete(3), {"render_fps": 50}, None)
_FAILURE = Failure(1, "step", OSError(2, "no such thing", "there"), "Traceback ...", True)
_REPORT = Report(
    infos=[(1, {"a": np.arange(3.0), "b": np.float32(1), "c": np.array(["x", "yy"])})],
    failures=[_FAILURE],
    observations=[(2, "words")],
)


def _frames() -> list[bytes]:
    return [bytes(join([b"header", b"", b"rows" * 4])[0]), b"\x00\n\nheader\n\nrows"]


def _from_node() -> list[bytes]:
    hello = m.Hello(
        protocol=m.PROTOCOL,
        run="0123456789abcdef",
        incarnation="a1",
        name="host",
        index=0,
        clusterenv="0.1.0",
        python="3.11",
        gymnasium="1.4",
        cores=2,
        workers=1,
        imports=["my_envs"],
    )
    others = (
        m.Answer(number=3, value=b"\xc0"),
        m.Rows(number=4, report=b"\xc0", whole=False),
        m.Lost(worker=0, life=1, cause="killed", slot=2),
        m.Beat(progress=[1, 2], seen=5),
        m.Leave(reason="told to"),
    )
    return [m.encode(message) for message in (hello, *others)]


def _from_head() -> list[bytes]:
    asked: dict[str, Any] = {"number": 2, "settled": 1}
    weights: dict[str, Any] = {"kind": "bf16-delta", "base": (0, 1), "version": (0, 2), "digest": b"12345678"}
    found = (
        m.Welcome(silence_s=10.0, beat_s=1.0),
        m.Heard(),
        m.Refuse(reason="full"),
        m.Build(**asked, arrived=(3, 4), blocks=[(0, 2), (2, 4)], recipes=b"\xc0", limit_s=60.0),
        m.Bind(**asked, spaces=b"\xc0"),
        m.Step(**asked, lock_step=True, whole=True),
        m.Post(**asked, worker=0, message=b"\xc0"),
        m.Lend(**asked, workers=[0, 1], name="attach", memory=1, message=b"\xc0"),
        m.Tell(**asked, worker=0, order=(0, True, False)),
        m.Weights(**asked, memory=1, offset=0, size=4, **weights),
        m.Replace(**asked, worker=1, seeds=[1, None], limit_s=None),
        m.Lose(worker=0, cause="hangs"),
        m.Ping(),
        m.Halt(),
        m.Again(),
        m.Close(limit_s=5.0),
    )
    return [m.encode(message) for message in found]


def _plain() -> list[bytes]:
    space = Dict(
        a=Box(0, 255, (2, 2), np.uint8),
        b=Graph(Box(0, 1, (2,)), Discrete(3)),
        c=Sequence(MultiBinary(3), stack=True),
        d=Text(4),
        e=OneOf([Discrete(2), MultiDiscrete([2, 3])]),
    )
    odd = [1j, range(3), slice(2), {1: 2}, {3}, frozenset([4]), 2**100, "\ud800", np.str_("x"), np.dtype("M8[s]")]
    values = (
        {"reward": 1.0, "text": "ä", "none": None, "flags": (True, False)},
        odd,
        space,
        np.array([1, None], object),
        np.random.default_rng(1),
        UnicodeDecodeError("u", b"abc", 0, 1, "x"),
        GraphInstance(np.zeros((2, 2)), None, None),
        (_BLOCK.observation_space, _BLOCK.action_space, None),
        _BLOCK,
    )
    return [records.CODEC.pack(value) for value in values]


def _replies() -> list[bytes]:
    told: dict[str, list[Reply]] = {
        "reset": [Reply(_REPORT, request=7), Reply(failure=_FAILURE)],
        "play": [Reply(Fragment(0, 16, [_FAILURE], 0.5, 0.25)), Reply(error="no")],
        "call": [Reply([1, 2.0, "x", None])],
    }
    return [bytes([ANSWERED.index(name)]) + records.pack_reply(each, name) for name in told for each in told[name]]


def _recipes() -> list[bytes]:
    limited = functools.partial(TimeLimit, max_episode_steps=9)
    recipe = recipe_to_data("CartPole-v1", {"sutton_barto_reward": True}, [limited])
    return [records.CODEC.pack(([recipe], [0] * 4, AutoresetMode.NEXT_STEP, True))]


def _policies() -> list[bytes]:
    leaves = (Leaf((4,), np.dtype("<f4")),)
    runtime = GraphSpec(b"graph", ("w", "steps"), leaves, (), 2, True, b"prepared")
    found = []
    for distribution in (Categorical(2), DiagGaussian(dim=2)):
        attachment = Attachment(runtime, distribution, (), SPEC, 7, "Agent", deterministic=False)
        found.append(records.CODEC.pack(records.attachment_to_data(attachment)))
    return found


def _fragments() -> list[bytes]:
    leaf = Leaf((4,), np.dtype("<f4"))
    spec = FragmentSpec(2, 16, 4, 1, (leaf,), (leaf,), Leaf((), np.dtype("<i8")), 2, True)
    return [records.CODEC.pack(records.fragment_spec_to_data(spec))]


def _weights() -> list[bytes]:
    found = []
    newer = SPEC.flatten({**WEIGHTS, "w": WEIGHTS["w"] + 0.5})
    for encoding in ENCODINGS:
        for base in (None, BASE):
            encoded = encode(SPEC, rounded(newer, VERSION, encoding), encoding, base)
            found.append(WEIGHTS_HEAD.pack(KINDS.index(encoded.kind), encoded.digest) + encoded.payload)
    return found


def _pieces() -> list[bytes]:
    whole = b"0123456789" * 4
    small = [(offset, whole[offset : offset + 16]) for offset in range(0, len(whole), 16)]
    parts = [*small, *((offset, bytes(piece)) for offset, piece in pieces_of(b"weights"))]
    sizes = [len(whole)] * len(small) + [7]
    return [
        b"".join(
            PIECE_HEAD.pack(1, offset, size, len(piece)) + piece
            for (offset, piece), size in zip(parts, sizes, strict=True)
        )
    ]


def _handshake() -> list[bytes]:
    signature = b"\xff" + bytes(8) + b"\x7f"
    found = []
    for mechanism in (b"CURVE", b"NULL", b"PLAIN"):
        greeting = signature + b"\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32)
        hello = b"\x05HELLO" + b"\x01\x00" + bytes(72 + 32 + 8 + 80)
        ready = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
        body = hello if mechanism == b"CURVE" else ready
        found.append(greeting + b"\x04" + bytes([len(body) & 0xFF]) + body)
    return [*found, signature, b"GET / HTTP/1.1\r\nHost: head\r\n\r\n"]


def _keys() -> list[bytes]:
    return [NodeKeys("0123456789abcdef", "a" * 40, "b" * 40, "c" * 40).text().encode()]


def _addresses() -> list[bytes]:
    return [b"tcp+curve://10.0.0.1:5555", b"tcp://[fe80::1%eth0]:80", b"cluster://head.example:5555/"]


def _clusters() -> list[bytes]:
    return [
        b"local:4",
        b"tcp:nodes=2,workers=1,imports=my_envs,bind=127.0.0.1:5555",
        b"ssh://a,user@b:2222,[::1]:22?workers=4&python=/opt/py%20thon&wait_s=1.5",
        b"slurm:nodes=4,partition=cpu,time=2:00:00,extra=--mem=8G,wait_s=none",
        b"ray:nodes=4,address=head:6379,cpus=2",
        b"join:nodes=2,bind=0.0.0.0:5555",
        b"k8s:nodes=8,image=registry.example/agent:1,namespace=rl,cpus=2,memory=4Gi",
    ]


def _rules() -> list[bytes]:
    return [b"aps:0.05", b"every:4", b"on-change", b"always", b"never"]


def _slurm() -> list[bytes]:
    return [
        b"warning: no memory was asked for\n12;alpha\n",
        b"Submitted batch job 12 on cluster alpha\n",
        b"PENDING|(Resources)\n",
        b"JobId=12 JobName=x JobState=FAILED Reason=NonZeroExitCode Dependency=(null) ExitCode=1:0\n",
        b"CANCELLED by 1000|0:15\n",
        b"slurm_load_jobs error: Invalid job id specified\n",
    ]


def _checkpoints() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "input")
        checkpoint.write(path, {"weight": torch.ones(2), "count": torch.tensor(3)}, {"seed": 1, "step": 4096})
        return [path.read_bytes()]


def _settings() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(pathlib.Path(folder))
        run.write("ppo", to_table(PPOConfig()))
        return [run.settings_file.read_bytes()]


def _metrics() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "metrics.csv")
        sink = CsvSink(path)
        for step in (1, 2, 3):
            sink.write({"charts/SPS": 2671.9, "losses/value": float("nan")}, step, 0.5 * step)
        sink.close()
        return [path.read_bytes(), path.read_bytes()[:-4]]


SEEDS: dict[str, Callable[[], list[bytes]]] = {
    "frames": _frames,
    "from_node": _from_node,
    "from_head": _from_head,
    "plain": _plain,
    "reports": lambda: [records.pack_report(_REPORT)],
    "replies": _replies,
    "recipes": _recipes,
    "policies": _policies,
    "fragments": _fragments,
    "weights": _weights,
    "pieces": _pieces,
    "handshake": _handshake,
    "keys": _keys,
    "addresses": _addresses,
    "clusters": _clusters,
    "rules": _rules,
    "slurm": _slurm,
    "checkpoints": _checkpoints,
    "settings": _settings,
    "metrics": _metrics,
}
