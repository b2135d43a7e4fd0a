"""Policies on workers: bit for bit what they do in this process, with the versions that really acted."""

from __future__ import annotations

import collections
import contextlib
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from clusterenv import APS, EnvError, WorkerLost, make_vec
from tests.conformance.kit import (
    FIRST,
    NUM_ENVS,
    QUIET,
    SECOND,
    TRIAL,
    actions,
    beyond,
    kill,
    kill_node,
    replaceable,
    slots,
)
from tests.policy.agents import CleanRL, Recurrent

if TYPE_CHECKING:
    from clusterenv import Batch, ClusterEnv

ARRAYS = ("obs", "action", "reward", "terminated", "truncated", "first", "logp", "params", "value", "version")
STEPS, SEED = 12, 3


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> None:
    """Shared batches get other processes here, and memory for policies. `test_close` looks at what remains."""


def agent(seed: int = 0) -> CleanRL:
    torch.manual_seed(seed)
    return CleanRL(4, 5)


def change(policy: CleanRL, size: float = 0.5) -> None:
    """As a training step would."""
    with torch.no_grad():
        for tensor in policy.actor.parameters():
            tensor.add_(torch.linspace(-size, size, tensor.numel()).reshape(tensor.shape))


def attached(envs: ClusterEnv, policy: Any, sync: Any = "on-change", **kwargs: Any) -> ClusterEnv:
    envs.reset(seed=SEED)
    envs.attach(policy, seed=5, sync=sync, **kwargs)
    return envs


def here(**kwargs: Any) -> ClusterEnv:
    return make_vec(TRIAL, NUM_ENVS, cluster="inproc", slot_kwargs=slots(), **kwargs)


def same(left: Batch, right: Batch) -> None:
    """Equal, bit for bit; ends of episodes in whatever order."""
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)
    ends = [sorted(zip(*map(tuple, each.final_at), map(tuple, each.final_obs), strict=True)) for each in (left, right)]
    assert ends[0] == ends[1]
    told = [sorted(zip(*each.episodes, strict=True)) for each in (left, right)]
    assert told[0] == told[1]


def rollouts(envs: ClusterEnv) -> list[Batch]:
    """Three versions and a step in between, all from the same beginnings."""
    policy = agent()
    attached(envs, policy)
    batches = [envs.rollout(STEPS)]
    for steps in (STEPS, 5):
        change(policy)
        envs.publish(policy)
        batches.append(envs.rollout(steps))
    return batches


def test_rollouts_are_those_of_this_process(next_step: ClusterEnv) -> None:
    with here() as mine:
        expected = rollouts(mine)
    found = rollouts(next_step)
    assert sum(len(batch.episodes.returns) for batch in expected) > 5, "worth comparing with"
    for left, right in zip(found, expected, strict=True):
        same(left, right)
    assert [np.unique(batch.version).tolist() for batch in found] == [[0], [1], [2]]
    assert not any(batch.worker_lost.any() for batch in found)


def test_the_largest_epoch_is_one_that_messages_hold(next_step: ClusterEnv) -> None:
    attached(next_step, agent(), epoch=2**62)
    assert next_step.rollout(2).epoch == 2**62


def test_steps_and_rollouts_take_turns(next_step: ClusterEnv) -> None:
    def play(envs: ClusterEnv) -> list[Any]:
        envs.reset(seed=QUIET)
        first = envs.step(actions(envs))
        envs.attach(agent(), seed=5, sync="on-change")
        batch = envs.rollout(4)
        second = envs.step(actions(envs))
        return [first[0], batch.obs, batch.action, batch.reward, *second[:4], envs.rollout(3).obs]

    with here() as mine:
        expected = play(mine)
    for left, right in zip(play(next_step), expected, strict=True):
        np.testing.assert_array_equal(left, right)
    np.testing.assert_array_equal(expected[4][:, 1], 6, "steps and rollouts go on where the other ended")


