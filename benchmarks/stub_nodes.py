"""Nodes without environments: real sockets and real messages, rows that tell their slot and how often it was stepped.

Started by `benchmarks.scale`, many in one process, and by `benchmarks.stub_losses`, each in a process of its own that
can be killed: with `--apart` a node is forked for every number that comes as a line, and its process is told. The keys
come as the first line of standard input, and its end ends everything.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import secrets
import select
import signal
import sys
import time
from typing import Any

import gymnasium
import numpy as np
import zmq

from clusterenv._version import __version__
from clusterenv.node.records import CODEC
from clusterenv.transport.security import parse_keys
from clusterenv.transport.sockets import parse_address
from clusterenv.wire import messages as m
from clusterenv.wire.frames import frame_of, join, split
from clusterenv.worker.describe import BlockDescription

# The slot, how often it was stepped, and two numbers that are always 0.
OBSERVATION = gymnasium.spaces.Box(0.0, 2.0**24, (4,), np.float32)
ACTION = gymnasium.spaces.Discrete(2)
_LOOK_MS = 200
_PR_SET_PDEATHSIG = 1


class Stub:
    """One node that answers at once, and beats as real ones do."""

    def __init__(self, context: zmq.Context[Any], keys: Any, endpoint: str, index: int) -> None:
        self.socket = sock = context.socket(zmq.DEALER)
        sock.linger = 0
        sock.setsockopt(zmq.HEARTBEAT_IVL, 2000)
        sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, 6000)
        sock.curve_serverkey = keys.server.encode()
        sock.curve_publickey, sock.curve_secretkey = keys.public.encode(), keys.secret.encode()
        sock.connect(endpoint)
        self._slots: range = range(0)
        self._stepped = -1  # the last request
        self._seen = 0
        self._beat_s: float | None = None  # until the head has let us in
        self._beat_at, self._heard = 0.0, True
        hello = m.Hello(
            protocol=m.PROTOCOL,
            run=keys.run,
            incarnation=secrets.token_hex(8),
            name=f"stub{index}",
            index=index,
            clusterenv=__version__,
            python="",
            gymnasium="",
            cores=1,
            workers=1,
            imports=[],
        )
        self._send([m.encode(hello)])

    def _send(self, frames: list[Any]) -> None:
        self.socket.send_multipart(join(frames), copy=True)

    def _answer(self, number: int, value: Any = None) -> None:
        self._send([m.encode(m.Answer(number=number, value=b"" if value is None else CODEC.pack(value)))])

    def handle(self) -> bool:
        """Take one message and answer it; False at the end."""
        frames = split([bytes(piece) for piece in self.socket.recv_multipart()])
        message = m.decode_from_head(frames)
        if isinstance(message, m.Request):
            self._seen = message.number
        if isinstance(message, m.Welcome):
            self._beat_s = message.beat_s
        elif isinstance(message, m.Heard):
            self._heard = True
        elif isinstance(message, m.Build):
            self._slots = range(*message.blocks[0])
            self._obs = np.zeros((len(self._slots), 4), np.float32)
            self._obs[:, 0] = self._slots
            self._answer(message.number, [BlockDescription(self._slots, OBSERVATION, ACTION, {}, None)])
        elif isinstance(message, m.Bind):
            self._answer(message.number, [0])
        elif isinstance(message, m.Step):
            self._step(message, frames[1:])
        elif isinstance(message, m.Request):
            self._answer(message.number)
        elif isinstance(message, m.Close):
            self._send([m.encode(m.Leave(reason="told to"))])
            return False
        return True

    def beat(self, now: float) -> None:
        """Say that we are there, if it is time and the last beat was heard."""
        if self._beat_s is not None and self._heard and now >= self._beat_at:
            self._beat_at, self._heard = now + self._beat_s, False
            self._send([m.encode(m.Beat(progress=[0], seen=self._seen))])

    def _step(self, message: m.Step, frames: list[Any]) -> None:
        """Answer the rows that are asked for; a request that comes again is answered again, and not counted."""
        asked = slice(None) if message.whole else np.frombuffer(frames[0], np.int32)
        if message.number > self._stepped:
            self._obs[asked, 1] += 1
            self._stepped = message.number
        obs = np.ascontiguousarray(self._obs[asked])
        rows = [obs, np.zeros(len(obs)), *np.zeros((2, len(obs)), np.bool_)]
        back = frames[:1] if message.whole else frames[:2]
        head = m.encode(m.Rows(number=message.number, whole=message.whole))
        self._send([head, *back, *(frame_of(array) for array in rows)])


def run(keys: Any, endpoint: str, indices: range, *, heed_stdin: bool) -> None:
    """Be these nodes until all are told to go, or standard input ends."""
    context: zmq.Context[Any] = zmq.Context()
    context.max_sockets = 4096
    poller = zmq.Poller()
    stubs = {}
    for index in indices:
        stub = Stub(context, keys, endpoint, index)
        stubs[stub.socket] = stub
        poller.register(stub.socket, zmq.POLLIN)
    while stubs:
        for sock, _ in poller.poll(_LOOK_MS):
            if not stubs[sock].handle():
                poller.unregister(sock)
                del stubs[sock]
        now = time.monotonic()
        for stub in stubs.values():
            stub.beat(now)
        if heed_stdin and select.select([sys.stdin], [], [], 0)[0] and not os.read(sys.stdin.fileno(), 1):
            break
    context.destroy(linger=500)


def run_apart(keys: Any, endpoint: str) -> None:
    """Fork a node for every number that comes as a line, and tell its process; at the end all of them end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            run(keys, endpoint, range(int(line), int(line) + 1), heed_stdin=False)
            os._exit(0)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


def main() -> None:
    """Run stub nodes until they are told to go."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--head", required=True)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--apart", action="store_true")
    args = parser.parse_args()
    keys, endpoint = parse_keys(sys.stdin.readline()), parse_address(args.head).endpoint
    if args.apart:
        run_apart(keys, endpoint)
    else:
        run(keys, endpoint, range(args.first, args.first + args.count), heed_stdin=True)


if __name__ == "__main__":
    main()
