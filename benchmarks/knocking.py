"""Strangers at a port: a process that connects, says nonsense or half a greeting, and goes or stays.

`benchmarks.strangers` starts it and writes, line by line, whom to bother: "quiet", "decoy" (a socket of its own) or a
port. Every line is answered with what was done since the line before, as JSON.
"""

from __future__ import annotations

import collections
import json
import random
import selectors
import socket
import sys
import time

HOST = "127.0.0.1"
# Longer than the head waits for a handshake: who stays is put out by it.
STAY_S = 8.0
_SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
GREETING = _SIGNATURE + b"\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
HELLO = b"\x04\xc8\x05HELLO\x01\x00" + bytes(72) + bytes(range(32)) + bytes(8) + bytes(80)
SAYINGS = ("nothing", "garbage", "half a greeting", "a greeting", "a false hello", "and stays")


def saying(index: int, rng: random.Random) -> bytes:
    """What the stranger of this number says."""
    return {
        "nothing": b"",
        "garbage": rng.randbytes(rng.randrange(1, 512)),
        "half a greeting": GREETING[: rng.randrange(1, 64)],
        "a greeting": GREETING,
        "a false hello": GREETING + HELLO,
        "and stays": GREETING[:12],
    }[SAYINGS[index % len(SAYINGS)]]


class Knocking:
    """Connects at a steady rate while somebody is to be bothered."""

    def __init__(self, per_s: float, decoy: socket.socket) -> None:
        self._gap_s = 1.0 / per_s
        self._decoy = decoy
        self._rng = random.Random(1)
        self._staying: collections.deque[tuple[float, socket.socket]] = collections.deque()
        self._next_s = 0.0
        self.port: int | None = None
        self.connects = self.failures = 0

    def work(self) -> float:
        """Do what is due; returns for how long there is nothing to do."""
        now = time.monotonic()
        while self._staying and self._staying[0][0] <= now:
            self._staying.popleft()[1].close()
        if self.port is None:
            self._next_s = now
            return 0.2
        # Who is late does not hurry: a burst is another experiment.
        self._next_s = max(self._next_s, now - 10 * self._gap_s)
        while self._next_s <= now:
            self._next_s += self._gap_s
            self._knock(self.port)
        return max(0.0, self._next_s - time.monotonic())

    def _knock(self, port: int) -> None:
        self.connects += 1
        stranger = socket.socket()
        stranger.settimeout(1.0)
        try:
            stranger.connect((HOST, port))
            if port == self._decoy.getsockname()[1]:
                self._stay(self._decoy.accept()[0])
            stranger.sendall(saying(self.connects, self._rng))
        except OSError:
            self.failures += 1
        if SAYINGS[self.connects % len(SAYINGS)] == "and stays":
            self._stay(stranger)
        else:
            stranger.close()

    def _stay(self, stranger: socket.socket) -> None:
        self._staying.append((time.monotonic() + STAY_S, stranger))

    def close(self) -> None:
        """Let all go."""
        while self._staying:
            self._staying.pop()[1].close()


def main(per_minute: float) -> None:
    """Work until the standard input ends."""
    with socket.create_server((HOST, 0), backlog=128) as decoy, selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        knocking, cpu = Knocking(per_minute / 60.0, decoy), time.process_time()
        while True:
            if not selector.select(knocking.work()):
                continue
            line = sys.stdin.readline().strip()
            if not line:
                break
            done = {"connects": knocking.connects, "failures": knocking.failures, "cpu_s": time.process_time() - cpu}
            knocking.connects, knocking.failures, cpu = 0, 0, time.process_time()
            knocking.port = {"quiet": None, "decoy": decoy.getsockname()[1]}.get(
                line, int(line) if line.isdigit() else 0
            )
            sys.stdout.write(json.dumps(done) + "\n")
            sys.stdout.flush()
        knocking.close()


if __name__ == "__main__":
    main(float(sys.argv[1]))
