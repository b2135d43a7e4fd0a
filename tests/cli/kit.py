"""Commands as a person types them, small enough to end in a second."""

from __future__ import annotations

import sys

# One update of 64 steps; torch acts, because exporting a graph takes longer than the run.
SMALL = [
    *("--cluster", "inproc", "--num-envs", "4", "--rollout-steps", "16", "--total-steps", "64"),
    *("--epochs", "1", "--minibatches", "2", "--runtime", "torch"),
]


def changed(words: list[str], *others: str) -> list[str]:
    """A command whose options have a value each, with these in place of its own: none may be given twice."""
    for flag, value in zip(others[::2], others[1::2], strict=True):
        at = words.index(flag) if flag in words else len(words)
        words = [*words[:at], flag, value, *words[at + 2 :]]
    return words


PROGRAM = [sys.executable, "-c", "import sys; from clusterenv.cli.main import main; sys.exit(main())"]
