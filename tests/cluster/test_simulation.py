"""Hundreds of nodes on a network that fails, in one thread: what the user sees is always true, and never stops."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from clusterenv.sync.versions import Version
from tests.cluster.simulation import Row, Simulation, Witness, Wrong
from tests.cluster.test_requests import Careless, Forgetful

if TYPE_CHECKING:
    from typing import Any

FAULTS = {
    *("crash", "pause", "lost", "message lost", "message doubled", "connection renewed", "head restart"),
    "an old life was refused",
}


@pytest.mark.parametrize("seed", range(6))
def test_every_promise_holds(seed: int) -> None:
    sim = Simulation(seed, nodes=40)
    sim.run(80.0)
    assert sim.witness.rows > 5_000
    assert sim.witness.losses > 20


def test_hundreds_of_nodes() -> None:
    sim = Simulation(seed=11, nodes=200)
    sim.run(60.0)
    assert sim.witness.rows > 50_000
    assert set(sim.faults) == FAULTS, "everything that can go wrong has gone wrong"


def test_a_seed_is_a_run() -> None:
    def told() -> Any:
        sim = Simulation(seed=5, nodes=10)
        sim.run(60.0)
        return sim.faults, sim.witness.rows, sim.witness.losses, sim.newest

    assert told() == told()


# A checker that finds nothing proves nothing: each planted bug must be found, with few seeds.

BUGS: dict[str, tuple[dict[str, Any], str]] = {
    "requests are carried out again": ({"answering": Careless}, r"went from step \d+ to \d+"),
    "answers are thrown away": ({"answering": Forgetful}, r"."),
    "an old life is believed": ({"fenced": False}, r"another life|went from step|begins with step"),
    "losses are not shown": ({"marked": False}, r"another life, and no loss was shown"),
}


@pytest.mark.parametrize(("bug", "says"), BUGS.values(), ids=BUGS.keys())
def test_planted_bugs_are_found(bug: dict[str, Any], says: str) -> None:
    found = []
    for seed in range(5):
        try:
            Simulation(seed, nodes=40, **bug).run(60.0)
        except (Wrong, KeyError) as error:
            found.append(str(error))
            break
    assert found
    assert re.search(says, found[0])


ONE = Version(1, 1)
LIES: dict[str, tuple[list[Row | None], str]] = {
    "another slot": ([Row(1, 1, 1, ONE)], "was shown what happened in slot 1"),
    "twice": ([Row(0, 1, 1, ONE), Row(0, 1, 1, ONE)], "went from step 1 to 1"),
    "a gap": ([Row(0, 1, 1, ONE), Row(0, 1, 3, ONE)], "went from step 1 to 3"),
    "a hidden loss": ([Row(0, 1, 1, ONE), Row(0, 2, 1, ONE)], "no loss was shown"),
    "half a life": ([None, Row(0, 2, 2, ONE)], "begins with step 2"),
    "an older version": ([Row(0, 1, 1, ONE.next()), Row(0, 1, 2, ONE)], "back to"),
}


@pytest.mark.parametrize(("rows", "says"), LIES.values(), ids=LIES.keys())
def test_the_witness_sees(rows: list[Row | None], says: str) -> None:
    witness = Witness()
    for row in rows[:-1]:
        witness.see(0, row)
    with pytest.raises(Wrong, match=says):
        witness.see(0, rows[-1])
