"""A process is killed at random moments while it saves: what it has reported as saved is there, or something newer."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import resource
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
import torch

from clusterenv.learners.common.checkpoint import Checkpoints, read
from tests.learners.saver import tensors

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

KILLS = 25
LIMIT_S = 60.0


class Saver:
    """The process of `saver.py`, line by line."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.learners.saver", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._rest = b""

    def begin(self) -> int:
        """Let it save; returns the process that does."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        word, pid = self.hear(LIMIT_S) or ("nothing", 0)
        assert word == "pid"
        return pid

    def hear(self, limit_s: float) -> tuple[str, int] | None:
        """The next line, if one comes in time."""
        out = self._process.stdout
        assert out is not None
        end = time.monotonic() + limit_s
        while b"\n" not in self._rest:
            if not select.select([out], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            data = os.read(out.fileno(), 65536)
            assert data, "the saver has ended"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        word, number = line.decode().split()
        return word, int(number)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=LIMIT_S)


@contextlib.contextmanager
def saving(folder: pathlib.Path) -> Iterator[Saver]:
    saver = Saver(folder)
    try:
        yield saver
    finally:
        saver.close()


def test_killed_at_random_moments(tmp_path: pathlib.Path) -> None:
    folder, dice = tmp_path / "checkpoints", random.Random(7)
    checkpoints, reported, halfway = Checkpoints(folder), 0, 0
    with saving(folder) as saver:
        for count in itertools.count():
            if count >= KILLS and reported and halfway:
                break
            pid = saver.begin()
            # On a machine that is too busy to save anything so soon, later and later.
            moment = time.monotonic() + dice.uniform(0.0, 0.05) * (1 + count // KILLS)
            while (heard := saver.hear(moment - time.monotonic())) is not None:
                reported = heard[1]
            os.kill(pid, signal.SIGKILL)
            while (heard := saver.hear(LIMIT_S)) is not None and heard[0] == "saved":
                reported = heard[1]
            assert heard is not None
            assert heard[0] == "gone"
            halfway += any(path.name.startswith(".") for path in folder.glob(".*"))
            for path in checkpoints.paths():
                read(path)  # none under its own name is damaged
            if reported:
                loaded = checkpoints.load()
                assert loaded is not None
                step = loaded.facts["global_step"]
                assert step >= reported
                for name, tensor in tensors(step).items():
                    assert torch.equal(loaded.tensors[name], tensor)


def test_what_a_kill_has_left_half_written_goes_with_the_next(tmp_path: pathlib.Path) -> None:
    (tmp_path / ".000000000007.safetensors.new").write_bytes(b"half")
    (tmp_path / ".mine.new").write_bytes(b"whole")
    Checkpoints(tmp_path).save(8, tensors(8), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mine.new", "000000000008.safetensors"]


@contextlib.contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """As on a full disk: a write that would make a file larger fails in the middle."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_leaves_the_checkpoint_before(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, tensors(1), {"global_step": 1})
    with no_file_above(100_000), pytest.raises(OSError, match="File too large"):
        checkpoints.save(2, tensors(2), {"global_step": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["000000000001.safetensors"]
    loaded = checkpoints.load()
    assert loaded is not None
    assert torch.equal(loaded.tensors["weights"], tensors(1)["weights"])
    checkpoints.save(2, tensors(2), {"global_step": 2})
    again = checkpoints.load()
    assert again is not None
    assert again.facts["global_step"] == 2
