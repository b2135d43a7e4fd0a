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
    replies: Mapping[int, Reply],
    ended: Sequence[Loss],
    late: Sequence[Loss],
    blocks: Sequence[range],
    limit_s: float | None,
) -> None:
    """Raise the first thing that kept a worker from starting, if anything did.

    Args:
        replies: what workers have said.
        ended: workers that ended by themselves; time would not have helped them.
        late: workers that were not ready in time.
        blocks: the slots of each worker.
        limit_s: the time that they had.
    """
    for reply in replies.values():
        if reply.failure:
            raise build_error(reply.failure) from reply.failure.error
        if reply.error:
            raise LaunchError(
                "a worker could not build its environments. Is the code that they need importable there?\n"
                + reply.error
            )
    if ended:
        raise _ended_error(ended, blocks)
    if late:
        hint = (
            f"Worker {late[0].worker}: {late[0].cause}. If environments are slow to build, raise "
            "timeouts=Timeouts(start_s=...)."
        )
        raise WorkersMissing(len(blocks) - len(late), len(blocks), limit_s or 0.0, hint)


def _ended_error(ended: Sequence[Loss], blocks: Sequence[range]) -> LaunchError:
    first = ended[0]
    slots = blocks[first.worker]
    which = f"slot {slots.start}" if len(slots) == 1 else f"slots {slots.start} to {slots.stop - 1}"
    others = f" So did {len(ended) - 1} more of {len(blocks)} workers." if len(ended) > 1 else ""
    return LaunchError(
        f"worker {first.worker} ({which}) ended while environments were being built: {first.cause}.{others} Their "
        "code, or a library that it loads, has ended the process; or the system has, for lack of memory as a rule if "
        "it was by SIGKILL. What it wrote last is on its standard error."
    )


def raise_remote_start_error(node: str, blocks: int, found: object) -> None:
    """Raise what kept a node on another host from building these blocks, if anything did."""
    if isinstance(found, str):
        raise LaunchError(f"node {node} could not build its environments: {found}")
    if isinstance(found, Failure) and isinstance(found.error, Exception) and isinstance(found.traceback, str):
        raise build_error(found) from found.error
    described = isinstance(found, list) and all(isinstance(each, BlockDescription) for each in found)
    if not isinstance(found, list) or not described or len(found) != blocks:
        raise LaunchError(f"node {node} answered with something else than a description of its environments.")
