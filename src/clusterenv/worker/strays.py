"""Processes that an environment forks. One whose exception comes back to us must not go on as a second worker."""

from __future__ import annotations

import logging
import os
import sys

_logger = logging.getLogger(__name__)

_of_process: dict[str, int] = {}  # "worker": the process that is the worker; nothing elsewhere


def guard() -> None:
    """This process is a worker, and what it forks is none."""
    _of_process["worker"] = os.getpid()


def end_if_forked(error: BaseException) -> None:
    """End this process if an environment has forked it: it shares memory and channel with the true worker."""
    if _of_process.get("worker", os.getpid()) == os.getpid():
        return
    _logger.error("a process that an environment forked has raised, and ends", exc_info=error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
