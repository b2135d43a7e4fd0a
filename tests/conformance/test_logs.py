"""What nodes and their environments write can be asked for, where anybody keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from gymnasium.error import ClosedEnvironmentError

from clusterenv import ConfigError
from tests.conformance.kit import ENGINES, LIMIT_S, TRIAL, abroad, actions, kill, slots
from tests.zoo import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterenv import ClusterEnv

    Make = Callable[..., ClusterEnv]

WORDS = "what has happened in slot"


@pytest.fixture(autouse=True)
def as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python keeps what it writes into a file to itself for a while, unless it is told not to."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


def told_by_every_node(envs: ClusterEnv) -> None:
    envs.reset(seed=1)
    envs.call("say", WORDS)

    def all_there() -> bool:
        told = "".join(envs.node_logs().values())
        return all(f"{WORDS} {slot}" in told for slot in range(envs.num_envs))

    wait_until(all_there, LIMIT_S)
    own = [lines for lines in envs.node_logs().values() if WORDS in lines]
    assert len(own) == 2
    assert [f"{WORDS} 0" in lines for lines in own] != [f"{WORDS} 4" in lines for lines in own], "each has its own"


@abroad
def test_what_environments_write_is_told_by_node(make: Make) -> None:
    told_by_every_node(make(TRIAL, slot_kwargs=slots()))


@pytest.mark.kinds(*ENGINES)
@pytest.mark.walk
def test_also_on_real_engines(make: Make) -> None:
    told_by_every_node(make(TRIAL, slot_kwargs=slots()))


@abroad
def test_what_a_lost_worker_wrote_last_is_still_there(make: Make) -> None:
    envs = make(TRIAL, slot_kwargs=slots())
    envs.reset(seed=1)
    envs.call("say", WORDS)
    kill(envs, 0)
    assert envs.step(actions(envs))[3].any()
    wait_until(lambda: f"{WORDS} 0" in "".join(envs.node_logs().values()), LIMIT_S)


@pytest.mark.kinds("inproc", "local")
def test_on_this_host_it_is_said_where_to_look(make: Make) -> None:
    envs = make(TRIAL)
    with pytest.raises(ConfigError, match="environments write to the standard output and error of this process"):
        envs.node_logs()


def test_after_the_end_there_is_nothing_to_tell(make: Make) -> None:
    envs = make(TRIAL)
    envs.close()
    with pytest.raises(ClosedEnvironmentError):
        envs.node_logs()
