"""Where a benchmark leaves its files, unless `--out` says otherwise."""

from __future__ import annotations

import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Not in the repository: a file that a page tells of is copied to docs/results by hand.
RESULTS = ROOT / "benchmarks" / "results"
