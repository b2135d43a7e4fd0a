"""Faults while a policy plays on the workers."""

from __future__ import annotations

import functools
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest

from clusterenv import EnvError, Timeouts, WorkerLost
from clusterenv.policy.distributions import Categorical
from tests.env.policies import Echo, Linear
from tests.faults.kit import LIMIT_S, Gate, OnceEnv, batch, each, ended, kill, patient
from tests.zoo import CountingEnv, wait_until

if TYPE_CHECKING:
    import pathlib

    from clusterenv import ClusterEnv

FATAL = ["exit", "segfault", "kill"]


def attached(envs: ClusterEnv, policy: Any = None, **kwargs: Any) -> ClusterEnv:
    """Reset, with a policy."""
    envs.reset(seed=1)
    envs.attach(policy or Linear(2, 3), seed=5, **kwargs)
    return envs


def faulty(count: int, slot: int, note: pathlib.Path, fault: str, length: int = 10**6) -> list[Any]:
    """Counting environments; that of `slot` fails once, in its fifth step."""
    fns = each(count, CountingEnv, length)
    fns[slot] = functools.partial(OnceEnv, slot, fault, str(note), life=5, length=length)
    return fns


@pytest.mark.parametrize("fault", FATAL)
def test_a_worker_lost_in_a_rollout_plays_its_fragment_again(tmp_path: pathlib.Path, fault: str) -> None:
    with batch(faulty(4, 2, tmp_path / "note", fault)) as envs:
        attached(envs)
        result = envs.rollout(8)
        assert result.worker_lost.tolist() == [False, False, True, True]
        np.testing.assert_array_equal(result.obs[:, :, 1], np.tile(np.arange(9), (4, 1)).T)
        assert result.first[0].all()
        after = envs.rollout(8)
        assert not after.worker_lost.any()
        np.testing.assert_array_equal(after.obs[0], result.obs[-1])
        assert envs.stats()["restarts"] == 1
        # The break was shown; a step does not show it again.
        assert "worker_lost" not in envs.step([1] * 4)[4]


@pytest.mark.parametrize("fault", FATAL)
def test_a_worker_lost_in_a_stream_comes_back(tmp_path: pathlib.Path, fault: str) -> None:
    with batch(faulty(4, 2, tmp_path / "note", fault)) as envs:
        attached(envs)
        lives: dict[int, list[list[float]]] = {slot: [[]] for slot in range(4)}
        lost: set[int] = set()
        with envs.stream(steps=4, slots=2) as stream:
            for result in stream:
                for column, slot in enumerate(result.slot.tolist()):
                    if result.worker_lost[column]:
                        lost.add(slot)
                        lives[slot].append([])
                    lives[slot][-1] += result.obs[1:, column, 1].tolist()
                if lost == {2, 3} and min(len(life[-1]) for life in lives.values()) > 8:
                    break
        for slot, parts in lives.items():
            assert len(parts) == (2 if slot in (2, 3) else 1)
            for counted in parts:
                assert counted == list(range(1, len(counted) + 1)), "each life is whole, in order, and told once"


def test_a_fragment_of_a_lost_worker_is_read_while_another_is_built(tmp_path: pathlib.Path) -> None:
    playing, building, note = Gate(tmp_path, "playing"), Gate(tmp_path, "building"), tmp_path / "note"
    fns = [playing.env(0, length=10**6), building.env(1, waits=-1, in_build=str(note), length=10**6)]
    with batch(fns, timeouts=patient()) as envs:
        attached(envs)
        with envs.stream(steps=4, slots=2, buffers=1) as stream:
            wait_until(lambda: stream.ready or len(stream._queue) == 1, LIMIT_S)  # of worker 1: the other waits
            note.touch()
            kill(envs, 1)
            wait_until(lambda: stream.ready or envs.restarts == 1, LIMIT_S)
            playing.open()
            assert not next(stream).worker_lost.any()
            building.open()
            while not (result := next(stream)).worker_lost.any():
                pass
            assert result.obs[:, result.slot == 1, 1].ravel().tolist() == [0, 1, 2, 3, 4]
            assert next(stream).slot.tolist() in ([0, 1], [1, 0]), "it plays on"
        assert envs.restarts == 1


