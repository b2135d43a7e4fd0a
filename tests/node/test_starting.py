"""What went wrong at the start becomes the error that a user can act on."""

from __future__ import annotations

import pytest

from clusterenv.errors import EnvError, LaunchError, WorkersMissing
from clusterenv.node.base import Loss
from clusterenv.node.starting import build_error, raise_start_errors
from clusterenv.worker.loop import Reply
from clusterenv.worker.report import failure_of

FAILURE = failure_of(OSError("no such ROM"), 5, "build")


def test_all_well_is_no_error() -> None:
    raise_start_errors({0: Reply("description"), 1: Reply("description")}, [], 2, 60.0)


def test_an_environment_that_cannot_be_built_is_an_env_error() -> None:
    error = build_error(FAILURE)
    assert isinstance(error, EnvError)
    assert isinstance(error, OSError)
    assert (error.slot, error.seed, error.step) == (5, None, None)
    assert "raised in its constructor: OSError: no such ROM" in str(error)


def test_the_failure_of_a_worker_is_raised_with_its_cause() -> None:
    with pytest.raises(OSError, match="no such ROM") as caught:
        raise_start_errors({0: Reply("description"), 1: Reply(failure=FAILURE)}, [], 2, 60.0)
    assert caught.value.__cause__ is FAILURE.error


def test_code_that_is_not_importable_is_a_launch_error() -> None:
    with pytest.raises(LaunchError, match="importable") as caught:
        raise_start_errors({0: Reply(error="ModuleNotFoundError: no module named 'mine'")}, [], 1, 60.0)
    assert "no module named 'mine'" in str(caught.value)


def test_workers_that_did_not_arrive_are_counted() -> None:
    losses = [Loss(2, "no answer within 60 s", None, None), Loss(3, "gone", None, None)]
    with pytest.raises(WorkersMissing, match=r"2 of 4 workers .* Worker 2: no answer within 60 s") as caught:
        raise_start_errors({0: Reply("d"), 1: Reply("d")}, losses, 4, 60.0)
    assert (caught.value.arrived, caught.value.expected, caught.value.waited_s) == (2, 4, 60.0)


def test_a_failure_is_told_rather_than_a_loss_that_follows_from_it() -> None:
    with pytest.raises(EnvError):
        raise_start_errors({0: Reply(failure=FAILURE)}, [Loss(0, "gone", None, None)], 1, None)
