"""Processes that an environment forks. One whose exception comes back to us must not go on as a second worker."""

from __future__ import annotations

import logging
import os
import sys

_logger = logging.getLogger(__name__)

_worker_pid: int | None = None  # of the process that is the worker; None elsewhere


def guard() -> None:
    """This process is a worker, and what it forks is none."""
    global _worker_pid
    _worker_pid = os.getpid()


def end_if_forked(error: BaseException) -> None:
    """End this process if an environment has forked it: it shares memory and channel with the true worker."""
    if _worker_pid in (None, os.getpid()):
        return
    _logger.error("a process that an environment forked has raised, and ends", exc_info=error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
