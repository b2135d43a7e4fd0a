"""The tests of policies import torch, which must not slow down all the others."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    # Every test collects garbage twice, to look for leaks. Torch brings so many objects that this would take a second
    # per test; what is there once all modules are imported is no garbage and need not be looked at again.
    gc.collect()
    gc.freeze()
