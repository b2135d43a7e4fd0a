"""Environments that leak: a worker that has outgrown its memory is replaced between two steps, and nobody crashes."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest

import clusterenv
from clusterenv import WorkerLost
from clusterenv.cluster.restart import LIMITS, Fault
from tests.faults.kit import actions, batch, lost
from tests.policy.agents import CleanRL
from tests.zoo import CountingEnv

if TYPE_CHECKING:
    import pathlib

    from clusterenv import ClusterEnv

# A fresh worker has some tens of MiB, each leak takes ten.
LIMIT_MB, LEAK_MB = 200, 10
LOCAL = f"local:2,worker_memory={LIMIT_MB}MiB"
TCP = f"tcp:nodes=2,workers=1,worker_memory={LIMIT_MB}MiB"
LEAKING, SOUND = [0, 1], [2, 3]
MOST = 200


def leaky(cluster: str, **kwargs: Any) -> ClusterEnv:
    """Four CartPoles, of which those of the first worker leak in every step."""
    leak = {"chances": {"leak": 1.0}, "leak_mb": LEAK_MB / 2}
    slots = [leak if slot in LEAKING else {} for slot in range(4)]
    envs = clusterenv.make_vec(
        "clusterenv.testing:Chaos-v0", 4, cluster=cluster, env_id="CartPole-v1", slot_kwargs=slots, **kwargs
    )
    envs.reset(seed=1)
    return envs


def who_is_lost(infos: dict[str, Any]) -> list[int]:
    return np.flatnonzero(lost(infos, 4)).tolist()


@pytest.mark.fault("F09")
@pytest.mark.parametrize("cluster", [LOCAL, TCP])
@pytest.mark.parametrize("on_loss", ["restart", "raise"])
def test_a_worker_is_replaced_again_and_again(cluster: str, on_loss: str, caplog: pytest.LogCaptureFixture) -> None:
    times = LIMITS[Fault.MEMORY] + 2
    caplog.set_level(logging.WARNING)
    with leaky(cluster, on_loss=on_loss) as envs:
        sound, found = envs.worker_pids()[1], []
        for step in range(times * MOST):
            _, rewards, terminated, truncated, infos = envs.step(actions(envs))
            if gone := who_is_lost(infos):
                assert gone == LEAKING
                assert truncated[LEAKING].all()
                assert not terminated[LEAKING].any()
                assert not rewards[LEAKING].any()
                found.append(step)
            if len(found) == times:
                break
        assert len(found) == times
        assert min(np.diff(found)) >= 10, "a fresh worker begins with little"
        assert envs.worker_pids()[1] == sound
    told = re.findall(r"worker 0 is lost \(its memory grew to (\d+) MiB, and worker_memory is 200MiB\)", caplog.text)
    assert len(told) == times
    assert all(LIMIT_MB <= int(grown) <= LIMIT_MB + 2 * LEAK_MB for grown in told)


def test_without_a_limit_nobody_is_replaced() -> None:
    with leaky("local:2") as envs:
        leaking = psutil.Process(envs.worker_pids()[0])
        while leaking.memory_info().rss < 2 * LIMIT_MB * 2**20:
            assert who_is_lost(envs.step(actions(envs))[4]) == []


def test_slots_that_were_sent_come_back_truncated() -> None:
    with leaky(LOCAL) as envs:
        # The sound ones wait: otherwise a fast worker could fill every batch while the leaking one has no core.
        envs.send(np.ones(len(LEAKING), dtype=np.int64), LEAKING)
        for _ in range(MOST):
            _, _, _, truncated, infos = envs.recv(1)
            ids = infos["env_id"]
            gone = [int(slot) for slot, is_lost in zip(ids, lost(infos, len(ids)), strict=True) if is_lost]
            if gone:
                assert set(gone) <= set(LEAKING)
                assert truncated[np.isin(ids, gone)].all()
                return
            envs.send(np.ones(len(ids), dtype=np.int64), ids)
        raise AssertionError("nobody was replaced")


@pytest.mark.parametrize("cluster", [LOCAL, TCP])
def test_a_rollout_plays_the_fragment_in_fresh_environments(cluster: str) -> None:
    with leaky(cluster) as envs:
        envs.attach(CleanRL(4, 2), seed=5, sync="on-change")
        found = [np.flatnonzero(envs.rollout(6).worker_lost).tolist() for _ in range(12)]
    assert LEAKING in found
    assert all(each in (LEAKING, []) for each in found)


@pytest.mark.fault("F09")
@pytest.mark.parametrize("cluster", [LOCAL, TCP])
def test_a_stream_goes_on(cluster: str) -> None:
    told: list[int] = []
    with leaky(cluster) as envs:
        envs.attach(CleanRL(4, 2), seed=5, sync="on-change")
        with envs.stream(6, slots=2) as stream:
            for fragments in stream:
                told += fragments.slot[fragments.worker_lost].tolist()
                if len(told) >= 2 * len(LEAKING):
                    break
    assert sorted(set(told)) == LEAKING


def test_a_limit_below_what_a_fresh_worker_has_is_told() -> None:
    with clusterenv.make_vec("CartPole-v1", 2, cluster="local:1,worker_memory=1MiB") as envs:
        envs.reset(seed=1)
        for _ in range(LIMITS[Fault.MEMORY]):
            assert envs.step([0, 0])[3].all()
        with pytest.raises(
            WorkerLost, match=r"its memory grew to \d+ MiB, and worker_memory is 1MiB.* again and again"
        ):
            envs.step([0, 0])


class NotesItsEnd(CountingEnv):
    """Leaks, and leaves a note when it is closed."""

    def __init__(self, note: pathlib.Path) -> None:
        super().__init__(0)
        self._note, self._leaked = note, bytearray()

    def step(self, action: Any) -> Any:
        self._leaked += b"x" * (LEAK_MB * 2**20)
        return super().step(action)

    def close(self) -> None:
        self._note.touch()


def test_environments_are_closed_before_they_go(tmp_path: pathlib.Path) -> None:
    note = tmp_path / "closed"
    with batch([lambda: NotesItsEnd(note)], cluster=f"local:1,worker_memory={LIMIT_MB}MiB") as envs:
        envs.reset(seed=1)
        while not note.exists():
            truncated = envs.step(actions(envs))[3]
        assert truncated.all()


def test_calls_and_resets_are_never_cut_short() -> None:
    """Only a step ends a worker: the episode is lost anyway then, and nobody who asks for something else is."""
    with leaky(LOCAL) as envs:
        pid = envs.worker_pids()[0]
        for _ in range(MOST):
            infos = envs.step(actions(envs))[4]
            if who_is_lost(infos):
                break
            assert envs.worker_pids()[0] == pid
            envs.reset()
            assert envs.get_attr("spec")[0] is not None
        assert who_is_lost(infos) == LEAKING