def test_a_fragment_of_a_lost_worker_is_not_overwritten_by_its_replacement(tmp_path: pathlib.Path) -> None:
    """The replacement plays into the buffers that nobody has to read any more."""
    gate = Gate(tmp_path)
    with batch([gate.env(0, waits=14, length=10**6)], cluster="local:1", timeouts=patient()) as envs:
        attached(envs)
        with envs.stream(steps=4, slots=1, buffers=2) as stream:
            assert [next(stream).obs[:, 0, 1].tolist() for _ in range(2)] == [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]
            gate.wait()  # in its fourth fragment, and the third is not read yet
            wait_until(lambda: stream.ready, LIMIT_S)
            kill(envs, 0)
            gate.open()
            wait_until(lambda: stream.ready and len(stream._queue) > 1, LIMIT_S)  # the replacement has played
            before, after = next(stream), next(stream)
        assert (before.obs[:, 0, 1].tolist(), before.worker_lost.tolist()) == ([8, 9, 10, 11, 12], [False])
        assert (after.obs[:, 0, 1].tolist(), after.worker_lost.tolist()) == ([0, 1, 2, 3, 4], [True])


def test_a_worker_that_dies_between_rollouts_is_seen() -> None:
    with batch(each(4, CountingEnv, 10**6)) as envs:
        attached(envs, Echo3(), encoding="fp32")
        envs.rollout(3)
        kill(envs, 1)
        result = envs.rollout(3)
        assert result.worker_lost.tolist() == [False, False, True, True]
        assert result.obs[0, :, 1].tolist() == [3, 3, 0, 0]


class Echo3(Echo):
    """With three actions."""

    distribution = Categorical(3)

    def forward(self, weights: Any, obs: Any, state: Any) -> Any:
        """All the probability on one."""
        params = np.full((len(obs), 3), -1e9, np.float32)
        params[:, int(weights["number"][0]) % 3] = 0.0
        return params, None, state


def test_a_replacement_acts_with_the_newest_weights_of_the_node(tmp_path: pathlib.Path) -> None:
    policy = Echo3()
    with batch(faulty(4, 2, tmp_path / "note", "kill")) as envs:
        attached(envs, policy, encoding="fp32", sync="on-change")
        policy.number = 2
        envs.publish(policy)
        result = envs.rollout(8)
        assert (result.action == 2).all()
        assert (result.version == 1).all()


@pytest.mark.parametrize("fault", ["exit", "kill"])
def test_on_loss_raise(tmp_path: pathlib.Path, fault: str) -> None:
    with batch(faulty(4, 2, tmp_path / "note", fault), on_loss="raise") as envs:
        attached(envs)
        envs.rollout(2)
        with pytest.raises(WorkerLost, match="worker 1") as caught:
            envs.rollout(8)
        assert (caught.value.slot, caught.value.seed, caught.value.step) == (2, 3, 5)
        envs.reset(seed=1)
        assert envs.rollout(8).T == 8


def test_on_loss_raise_in_a_stream(tmp_path: pathlib.Path) -> None:
    with batch(faulty(4, 2, tmp_path / "note", "kill"), on_loss="raise") as envs:
        attached(envs)
        with envs.stream(steps=4) as stream, pytest.raises(WorkerLost, match="worker 1") as caught:
            for _ in stream:
                pass
        assert (caught.value.slot, caught.value.seed, caught.value.step) == (2, 3, 5)
        envs.reset(seed=1)
        assert envs.rollout(8).T == 8


@pytest.mark.fault("F05")
def test_a_worker_that_hangs_is_replaced(tmp_path: pathlib.Path) -> None:
    # Long enough for the worker that does not hang, however busy the machine.
    with batch(faulty(4, 2, tmp_path / "note", "hang"), timeouts=Timeouts(step_s=5.0)) as envs:
        attached(envs)
        result = envs.rollout(8)
        assert result.worker_lost.tolist() == [False, False, True, True]


def test_a_stopped_worker_is_replaced_in_a_stream() -> None:
    with batch(each(4, CountingEnv, 10**6), timeouts=Timeouts(step_s=2.0)) as envs:
        attached(envs)
        with envs.stream(steps=4, slots=2) as stream:
            next(stream)
            kill(envs, 0, signal.SIGSTOP)
            while not next(stream).worker_lost.any():
                pass


