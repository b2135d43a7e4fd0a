"""Saves checkpoints as fast as it can, to be killed at it: `python -m tests.learners.saver FOLDER`.

For each line on standard input a child is forked (torch is imported once, by the parent), which tells its process and
then every checkpoint that is saved. When it is gone, the parent says so.
"""

from __future__ import annotations

import os
import sys

import torch

from clusterenv.learners.common.checkpoint import Checkpoints

NUMBERS = 100_000


def tensors(step: int) -> dict[str, torch.Tensor]:
    """What is saved at a step."""
    return {"weights": torch.full((NUMBERS,), float(step)), "step": torch.tensor(step)}


def save_for_ever(folder: str) -> None:
    """Go on from the newest."""
    checkpoints = Checkpoints(folder)
    newest = checkpoints.load()
    step = 0 if newest is None else int(newest.facts["global_step"])
    while True:
        step += 1
        checkpoints.save(step, tensors(step), {"global_step": step})
        os.write(1, f"saved {step}\n".encode())


def main(folder: str) -> None:
    """Fork for each line."""
    torch.set_num_threads(1)
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            os.write(1, f"pid {os.getpid()}\n".encode())
            save_for_ever(folder)
        os.waitpid(child, 0)
        os.write(1, b"gone 0\n")


if __name__ == "__main__":
    main(sys.argv[1])
