"""Commands as a person types them, small enough to end in a second."""

from __future__ import annotations

import sys

# One update of 64 steps; torch acts, because exporting a graph takes longer than the run.
SMALL = [
    *("--cluster", "inproc", "--num-envs", "4", "--rollout-steps", "16", "--total-steps", "64"),
    *("--epochs", "1", "--minibatches", "2", "--runtime", "torch"),
]
PROGRAM = [sys.executable, "-c", "import sys; from clusterenv.cli.main import main; sys.exit(main())"]
