"""What travels beside the rows: failures that can be read and loaded anywhere."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import cloudpickle
import numpy as np
import pytest

from clusterenv.worker.report import EnvFailed, Failure, Report, failure_of


def raised(make: Any) -> Exception:
    try:
        raise make()
    except Exception as error:
        return error


def test_a_failure_tells_what_where_and_how() -> None:
    failure = failure_of(raised(lambda: ValueError("no such move")), 5, "step", recovered=True)
    assert (failure.slot, failure.doing, failure.recovered) == (5, "step", True)
    assert isinstance(failure.error, ValueError)
    assert failure.traceback.startswith("Traceback (most recent call last):")
    assert "in raised" in failure.traceback
    assert failure.traceback.rstrip().endswith("ValueError: no such move")


def test_the_exception_travels_without_its_frames() -> None:
    failure = failure_of(raised(lambda: ValueError("x")), 0, "step")
    assert failure.error.__traceback__ is None
    assert isinstance(pickle.loads(cloudpickle.dumps(failure)), Failure)


def test_a_cause_is_in_the_text_and_does_not_travel() -> None:
    def chained() -> Exception:
        try:
            try:
                raise KeyError("inner")
            except KeyError as error:
                raise ValueError("outer") from error
        except ValueError as error:
            return error

    failure = failure_of(chained(), 0, "step")
    assert "KeyError: 'inner'" in failure.traceback
    assert "direct cause" in failure.traceback
    assert failure.error.__cause__ is None
    assert failure.error.__context__ is None


def test_our_own_frames_are_left_out() -> None:
    from tests.worker.kit import ScriptedEnv, bound

    def step(env: ScriptedEnv) -> Any:
        raise ValueError("mine")

    with bound(lambda: ScriptedEnv(step)) as block:
        block.reset()
        text = block.step().failures[0].traceback
    assert "clusterenv/worker" not in text
    assert "test_report.py" in text


class Holds(Exception):
    """Carries something that cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class Picky(Exception):
    """Can be pickled, but not loaded."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


class Mute(Exception):
    """Cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Holds("x"), "Holds: x"),
        (lambda: Picky("a", "b"), "Picky: a b"),
        (Mute, "Mute"),
    ],
    ids=["cannot be pickled", "cannot be loaded", "cannot be printed"],
)
def test_an_exception_that_cannot_travel_has_a_stand_in(make: Any, says: str) -> None:
    failure = failure_of(raised(make), 0, "step")
    assert type(failure.error) is RuntimeError
    assert says in str(failure.error)
    assert isinstance(pickle.loads(pickle.dumps(failure)), Failure)


@pytest.mark.parametrize("size", [10**5, 10**7])
def test_a_huge_text_is_cut(size: int) -> None:
    failure = failure_of(raised(lambda: ValueError("x" * size)), 0, "step")
    assert len(failure.traceback) < 25_000
    assert len(str(failure.error)) < 25_000
    assert "... (cut) ..." in failure.traceback
    assert "ValueError" in str(failure.error)


def test_an_empty_report_is_false_and_any_entry_makes_it_true() -> None:
    assert not Report()
    failure = failure_of(ValueError("x"), 0, "step")
    slots = np.arange(2)
    for report in (
        Report(infos=[(0, {})]),
        Report(failures=[failure]),
        Report(observations=[(0, None)]),
        Report(block_infos=[(slots, {})]),
    ):
        assert report


def test_extending_keeps_the_order() -> None:
    report = Report(infos=[(0, {"a": 1})], observations=[(0, "x")])
    report.extend(Report(infos=[(1, {"b": 2}), (0, {"c": 3})], failures=[failure_of(ValueError("x"), 1, "step")]))
    assert report.infos == [(0, {"a": 1}), (1, {"b": 2}), (0, {"c": 3})]
    assert len(report.failures) == 1
    assert report.observations == [(0, "x")]


def test_reports_do_not_share_their_lists() -> None:
    Report().infos.append((0, {}))
    assert not Report()


def test_an_environment_that_failed_carries_its_failure() -> None:
    failure = failure_of(ValueError("x"), 3, "build")
    assert EnvFailed(failure).failure is failure
