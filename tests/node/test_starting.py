"""What went wrong at the start becomes the error that a user can act on."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from gymnasium.vector import AutoresetMode

from clusterenv.config import Local
from clusterenv.errors import EnvError, LaunchError, WorkersMissing
from clusterenv.node.base import Loss
from clusterenv.node.local import LocalNode
from clusterenv.node.starting import build_error, raise_start_errors
from clusterenv.worker.block import EnvBlock
from clusterenv.worker.loop import Reply
from clusterenv.worker.report import failure_of
from tests.node.kit import LIMIT_S
from tests.zoo import CountingEnv, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCKS = [range(2 * worker, 2 * worker + 2) for worker in range(4)]
FAILURE = failure_of(OSError("no such ROM"), 5, "build")


def test_all_well_is_no_error() -> None:
    raise_start_errors({0: Reply("description"), 1: Reply("description")}, [], [], BLOCKS[:2], 60.0)


def test_an_environment_that_cannot_be_built_is_an_env_error() -> None:
    error = build_error(FAILURE)
    assert isinstance(error, EnvError)
    assert isinstance(error, OSError)
    assert (error.slot, error.seed, error.step) == (5, None, None)
    assert "raised in its constructor: OSError: no such ROM" in str(error)


def test_the_failure_of_a_worker_is_raised_with_its_cause() -> None:
    with pytest.raises(OSError, match="no such ROM") as caught:
        raise_start_errors({0: Reply("description"), 1: Reply(failure=FAILURE)}, [], [], BLOCKS[:2], 60.0)
    assert caught.value.__cause__ is FAILURE.error


def test_code_that_is_not_importable_is_a_launch_error() -> None:
    with pytest.raises(LaunchError, match="importable") as caught:
        raise_start_errors({0: Reply(error="ModuleNotFoundError: no module named 'mine'")}, [], [], BLOCKS[:1], 60.0)
    assert "no module named 'mine'" in str(caught.value)


def test_workers_that_did_not_arrive_are_counted() -> None:
    losses = [Loss(2, "no answer within 60 s", None, None), Loss(3, "gone", None, None)]
    with pytest.raises(WorkersMissing, match=r"2 of 4 workers .* Worker 2: no answer within 60 s") as caught:
        raise_start_errors({0: Reply("d"), 1: Reply("d")}, [], losses, BLOCKS, 60.0)
    assert (caught.value.arrived, caught.value.expected, caught.value.waited_s) == (2, 4, 60.0)


def test_a_failure_is_told_rather_than_a_loss_that_follows_from_it() -> None:
    with pytest.raises(EnvError):
        raise_start_errors({0: Reply(failure=FAILURE)}, [Loss(0, "gone", None, None)], [], BLOCKS[:1], None)


# Workers that are started, and not waited for.


def builds(slots: range, *, wait_s: float = 0.0, error: str = "", load: bytes = b"", code: int = 0) -> Any:
    """A block of one environment that takes its time, cannot be built, ends its process, or has much to carry."""

    def build() -> EnvBlock:
        time.sleep(wait_s)

        def make() -> CountingEnv:
            if error:
                raise OSError(error)
            if code:
                os._exit(code)
            return CountingEnv(slot=len(load))

        return EnvBlock([make], slots, AutoresetMode.NEXT_STEP, rebuild=True)

    return build


@contextlib.contextmanager
def launched(limit_s: float | None, *builders: dict[str, Any]) -> Iterator[LocalNode]:
    blocks = [range(slot, slot + 1) for slot in range(len(builders))]
    made = [builds(block, **each) for block, each in zip(blocks, builders, strict=True)]
    node = LocalNode(made, blocks, Local(len(blocks), affinity="off"))
    try:
        node.launch(limit_s)
        yield node
    finally:
        node.close(0.0)


def until_started(node: LocalNode) -> list[Any]:
    found: list[Any] = []

    def done() -> bool:
        described = node.started()
        found.extend(described or ())
        return described is not None

    wait_until(done, LIMIT_S)
    return found


def test_what_has_been_built_is_told_when_all_is() -> None:
    with launched(None, {}, {"wait_s": 0.3}) as node:
        assert [each.slots for each in until_started(node)] == [range(1), range(1, 2)]


def test_nobody_waits_for_the_others_once_one_cannot_be_built() -> None:
    """Its channel is at its end and would wake whoever waits for the others, again and again."""
    slow, bad = {"wait_s": 600.0}, {"error": "no such ROM"}
    with launched(None, slow, bad) as node, pytest.raises(EnvError, match="no such ROM"):
        until_started(node)


def test_who_is_late_is_named() -> None:
    says = r"of 2 workers .* Worker 1: no answer within 3.0 s"
    with launched(3.0, {}, {"wait_s": 600.0}) as node, pytest.raises(WorkersMissing, match=says):
        until_started(node)


@pytest.mark.parametrize("limit_s", [None, 600.0])
def test_of_who_ended_it_is_told_how_and_which_slots_it_had(limit_s: float | None) -> None:
    says = r"^worker 1 \(slot 1\) ended while environments were being built: its process ended with exit code 7\. Their"
    with launched(limit_s, {}, {"code": 7}) as node, pytest.raises(LaunchError, match=says) as caught:
        until_started(node)
    assert "start_s" not in str(caught.value), "more time would not help"


def test_several_that_ended_are_counted() -> None:
    ended = [Loss(1, "its process ended with exit code 7", None, None), Loss(3, "gone", None, None)]
    late = [Loss(2, "no answer within 60 s", None, None)]
    with pytest.raises(LaunchError, match=r"^worker 1 \(slots 2 to 3\) .* code 7\. So did 1 more of 4 workers\. Their"):
        raise_start_errors({0: Reply("d")}, ended, late, BLOCKS, 60.0)


def test_one_that_has_built_and_ended_wakes_nobody() -> None:
    with launched(None, {"wait_s": 600.0}, {}) as node:
        wait_until(lambda: node.started() is None and 1 in node._built, LIMIT_S)
        (pid,) = [pid for pid in node.pids()[1:] if pid is not None]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: node.started() is None and len(node.descriptors()) == 1, LIMIT_S)


def test_what_is_too_large_for_a_socket_goes_out_while_it_is_waited_for() -> None:
    """A worker reads when it has been forked, which takes a while; its node has others to listen to."""
    with launched(None, {"load": bytes(2**25)}) as node:
        assert node._handles[0].channel._unsent
        (described,) = until_started(node)
        assert described.slots == range(1)