def test_an_environment_that_raises_is_truncated_and_begun_afresh(tmp_path: pathlib.Path) -> None:
    with batch(faulty(4, 2, tmp_path / "note", "raise")) as envs:
        attached(envs)
        result = envs.rollout(8)
        assert not result.worker_lost.any(), "its worker lives"
        assert result.truncated[:, 2].tolist() == [False] * 4 + [True] + [False] * 3
        assert result.obs[:, 2, 1].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]
        assert result.first[5, 2]
        assert result.truncated[:, [0, 1, 3]].sum() == 0
        assert result.final_obs[:, 1].tolist() == [4.0], "the last that was seen of it"
        assert len(result.episodes.returns) == 0, "an episode that was cut has no return"


def test_an_environment_that_raises_with_on_loss_raise(tmp_path: pathlib.Path) -> None:
    with batch(faulty(4, 2, tmp_path / "note", "raise"), on_loss="raise") as envs:
        attached(envs)
        envs.rollout(3)
        with pytest.raises(EnvError, match=r"slot 2 \(seed 3, step 5\)") as caught:
            envs.rollout(8)
        assert (caught.value.slot, caught.value.seed, caught.value.step) == (2, 3, 5)
        envs.reset(seed=1)
        assert envs.rollout(8).T == 8


def test_an_environment_that_raises_in_a_stream_names_its_step(tmp_path: pathlib.Path) -> None:
    with batch(faulty(4, 2, tmp_path / "note", "raise"), on_loss="raise") as envs:
        attached(envs)
        with envs.stream(steps=3) as stream, pytest.raises(EnvError, match=r"slot 2 \(seed 3, step 5\)"):
            for _ in stream:
                pass


def test_faults_far_apart_in_one_fragment_are_no_crash_loop(tmp_path: pathlib.Path) -> None:
    often, seldom = (each(2, CountingEnv, 10**6) for _ in range(2))
    seldom[1] = functools.partial(CountingEnv, 1, 10**6, {15: "raise"})  # a fresh one counts from 1
    often[1] = functools.partial(CountingEnv, 1, 10**6, {5: "raise"})
    with batch(seldom) as envs:
        attached(envs)
        assert int(envs.rollout(100).truncated[:, 1].sum()) == 6
    with batch(often) as envs:
        attached(envs)
        with pytest.raises(EnvError, match=r"slot 1 \(seed 2, step 20\) raised in step again and again"):
            envs.rollout(100)


def test_an_environment_that_always_raises_is_given_up() -> None:
    fns = each(2, CountingEnv, 10**6)
    fns[1] = functools.partial(CountingEnv, 1, 10**6, {1: "raise"})
    with batch(fns) as envs:
        attached(envs)
        # A policy plays on after a failure, but not for ever.
        with pytest.raises(EnvError, match="slot 1"):
            list(map(envs.rollout, [4] * 10))


def test_closing_in_the_middle_of_a_stream_leaves_nothing() -> None:
    with batch(each(4, CountingEnv, 10**6)) as envs:
        attached(envs)
        stream = envs.stream(steps=50)
        next(stream)
        processes = [psutil.Process(pid) for pid in envs.worker_pids() if pid]
    for process in processes:
        wait_until(lambda process=process: ended(process), LIMIT_S)  # type: ignore[misc]
    stream.close()


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_a_worker_lost_before_the_policy_came_begins_afresh(mode: str) -> None:
    with batch(each(4, CountingEnv, 10**6), autoreset_mode=mode) as envs:
        envs.reset(seed=1)
        envs.step([1] * 4)
        kill(envs, 1)
        envs.attach(Linear(2, 3), seed=5)
        result = envs.rollout(3)
        assert result.worker_lost.tolist() == [False, False, True, True]
        assert result.obs[0, :, 1].tolist() == [1, 1, 0, 0]


def test_after_a_reset_by_name_a_loss_is_over_and_the_seeds_hold() -> None:
    with batch(each(4, CountingEnv, 10**6), on_loss="raise") as envs:
        attached(envs)
        envs.rollout(2)
        kill(envs, 1)
        with pytest.raises(WorkerLost):
            envs.rollout(2)
        envs.reset(seed=7)
        result = envs.rollout(3)
        assert not result.worker_lost.any()
        assert result.first[0].all()
        assert envs.get_attr("np_random_seed") == (7, 8, 9, 10)
