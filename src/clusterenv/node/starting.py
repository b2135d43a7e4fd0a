"""Turns what went wrong at the start into the error that a user can act on."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

import cloudpickle

from clusterenv.errors import EnvError, LaunchError, ResultError, WorkersMissing, named
from clusterenv.worker.describe import BlockDescription
from clusterenv.worker.report import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterenv.node.base import Loss
    from clusterenv.worker.base import Block
    from clusterenv.worker.loop import Reply


def check_descriptors(count: int, what: str, more: int) -> None:
    """Say at once, and with the numbers, that this process may not open so many more files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(os.listdir("/proc/self/fd")) + more
    if limit != resource.RLIM_INFINITY and needed > limit:
        raise LaunchError(
            f"{count} {what} need {needed} file descriptors, but this process may have {limit} open files. "
            f"Raise the limit (ulimit -n) or use fewer {what}."
        )


def pickled(build: Callable[[], Block]) -> bytes:
    """What builds a block, ready to travel to a worker."""
    try:
        data: bytes = cloudpickle.dumps(build)
    except Exception as error:
        raise ResultError(
            f"the environment factories cannot be sent to a worker: {named(error)}. "
            "Create locks, files and simulators inside the factory, not around it; or use cluster='inproc'."
        ) from error
    return data


def build_error(failure: Failure) -> EnvError:
    """The error for an environment that could not be built."""
    return EnvError.of(
        failure.error,
        slot=failure.slot,
        doing="its constructor",
        seed=None,
        step=None,
        remote_traceback=failure.traceback,
    )


def raise_start_errors(
    replies: Mapping[int, Reply], losses: Sequence[Loss], expected: int, limit_s: float | None
) -> None:
    """Raise the first thing that kept a worker from starting, if anything did."""
    for reply in replies.values():
        if reply.failure:
            raise build_error(reply.failure) from reply.failure.error
        if reply.error:
            raise LaunchError(
                "a worker could not build its environments. Is the code that they need importable there?\n"
                + reply.error
            )
    if losses:
        loss = losses[0]
        arrived = expected - len(losses)
        hint = (
            f"Worker {loss.worker}: {loss.cause}. If environments are slow to build, raise "
            "timeouts=Timeouts(start_s=...)."
        )
        raise WorkersMissing(arrived, expected, limit_s or 0.0, hint)


def raise_remote_start_error(node: str, blocks: int, found: object) -> None:
    """Raise what kept a node on another host from building these blocks, if anything did."""
    if isinstance(found, str):
        raise LaunchError(f"node {node} could not build its environments: {found}")
    if isinstance(found, Failure) and isinstance(found.error, Exception) and isinstance(found.traceback, str):
        raise build_error(found) from found.error
    described = isinstance(found, list) and all(isinstance(each, BlockDescription) for each in found)
    if not isinstance(found, list) or not described or len(found) != blocks:
        raise LaunchError(f"node {node} answered with something else than a description of its environments.")
