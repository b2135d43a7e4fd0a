"""Closing at any moment leaves nothing behind, which a fixture of all tests looks at."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psutil
import pytest
from gymnasium.error import ClosedEnvironmentError

from clusterenv.node.joining import Joining
from tests.conformance.kit import (
    LIMIT_S,
    TRIAL,
    abroad,
    actions,
    beyond,
    inside,
    kill,
    kill_node,
    replaceable,
    slots,
    wait_at,
)
from tests.zoo import wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    from clusterenv import ClusterEnv

    Make = Callable[..., ClusterEnv]

# Many beats of a node, and longer than a connection may be without a heartbeat: eight unread beats once stopped it.
BEATS, PAUSE_S = 40, 10.0


def close(envs: ClusterEnv, timeout: float = LIMIT_S) -> None:
    """Close, and see that the workers are gone; unless another limit is given, that nobody is waited for in vain."""
    pids = [pid for pid in envs.worker_pids() if pid is not None and pid != psutil.Process().pid]
    began = time.monotonic()
    envs.close(timeout=timeout)
    assert time.monotonic() - began < LIMIT_S
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), LIMIT_S)


def test_close_twice(make: Make) -> None:
    envs = make()
    envs.reset(seed=1)
    close(envs)
    envs.close()
    with pytest.raises(ClosedEnvironmentError):
        envs.step(actions(envs))
    with pytest.raises(ClosedEnvironmentError):
        envs.reset()


@beyond
def test_close_while_a_step_is_under_way(make: Make, tmp_path: pathlib.Path) -> None:
    gate = tmp_path / "gate"
    envs = make(TRIAL, slot_kwargs=slots())
    envs.reset(seed=1)
    envs.set_attr("misbehave", wait_at(gate), indices=[4])
    envs.step_async(actions(envs))
    inside(gate)
    with pytest.warns(UserWarning, match="pending call to `step`"):
        close(envs, timeout=0.5)


def test_close_with_slots_in_flight(make: Make) -> None:
    envs = make()
    envs.reset(seed=1)
    envs.send(actions(envs))


@beyond
def test_close_after_losses(make: Make) -> None:
    envs = make()
    envs.reset(seed=1)
    kill(envs, 0)
    envs.step(actions(envs))
    kill(envs, 1)
    close(envs)


@replaceable
def test_close_after_the_loss_of_a_node(make: Make) -> None:
    envs = make()
    envs.reset(seed=1)
    kill_node(envs, 0)
    envs.step(actions(envs))
    envs.step(actions(envs))
    kill_node(envs, 1)
    close(envs, timeout=5.0)  # nobody has heard yet that it is gone


@pytest.mark.slow
@abroad
def test_close_after_a_pause(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that is busy with other things for a while finds its nodes as it left them."""
    monkeypatch.setattr(Joining, "beats", BEATS)
    envs = make()
    envs.reset(seed=1)
    before = connections()
    time.sleep(PAUSE_S)
    assert connections() == before
    envs.step(actions(envs))
    close(envs)


def connections() -> set[int]:
    """The ports of this process that somebody is connected with."""
    return {each.raddr.port for each in psutil.Process().net_connections("tcp") if each.status == "ESTABLISHED"}
