"""Many nodes in one process, without environments: real sockets and real messages, rows of zeros.

Started by `benchmarks.scale`; the keys come as the first line of standard input, and its end ends this process.
"""

from __future__ import annotations

import argparse
import os
import secrets
import select
import sys
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

OBSERVATION = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
ACTION = gymnasium.spaces.Discrete(2)
_LOOK_MS = 200


class Stub:
    """One node that answers at once."""

    def __init__(self, context: zmq.Context[Any], keys: Any, endpoint: str, index: int) -> None:
        self.socket = sock = context.socket(zmq.DEALER)
        sock.linger = 0
        sock.setsockopt(zmq.HEARTBEAT_IVL, 2000)
        sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, 6000)
        sock.curve_serverkey = keys.server.encode()
        sock.curve_publickey, sock.curve_secretkey = keys.public.encode(), keys.secret.encode()
        sock.connect(endpoint)
        self._slots: range = range(0)
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
        if isinstance(message, m.Build):
            self._slots = range(*message.blocks[0])
            self._answer(message.number, [BlockDescription(self._slots, OBSERVATION, ACTION, {}, None)])
        elif isinstance(message, m.Bind):
            self._answer(message.number, [0])
        elif isinstance(message, m.Step):
            count = len(self._slots)
            self._rows = [np.zeros((count, 4), np.float32), np.zeros(count), *np.zeros((2, count), np.bool_)]
            rows = [frames[1], *(frame_of(array) for array in self._rows)]
            self._send([m.encode(m.Rows(number=message.number)), *rows])
        elif isinstance(message, m.Request):
            self._answer(message.number)
        elif isinstance(message, m.Close):
            self._send([m.encode(m.Leave(reason="told to"))])
            return False
        return True


def main() -> None:
    """Run stub nodes until they are told to go."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--head", required=True)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    args = parser.parse_args()
    keys = parse_keys(sys.stdin.readline())
    context: zmq.Context[Any] = zmq.Context()
    context.max_sockets = 4096
    endpoint = parse_address(args.head).endpoint
    poller = zmq.Poller()
    stubs = {}
    for index in range(args.first, args.first + args.count):
        stub = Stub(context, keys, endpoint, index)
        stubs[stub.socket] = stub
        poller.register(stub.socket, zmq.POLLIN)
    while stubs:
        for sock, _ in poller.poll(_LOOK_MS):
            if not stubs[sock].handle():
                poller.unregister(sock)
                del stubs[sock]
        if select.select([sys.stdin], [], [], 0)[0] and not os.read(sys.stdin.fileno(), 1):
            break
    context.destroy(linger=500)


if __name__ == "__main__":
    main()