def test_a_stream_plays_what_rollouts_play(next_step: ClusterEnv) -> None:
    with here() as mine:
        attached(mine, agent())
        expected = [mine.rollout(6) for _ in range(4)]
    attached(next_step, agent())
    taken = dict.fromkeys(range(NUM_ENVS), 0)
    with next_step.stream(6, slots=3) as stream:
        while min(taken.values()) < 4:
            batch = next(stream)
            for column, slot in enumerate(batch.slot.tolist()):
                if taken[slot] < 4:
                    right = expected[taken[slot]]
                    for name in ARRAYS:
                        np.testing.assert_array_equal(
                            getattr(batch, name)[:, column], getattr(right, name)[:, slot], f"{name} of slot {slot}"
                        )
                taken[slot] += 1
    next_step.step(actions(next_step))


def test_recurrent_states_are_those_of_this_process(next_step: ClusterEnv) -> None:
    def play(envs: ClusterEnv) -> list[Batch]:
        torch.manual_seed(0)
        attached(envs, Recurrent(5), every_state=True)
        return [envs.rollout(STEPS), envs.rollout(5)]

    with here() as mine:
        expected = play(mine)
    for left, right in zip(play(next_step), expected, strict=True):
        assert left.states is not None
        assert right.states is not None
        for one, other, before in zip(left.states, right.states, left.state, strict=True):
            np.testing.assert_array_equal(one, other)
            np.testing.assert_array_equal(one[0], before)
            assert not one[left.first[:-1]].any(), "zero where an episode begins"
            assert one[~left.first[:-1]].any()


def test_versions_in_a_stream_only_grow(next_step: ClusterEnv) -> None:
    policy = agent()
    attached(next_step, policy)
    newest = dict.fromkeys(range(NUM_ENVS), 0)
    published = 0
    with next_step.stream(5, slots=NUM_ENVS) as stream:
        for batch in stream:
            for column, slot in enumerate(batch.slot.tolist()):
                versions = batch.version[:, column]
                assert versions[0] >= newest[slot]
                assert (np.diff(versions) >= 0).all()
                newest[slot] = int(versions[-1])
            np.testing.assert_array_equal(batch.lag, published - batch.version)
            if min(newest.values()) >= 5:  # one worker may be far ahead of the other
                break
            change(policy, 0.01)
            published = next_step.publish(policy).number


@pytest.mark.parametrize("sync", ["aps:0.0", "aps:0.05", "on-change", "every:2"])
@pytest.mark.parametrize("streaming", [False, True])
def test_frozen_weights_move_once_however_often_they_are_published(
    next_step: ClusterEnv, sync: str, streaming: bool
) -> None:
    policy = agent()
    with torch.no_grad():
        list(policy.actor.parameters())[-2].mul_(20.0)  # peaked: rounding alone would show as drift
    attached(next_step, policy, sync=sync)
    steps = 0
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(next_step.stream(10, slots=2)) if streaming else None
        while steps < 1_000:
            batch = next_step.rollout(10) if stream is None else next(stream)
            steps += batch.T
            assert not batch.version.any()
            assert not batch.lag.any()
            assert next_step.publish(policy) == (batch.epoch, 0)
    stats = next_step.stats()
    assert stats["sync_reasons"] == {"first": len(next_step._engine.node.hosts)}
    assert stats["publishes"] == 0


@pytest.mark.parametrize("encoding", ["fp32", "bf16"])
def test_bytes_are_those_of_the_syncs(next_step: ClusterEnv, encoding: str) -> None:
    policy = agent()
    attached(next_step, policy, encoding=encoding)
    nodes = len(next_step._engine.node.hosts)
    next_step.rollout(2)
    first = next_step.stats()
    size = first["weight_bytes"]["total"] // nodes
    assert (first["syncs"], first["weight_bytes"]["total"]) == (nodes, nodes * size)
    numbers = sum(tensor.numel() for name, tensor in policy.named_parameters() if "never_used" not in name)
    assert size >= numbers * (4 if encoding == "fp32" else 2)
    next_step.rollout(2)
    assert next_step.stats()["syncs"] == nodes, "frozen weights move once"
    for count in range(2, 5):
        change(policy)
        next_step.publish(policy)
        next_step.rollout(2)
        stats = next_step.stats()
        assert stats["syncs"] == count * nodes
        assert stats["weight_bytes"]["total"] == count * nodes * size
    assert stats["steps"] == 5 * 2 * NUM_ENVS


