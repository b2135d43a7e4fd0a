"""Nodes on Ray: the actor, which knows nothing of Ray."""

from __future__ import annotations

import os
import pickle
import signal
from typing import TYPE_CHECKING

from clusterenv.launchers.ray_actor import NodeActor, OneJob
from tests.launchers.kit import LIMIT_S, wait_gone
from tests.zoo import wait_until

if TYPE_CHECKING:
    from clusterenv.testing.contracts import StandIn


def one_job(node: StandIn, do: str = "wait", program: str | None = None) -> OneJob:
    job = node.job(do)
    return OneJob(job.arguments, job.keys, node.program if program is None else program, 3)


def test_a_job_travels_with_its_number_and_shows_no_keys(node: StandIn) -> None:
    job = pickle.loads(pickle.dumps(one_job(node)))
    assert job == one_job(node)
    assert job.command("-", 0) == node.job().command("-", 3)
    assert "canary" not in repr(job)


def test_an_actor_runs_its_node_and_starts_it_again(node: StandIn) -> None:
    actor = NodeActor(one_job(node))
    (record,) = node.wait_for(1)
    wait_until(lambda: "ready" in actor.look()["log"], LIMIT_S)
    assert (actor.look()["state"], actor.look()["problem"]) == ("running", None)
    os.kill(record["pid"], signal.SIGKILL)
    wait_until(lambda: actor.look()["state"] == "ended", LIMIT_S)
    assert "ended with signal SIGKILL: stand-in" in actor.look()["problem"]
    actor.restart()
    records = node.wait_for(2)
    assert (actor.look()["state"], actor.look()["problem"]) == ("running", None)
    actor.end(LIMIT_S)
    wait_gone(*(record["pid"] for record in records))
    assert actor.look() == {"state": "ended", "problem": None, "log": ""}


def test_a_python_that_is_not_there_is_told_and_can_be_tried_again(node: StandIn) -> None:
    actor = NodeActor(one_job(node, program=str(node.folder / "not-yet")))
    assert "not-yet" in actor.look()["problem"]
    assert actor.look()["state"] == "ended"
    (node.folder / "not-yet").symlink_to(node.program)
    actor.restart()
    node.wait_for(1)
    assert actor.look()["problem"] is None
    actor.end(LIMIT_S)
