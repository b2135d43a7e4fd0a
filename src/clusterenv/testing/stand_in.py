"""Stands in for the node: records how it was started, then does as it is told. A program, started by launchers."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time


def main() -> None:
    """Record, then wait, fail, leave or be stubborn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", dest="module")
    parser.add_argument("what")
    parser.add_argument("--record", required=True)
    parser.add_argument("--do", default="wait")
    parser.add_argument("--key-file", required=True)
    parser.add_argument("--import", action="append")
    parser.add_argument("--index", type=int)
    options = parser.parse_args()
    if options.do == "say":
        _say("before the keys")
    keys = sys.stdin.readline() if options.key_file == "-" else _read(options.key_file)
    child = subprocess.Popen(["sleep", "1000"]).pid if options.do == "child" else 0  # noqa: S607
    record = {
        "pid": os.getpid(),
        "child": child,
        "keys": keys,
        "argv": sys.argv[1:],
        "index": options.index,
        "task": os.environ.get("SLURM_PROCID"),
        "cores": len(os.sched_getaffinity(0)),
    }
    name = f"{options.record}/{os.getpid()}-{time.monotonic_ns()}"
    with open(f"{name}.part", "w") as file:
        json.dump(record, file)
    os.rename(f"{name}.part", f"{name}.json")
    _say(f"stand-in {os.getpid()} is ready")
    _do(options.do, from_stdin=options.key_file == "-")


def _do(what: str, *, from_stdin: bool) -> None:
    if what == "fail":
        sys.exit("no module named clusterenv")
    if what == "leave":
        return
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "stubborn" or not from_stdin:
        while True:
            time.sleep(1000)
    while sys.stdin.read(1000):
        pass


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


if __name__ == "__main__":
    main()