@pytest.mark.parametrize("streaming", [False, True])
def test_times_and_bytes_are_those_of_what_happened(next_step: ClusterEnv, cluster: Any, streaming: bool) -> None:
    policy = agent()
    attached(next_step, policy)
    before, began = next_step.network_bytes, time.monotonic()
    nbytes = 0
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(next_step.stream(10)) if streaming else None
        batch = next_step.rollout(10) if stream is None else next(stream)
        assert next_step.stats()["publish_to_apply_s"] == {}, "nothing was published"
        change(policy)
        published = time.monotonic()
        number = next_step.publish(policy).number
        while batch.version.max() < number:
            batch = next_step.rollout(10) if stream is None else next(stream)
            nbytes += batch.obs.nbytes + batch.reward.nbytes
        passed = time.monotonic() - published
    stats, elapsed = next_step.stats(), time.monotonic() - began
    assert 0.0 < stats["publish_to_apply_s"]["p50"] == stats["publish_to_apply_s"]["p99"] <= passed
    assert 0.0 < stats["step_s"]["p50"] <= stats["step_s"]["p99"] <= elapsed / 10
    assert stats["straggler_ratio"] >= 1.0
    moved = {way: stats["network_bytes"][way] - before[way] for way in ("received", "sent")}
    if cluster in ("inproc", "local:2"):
        assert moved == {"received": 0, "sent": 0}
    else:
        assert moved["received"] > nbytes
        assert moved["sent"] > stats["weight_bytes"]["total"]


@pytest.mark.parametrize(("sync", "expected"), [("every:3", [0, 0, 0, 3, 3, 3, 6]), ("never", [0] * 7)])
def test_rules_that_count(next_step: ClusterEnv, sync: str, expected: list[int]) -> None:
    policy = agent()
    attached(next_step, policy, sync)
    versions = []
    for _ in expected:
        versions.append(np.unique(next_step.rollout(2).version).tolist())
        change(policy, 0.1)
        next_step.publish(policy)
    assert versions == [[version] for version in expected]


def test_aps_moves_weights_when_the_policy_has_drifted(next_step: ClusterEnv) -> None:
    policy = agent()
    attached(next_step, policy, APS(threshold=0.05, max_lag=50))
    nodes = len(next_step._engine.node.hosts)
    next_step.rollout(20)
    for _ in range(3):
        change(policy, 1e-4)
        next_step.publish(policy)
        assert np.unique(next_step.rollout(4).version).tolist() == [0]
    assert next_step.stats()["syncs"] == nodes
    change(policy, 3.0)
    version = next_step.publish(policy)
    batch = next_step.rollout(4)
    assert np.unique(batch.version).tolist() == [version.number]
    stats = next_step.stats()
    assert batch.divergence.max() == stats["divergence"]["max"] > 0.05, "as it was when weights had not moved yet"
    assert max(largest for _, largest in stats["divergence"]["recent"]) == stats["divergence"]["max"]
    assert stats["syncs"] == 2 * nodes
    assert stats["sync_reasons"]["divergence"] == nodes


# Losses.


