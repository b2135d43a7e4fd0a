"""Ctrl-C, sudden ends and forgotten streams while a policy plays on the workers."""

from __future__ import annotations

import gc
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
from gymnasium.error import AlreadyPendingCallError

from clusterenv import ClusterEnv, Timeouts
from tests.env.policies import CHOICES, Echo, Linear, wide
from tests.faults.interrupts import interrupted_everywhere, interrupted_when
from tests.faults.kit import LIMIT_S, Gate, batch, each, ended, kill
from tests.faults.scripts import head
from tests.zoo import CountingEnv, shared_files, wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    from clusterenv import Batch

ENDLESS = 10**6
FREE = each(4, CountingEnv, ENDLESS)


@pytest.fixture
def gate(tmp_path: pathlib.Path) -> Gate:
    return Gate(tmp_path)


def attached(envs: ClusterEnv) -> ClusterEnv:
    envs.reset(seed=1)
    envs.attach(Linear(2, 3), seed=5)
    return envs


def gated(gate: Gate) -> list[Callable[[], Any]]:
    """Four slots on two workers; one of each waits at the gate in its second step."""
    return [gate.env(slot, waits=2 if slot % 2 else -1, length=ENDLESS) for slot in range(4)]


def steps_of(result: Batch) -> Any:
    """[T + 1, N] the number of steps that each observation tells."""
    return result.obs[..., 1]


def goes_on(envs: ClusterEnv) -> None:
    """After a reset, everything is that of its own slot and step, in rollouts, streams and steps."""
    envs.reset(seed=3)
    result = envs.rollout(3)
    assert steps_of(result).tolist() == [[step] * 4 for step in range(4)]
    assert result.obs[0, :, 0].tolist() == [0, 1, 2, 3]
    assert not result.worker_lost.any()
    with envs.stream(steps=2) as stream:
        at = dict.fromkeys(range(4), 3.0)
        for _ in range(4):
            part = next(stream)
            for column, slot in enumerate(part.slot.tolist()):
                assert steps_of(part)[:, column].tolist() == [at[slot], at[slot] + 1, at[slot] + 2]
                at[slot] += 2
    envs.step([1] * 4)


# Ctrl-C.


def everybody_plays(envs: ClusterEnv) -> Callable[[], None]:
    """The moment when every worker has taken a step of its fragment."""

    def wait() -> None:
        players = envs._detached.players  # type: ignore[union-attr]
        wait_until(lambda: players._fragments is not None and bool(players.fragments.progress.all()), LIMIT_S)

    return wait


def busy(envs: ClusterEnv) -> None:
    """Wait until a call is under way."""
    wait_until(lambda: bool(envs._turns._turn), LIMIT_S)


def in_next(envs: ClusterEnv, gate: Gate) -> Callable[[], None]:
    """The moment when a worker waits at the gate and the head waits for the worker."""

    def wait() -> None:
        gate.wait()
        busy(envs)

    return wait


def test_in_a_rollout(gate: Gate) -> None:
    with batch(gated(gate)) as envs:
        attached(envs)
        pids = envs.worker_pids()
        with interrupted_when(everybody_plays(envs)):
            envs.rollout(1000)
        for call in (lambda: envs.rollout(2), lambda: envs.step([1] * 4), envs.detach):
            with pytest.raises(AlreadyPendingCallError, match="under way: call `reset`"):
                call()
        envs.publish()
        gate.open()
        goes_on(envs)
        assert envs.worker_pids() == pids, "nobody was lost"


def test_while_the_policy_is_set_up(tmp_path: pathlib.Path) -> None:
    class Slow(Linear):
        def __init__(self, folder: str) -> None:
            super().__init__(2, 3)
            self.folder, self.head = folder, os.getpid()

        def __setstate__(self, state: dict[str, Any]) -> None:
            self.__dict__ = state
            if os.getpid() != self.head:
                open(f"{self.folder}/inside", "w").close()
                wait_until(lambda: os.path.exists(f"{self.folder}/gate"), LIMIT_S)

    with batch(FREE) as envs:
        envs.reset(seed=1)
        envs.attach(Slow(os.fspath(tmp_path)), seed=1)
        with interrupted_when(lambda: wait_until((tmp_path / "inside").exists, LIMIT_S)):
            envs.rollout(2)
        (tmp_path / "gate").touch()
        goes_on(envs)


