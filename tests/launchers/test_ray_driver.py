"""Nodes on Ray: where they are put, and the driver with a Ray of our own."""

from __future__ import annotations

import io
import json
import queue
from typing import Any

import pytest

from clusterenv.launchers.base import NodeJob
from clusterenv.launchers.ray_driver import Driver, plan
from clusterenv.testing.contracts import KEYS


@pytest.mark.parametrize(
    ("nodes", "cpus", "hosts", "strategy"),
    [
        (2, 4, [8.0, 4.0], "STRICT_SPREAD"),
        (2, 4, [8.0, 2.0], "SPREAD"),
        (2, 4, [4.0, 2.0], ""),
        (2, 1, [2.0], "SPREAD"),
        (1, 1, [], ""),
        (3, 1, [0.0, 1.0, 2.0], "SPREAD"),
        (2, 1, [1.5, 0.5], ""),
    ],
)
def test_each_node_gets_a_host_of_its_own_if_there_are_enough(
    nodes: int, cpus: int, hosts: list[float], strategy: str
) -> None:
    made = plan(nodes, cpus, hosts)
    assert made.strategy == strategy
    assert bool(made.words) == (strategy != "STRICT_SPREAD")


def test_the_plan_says_what_was_asked_for_and_what_there_is() -> None:
    assert plan(3, 4, [2.0, 8.0]).words == (
        "3 nodes with 4 CPU each cannot be placed: Ray has 2 hosts with 8, 2 CPU. Ask for less, or add hosts to Ray."
    )
    assert plan(2, 4, [8.0]).words == "Ray has 1 host with 8 CPU: some hosts run several of the 2 nodes."
    assert plan(1, 1, []).words.startswith("1 nodes with 1 CPU each cannot be placed: Ray has 0 hosts with no CPU.")
    assert len(plan(4000, 2, [1.0] * 3000).words) < 300


class ActorDiedError(Exception):
    """As Ray calls it."""


class ActorUnavailableError(Exception):
    """As Ray calls it."""


class Remote:
    """A method of an actor: each call takes the next answer of a list."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers, self.calls = answers, 0

    def remote(self, *arguments: Any) -> Any:
        self.calls += 1
        return (self.calls, self.answers.pop(0) if self.answers else None)


class Actor:
    """A handle of an actor."""

    def __init__(self, *answers: Any) -> None:
        self.look, self.restart, self.end = Remote(list(answers)), Remote([]), Remote([])


class FakeRay:
    """What the driver uses of Ray once the actors are there."""

    @staticmethod
    def wait(references: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return [each for each in references if each[1] is not None], []

    @staticmethod
    def get(reference: Any, timeout: float) -> Any:
        if isinstance(reference[1], Exception):
            raise reference[1]
        return dict(reference[1])


def driver_of(actor: Actor) -> tuple[Any, queue.SimpleQueue[dict[str, Any]], io.StringIO]:
    commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    reports = io.StringIO()
    job = NodeJob((), KEYS, "")
    driver: Any = Driver({"nodes": 1, "cpus": 1, "namespace": "n", "address": ""}, job, commands, reports)
    driver._ray, driver._actors = FakeRay, [actor]
    return driver, commands, reports


class Fields(dict[str, Any]):
    """An answer that can be a key, as the references of Ray can."""

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


RUNNING = Fields(state="running", problem=None, log="here\n")


def told(reports: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in reports.getvalue().splitlines()]


def test_only_what_is_new_is_told() -> None:
    driver, _, reports = driver_of(Actor(RUNNING, RUNNING))
    driver._look()
    driver._look()
    assert told(reports) == [{"node": 0, "state": "running", "problem": None, "log": "here\n", "restarts": 0}]


@pytest.mark.fault("F53")
def test_an_actor_that_died_once_comes_back_and_one_that_stays_dead_is_lost() -> None:
    died = ActorDiedError("The actor died.\n\tactor_id: 12\nIts host is gone.")
    driver, _, reports = driver_of(Actor(RUNNING, died, RUNNING, ActorUnavailableError(), died, died))
    for _ in range(6):
        driver._look()
    assert [report["state"] for report in told(reports)] == [
        "running",
        "Ray restarts its actor",
        "running",
        "Ray restarts its actor",
        "lost",
    ]
    assert told(reports)[-1]["problem"] == "is lost: ActorDiedError: The actor died.\nIts host is gone."
    assert told(reports)[-1]["log"] == "here\n"


def test_an_answer_to_a_question_before_a_restart_does_not_count_as_one_after_it() -> None:
    actor = Actor(None, RUNNING)
    driver, commands, reports = driver_of(actor)
    driver._look()
    assert len(driver._looks) == 1, "the first question is under way"
    commands.put({"restart": 0})
    driver._obey(1.0)
    assert actor.restart.calls == 1
    ((reference, _),) = driver._looks.items()
    driver._looks = {(reference[0], RUNNING): (0, 0)}
    driver._look()
    driver._look()
    assert [report["restarts"] for report in told(reports)] == [0, 1]


def test_an_actor_that_ray_restarts_is_not_asked_to_start_its_node_twice() -> None:
    actor = Actor(ActorUnavailableError(), RUNNING)
    driver, commands, reports = driver_of(actor)
    driver._look()
    commands.put({"restart": 0})
    driver._obey(1.0)
    driver._look()
    assert actor.restart.calls == 0
    assert told(reports)[-1]["restarts"] == 1