def losses_in_rollouts(envs: ClusterEnv, hurt: Any, slots: list[int]) -> None:
    with here() as mine:
        attached(mine, agent())
        expected = [mine.rollout(6), mine.rollout(6)]
    attached(envs, agent())
    same(envs.rollout(6), expected[0])
    hurt()
    batch = envs.rollout(6)
    others = [slot for slot in range(NUM_ENVS) if slot not in slots]
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(batch, name)[:, others], getattr(expected[1], name)[:, others], name)
    assert np.flatnonzero(batch.worker_lost).tolist() == slots
    assert batch.first[0, slots].all()
    np.testing.assert_array_equal(batch.obs[0][slots][:, 1], 0, "it begins afresh")
    assert not envs.rollout(3).worker_lost.any()
    assert envs.stats()["restarts"] >= 1


@beyond
def test_a_killed_worker_in_a_rollout(next_step: ClusterEnv) -> None:
    losses_in_rollouts(next_step, lambda: kill(next_step, 0), FIRST)


@replaceable
def test_a_killed_node_in_a_rollout(next_step: ClusterEnv) -> None:
    losses_in_rollouts(next_step, lambda: kill_node(next_step, 1), SECOND)


def test_an_environment_that_raises_in_a_rollout_names_its_step(strict: ClusterEnv) -> None:
    attached(strict, agent())
    strict.rollout(3)
    strict.set_attr("misbehave", "raise", indices=[3])
    with pytest.raises(EnvError, match="planned error") as caught:
        strict.rollout(3)
    assert (caught.value.slot, caught.value.seed, caught.value.step) == (3, SEED + 3, 4)
    strict.reset(seed=SEED)
    assert strict.rollout(3).T == 3


@beyond
def test_a_killed_worker_in_a_rollout_is_raised(strict: ClusterEnv) -> None:
    attached(strict, agent())
    strict.rollout(3)
    kill(strict, 1)
    with pytest.raises(WorkerLost) as caught:
        strict.rollout(3)
    assert list(caught.value.slots) == SECOND
    strict.reset(seed=SEED)
    with here() as mine:
        attached(mine, agent())
        mine.rollout(3)
        mine.reset(seed=SEED)
        expected = mine.rollout(3)
    np.testing.assert_array_equal(strict.rollout(3).obs[0], expected.obs[0])


def losses_in_streams(envs: ClusterEnv, hurt: Any, slots: list[int]) -> None:
    attached(envs, agent())
    told: list[int] = []
    with envs.stream(4, slots=NUM_ENVS) as stream:
        for count, batch in enumerate(stream):
            if count == 3:
                hurt()
            told += batch.slot[batch.worker_lost].tolist()
            np.testing.assert_array_equal(batch.obs[0][:, 0], batch.slot)
            assert batch.first[0, batch.worker_lost].all()
            if len(told) >= len(slots) and count > 10:
                break
    assert sorted(told) == slots
    envs.reset(seed=1)
    envs.step(actions(envs))


@beyond
def test_a_killed_worker_in_a_stream(next_step: ClusterEnv) -> None:
    losses_in_streams(next_step, lambda: kill(next_step, 1), SECOND)


@replaceable
def test_a_killed_node_in_a_stream(next_step: ClusterEnv) -> None:
    losses_in_streams(next_step, lambda: kill_node(next_step, 0), FIRST)


@beyond
def test_a_killed_worker_in_a_stream_is_raised(strict: ClusterEnv) -> None:
    attached(strict, agent())
    stream = strict.stream(4)
    for _ in range(3):
        next(stream)
    kill(strict, 0)
    with pytest.raises(WorkerLost) as caught:
        collections.deque(stream, maxlen=0)
    assert list(caught.value.slots) == FIRST
    strict.reset(seed=1)
    strict.step(actions(strict))


@pytest.mark.fault("F35")
def test_two_versions_before_a_rollout(next_step: ClusterEnv) -> None:
    policy = agent()
    attached(next_step, policy)
    for _ in range(3):
        change(policy, 0.1)
        version = next_step.publish(policy)
        change(policy, 0.1)
        version = next_step.publish(policy)
        assert np.unique(next_step.rollout(3).version).tolist() == [version.number]