def test_in_the_next_of_a_stream(gate: Gate) -> None:
    with batch(gated(gate)) as envs:
        attached(envs)
        pids = envs.worker_pids()
        stream = envs.stream(steps=1000)
        with interrupted_when(in_next(envs, gate), then=gate.open):
            next(stream)
        with pytest.raises(StopIteration):
            next(stream)
        goes_on(envs)
        assert envs.worker_pids() == pids, "nobody was lost"


def test_in_the_next_of_a_stream_and_again_while_it_ends(gate: Gate) -> None:
    with batch(gated(gate)) as envs:
        attached(envs)
        stream = envs.stream(steps=4)
        with interrupted_when(in_next(envs, gate), lambda: wait_until(lambda: stream._closed, LIMIT_S)):
            next(stream)
        with pytest.raises(AlreadyPendingCallError, match="under way: call `reset`"):
            envs.rollout(2)
        gate.open()
        goes_on(envs)


def played(envs: ClusterEnv, steps: int) -> Callable[[], None]:
    """The moment when the workers have played so many steps more, and the head waits for some."""
    progress = envs._detached.players.fragments.progress  # type: ignore[union-attr]
    due = int(progress.sum()) + steps

    def wait() -> None:
        wait_until(lambda: int(progress.sum()) >= due, LIMIT_S)
        busy(envs)

    return wait


def test_at_many_moments_of_a_stream() -> None:
    with batch(FREE) as envs:
        attached(envs)
        for steps in (1, 7, 40, 150):
            stream = envs.stream(steps=3, slots=2)
            with interrupted_when(played(envs, steps)):
                for _ in stream:
                    pass
        goes_on(envs)


@pytest.mark.parametrize("sync", ["on-change", "aps"])
def test_in_publish_a_version_exists_with_its_weights_or_not_at_all(sync: str) -> None:
    policy = Echo()
    with batch(wide(2), cluster="inproc") as envs:
        envs.reset(seed=1)
        envs.attach(policy, sync=sync)
        envs.rollout(2)
        policy.number = 1
        places = ("env/detached.py", "sync/codec.py", "sync/weights.py")
        for where in interrupted_everywhere(envs.publish, *places, opcodes=True):
            envs.sync()
            result = envs.rollout(2)
            np.testing.assert_array_equal(result.action, result.version % CHOICES, err_msg=where)
            assert not result.lag.any(), where
            assert envs.stats()["held"] == envs.stats()["version"], where
            syncs = envs.stats()["syncs"]
            envs.rollout(2)
            assert envs.stats()["syncs"] == syncs, f"the same weights moved again, after {where}"
            policy.number = (envs.stats()["version"][1] + 1) % CHOICES


# The head ends.

START = """
from tests.env.policies import Linear
envs = ClusterEnv(counting(4, length=10**6), cluster="local:2")
envs.reset(seed=1)
envs.attach(Linear(2, 3), seed=1)
stream = envs.stream(steps=4)
next(stream)
meet("ready")
"""
ENDS = {
    "nothing more": "",
    "an exception": "1 / 0",
    "in a function": "def f(envs, stream): sys.exit()\nf(envs, stream)",
}


@pytest.mark.parametrize("last", ENDS.values(), ids=ENDS.keys())
def test_a_script_that_ends_with_an_open_stream(last: str, tmp_path: pathlib.Path) -> None:
    with head(f"{START}\n{last}\n", tmp_path) as script:
        script.hear("ready")
        script.answer()
        script.everybody_is_gone()
        complaints = script.complaints()
        assert ("ZeroDivisionError" in complaints) == (last == "1 / 0")
        assert "Exception ignored" not in complaints
        assert "worker" not in complaints


@pytest.mark.parametrize("then", ["for _ in stream: pass", "stream.close()\nenvs.rollout(10**5)"])
def test_a_head_that_is_killed(then: str, tmp_path: pathlib.Path) -> None:
    shared = shared_files()
    with head(f"{START}\nsay('go')\n{then}\n", tmp_path) as script:
        script.hear("ready")
        script.answer()
        script.hear("go")
        os.kill(script.process.pid, signal.SIGKILL)
        script.everybody_is_gone()
        assert shared_files() <= shared


