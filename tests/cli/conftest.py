"""torch brings a million objects; the leak check of every test would walk over them twice."""

from __future__ import annotations

import gc

import torch  # noqa: F401  # before the freeze

gc.collect()
gc.freeze()