# Ends that nobody waits for.


def test_closing_while_an_environment_of_a_stream_is_slow(gate: Gate) -> None:
    with batch(gated(gate)) as envs:
        attached(envs)
        stream = envs.stream(steps=1000)
        gate.wait()
        workers = [psutil.Process(pid) for pid in envs.worker_pids() if pid is not None]
        envs.close(timeout=0.05)
        wait_until(lambda: all(ended(worker) for worker in workers), LIMIT_S)
        with pytest.raises(StopIteration):
            next(stream)


def test_closing_in_another_thread_ends_the_iteration(gate: Gate) -> None:
    with batch(gated(gate)) as envs:
        attached(envs)
        stream = envs.stream(steps=1000)

        def close() -> None:
            gate.wait()
            gate.open()
            envs.close()

        thread = threading.Thread(target=close)
        thread.start()
        for result in stream:
            np.testing.assert_array_equal(steps_of(result)[-1], steps_of(result)[0] + 1000)
        thread.join()


def test_a_stream_keeps_its_environments_alive() -> None:
    def streaming() -> Any:
        return attached(ClusterEnv(FREE, cluster="local:2")).stream(steps=3)

    stream = streaming()
    gc.collect()
    assert next(stream).T == 3
    assert next(stream).T == 3


def in_a_ring(stream: Any) -> None:
    """Only the garbage collector finds what is in here."""
    ring: list[Any] = [stream]
    ring.append(ring)


@pytest.mark.parametrize("cluster", ["local:2", "inproc:2"])
def test_a_stream_that_is_collected_inside_another_call(cluster: str) -> None:
    with batch(FREE, cluster=cluster) as envs:
        attached(envs)
        in_a_ring(envs.stream(steps=3))
        with envs._turns:  # as in any call
            gc.collect()
        goes_on(envs)


def test_environments_and_stream_that_are_collected_together() -> None:
    envs = attached(ClusterEnv(FREE, cluster="local:2"))
    stream = envs.stream(steps=3)
    workers = [psutil.Process(pid) for pid in envs.worker_pids() if pid is not None]
    ring: list[Any] = [envs, stream]
    ring.append(ring)
    del envs, stream, ring
    gc.collect()
    wait_until(lambda: all(ended(worker) for worker in workers), LIMIT_S)


def test_a_forked_child_cannot_disturb_a_stream() -> None:
    with batch(FREE) as envs:
        attached(envs)
        stream = envs.stream(steps=3)
        next(stream)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                envs.close()
                del stream, envs
                gc.collect()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        at = dict.fromkeys(range(4), -1.0)
        for _ in range(12):
            result = next(stream)
            assert (np.diff(steps_of(result), axis=0) == 1).all(), "no fragment was cut"
            for column, slot in enumerate(result.slot.tolist()):
                assert steps_of(result)[0, column] > at[slot]
                at[slot] = steps_of(result)[0, column]
        stream.close()


# Losses at an awkward moment.


def test_a_second_worker_lost_while_the_first_is_replaced(tmp_path: pathlib.Path, gate: Gate) -> None:
    note = tmp_path / "note"
    fns = list(FREE)
    fns[0] = gate.env(0, waits=-1, in_build=os.fspath(note), length=ENDLESS)
    # Without a limit for a step, a replacement that is never asked to play is never noticed.
    with batch(fns, timeouts=Timeouts(step_s=None)) as envs:
        attached(envs)
        with envs.stream(steps=3, slots=2) as stream:
            next(stream)
            note.touch()  # from here on a build waits at the gate
            kill(envs, 0)

            def other() -> None:
                gate.wait()
                kill(envs, 1)
                gate.open()

            thread = threading.Thread(target=other)
            thread.start()
            lost: set[int] = set()
            while lost != {0, 1, 2, 3}:
                result = next(stream)
                lost |= set(result.slot[result.worker_lost].tolist())
            thread.join()
